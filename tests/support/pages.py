"""The pages of the documentation, and the blocks of code in them."""

from __future__ import annotations

import re

from support.guides import ROOT

DOCS = ROOT / "docs"
BLOCK = re.compile(r'^```(\w+)(?: (?:title="([\w.]+)"|(\w+)))?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PAGES = {page.relative_to(DOCS).as_posix(): page.read_text("utf-8") for page in sorted(DOCS.rglob("*.md"))}
# The titles of blocks that are written for another library, with its module. The tests run them where it is installed.
INSTALLABLE = {"flashbax": "flashbax", "SB3": "stable_baselines3"}
NOT_RUN = {"ALF", "l2r", "PyTorchRL"}  # the tests do not install these, and their pages say so
OTHERS = {*INSTALLABLE, *NOT_RUN}
