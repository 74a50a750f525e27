"""The notebooks run from the first cell to the last, and are stored without outputs."""

from __future__ import annotations

import ast
import json

import pytest
from support.guides import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MADE = {"replay_by_pictures": {"ere.gif", "her.gif", "per.gif"}}


def show(code, names, title):
    """Run the code of a cell; return the HTML of its last value, if it has such a form, as a notebook does."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, title, "exec"), names)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), title, "eval"), names)
    return value._repr_html_() if hasattr(value, "_repr_html_") else None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path, tmp_path, monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot")
    pytest.importorskip("PIL")
    plt.switch_backend("agg")
    monkeypatch.chdir(tmp_path)
    shown, films = [], []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()) or plt.close("all"))
    cells = json.loads(path.read_text("utf-8"))["cells"]
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            films.append(show("".join(cell["source"]), names, path.name))
    assert shown
    assert all(figure.axes[0].has_data() for figure in shown)
    made = MADE.get(path.stem, set())
    assert {file.name for file in tmp_path.iterdir()} == made
    assert sum(film is not None and film.startswith('<img src="data:image/gif;base64,') for film in films) == len(made)
