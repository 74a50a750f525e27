"""Every Python block of the README runs as shown, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def test_the_code_blocks_run():
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 2
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert names["mean_weights"].shape == (10,)


def test_the_quickstart_is_short():
    first = re.search(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert len([line for line in first[1].splitlines() if line.strip()]) <= 13


@pytest.mark.parametrize("name", re.findall(r"`jb\.([\w.]+)", README.read_text()))
def test_every_name_exists(name):
    import jaxrl_buffers

    found = jaxrl_buffers
    for part in name.split("."):
        found = getattr(found, part)
