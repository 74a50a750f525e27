"""The notebooks run from the first cell to the last, and are stored without outputs."""

from __future__ import annotations

import json

import pytest
from support.guides import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MADE = {"replay_by_pictures": {"ere.gif", "per.gif"}}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path, tmp_path, monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot")
    pytest.importorskip("PIL")
    plt.switch_backend("agg")
    monkeypatch.chdir(tmp_path)
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()) or plt.close("all"))
    cells = json.loads(path.read_text("utf-8"))["cells"]
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            exec(compile("".join(cell["source"]), path.name, "exec"), names)
    assert shown
    assert all(figure.axes[0].has_data() for figure in shown)
    assert {file.name for file in tmp_path.iterdir()} == MADE.get(path.stem, set())
