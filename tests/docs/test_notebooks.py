"""The notebooks are stored without outputs. They run while the site is built: see test_site.py."""

from __future__ import annotations

import json

import pytest
from support.guides import ROOT


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path):
    cells = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 3
    for cell in cells:
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
