"""The blocks of code in `docs/guides`."""

from __future__ import annotations

import re
from pathlib import Path

import jaxrl_buffers as jb

ROOT = Path(jb.__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(guide):
    """Return the blocks of a guide: (language, the word after it, text)."""
    return BLOCK.findall((ROOT / "docs" / "guides" / f"{guide}.md").read_text())
