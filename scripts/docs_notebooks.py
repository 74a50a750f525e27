"""Executes notebooks for the documentation: `python scripts/docs_notebooks.py NOTEBOOK FOLDER`.

The folder gets `page.md`, which has the cells and what they show, and the pictures in it. A warning is an error.
"""

from __future__ import annotations

import ast
import base64
import json
import os
import pprint
import re
import sys
import warnings
from pathlib import Path
from typing import Any

IMAGE = re.compile(r'<img src="data:image/(\w+);base64,([^"]+)">')


class Notebook:
    """A notebook that is being executed in the present folder.

    Args:
        name: the pictures are called `name-1.png` and so on.
        pictures: the folder for them.
    """

    def __init__(self, name: str, pictures: Path):
        self._name, self._pictures = name, pictures
        self._names: dict[str, Any] = {}
        self._heading = ""
        self._count = 0

    def show(self, cell: dict[str, Any]) -> list[str]:
        """Return a cell and what it shows, as parts of a page; execute it if it is code."""
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            self._heading = headings[-1] if headings else self._heading
            return [text]
        return [f"```python\n{text}\n```", *self._execute(text)]

    def _execute(self, code: str) -> list[str]:
        import matplotlib.pyplot as plt

        shown: list[str] = []

        def show() -> None:
            for number in plt.get_fignums():
                shown.append(self._picture("png"))
                plt.figure(number).savefig(self._last, dpi=110, bbox_inches="tight")
            plt.close("all")

        plt.show = show
        tree = ast.parse(code)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, self._name, "exec"), self._names)
        if last is None:
            return shown
        value = eval(compile(ast.Expression(last.value), self._name, "eval"), self._names)
        if hasattr(value, "_repr_html_"):
            for kind, data in IMAGE.findall(value._repr_html_()):
                shown.append(self._picture(kind))
                self._last.write_bytes(base64.b64decode(data))
        elif value is not None:
            shown.append(f"```text\n{pprint.pformat(value, width=100)}\n```")
        return shown

    def _picture(self, kind: str) -> str:
        """Return what shows the next picture, which is to be written to `_last`."""
        self._count += 1
        self._last = self._pictures / f"{self._name}-{self._count}.{kind}"
        return f"![{self._heading}]({self._last.name})"


def main(notebook: Path, folder: Path) -> None:
    """Execute a notebook in a folder."""
    import matplotlib

    matplotlib.use("agg")
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="tensorflow_probability")
    os.chdir(folder)
    running = Notebook(notebook.stem, folder)
    parts = [part for cell in cells for part in running.show(cell)]
    (folder / "page.md").write_text("\n\n".join(parts) + "\n", "utf-8")


if __name__ == "__main__":
    main(*(Path(argument).absolute() for argument in sys.argv[1:]))
