"""What MkDocs does beyond its plugins, when the documentation is built.

* Guides that the navigation does not mention come at the end of the others.
* Pages that are elsewhere in the repository are taken from there: the changes, and the results with their pictures.
* Notebooks are executed, and become pages with their pictures. Links to them lead to these.
* Drawings become a part of their page, so that they follow its colors.
* A line `<!-- results of sac -->` becomes the rows of the tables of results that begin with `sac`, and their curves.
* Links to functions of tests lead to a page that shows them.
* Words behind the language of a block are for the tests; the name of a file becomes the title of the block.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
DRAWING = re.compile(r'<img alt="([^"]*)" src="(?:\.\./)*pictures/(\w+)\.svg"\s*/?>')
OF_ALGORITHM = re.compile(r"^<!-- results of (\w+) -->$", re.MULTILINE)
CURVES = re.compile(r"^!\[(.*)\]\((pictures/.*)\)$", re.MULTILINE)
OF_ALGORITHM_PAGES = ("command", "mean", "goal", "", "worst", "best", "steps", "seeds", "known elsewhere")  # columns
MARKED = re.compile(r"^```(\w+) ([\w.]+)$", re.MULTILINE)
TO_TEST = re.compile(r"\]\((?:\.\./)+(tests/[\w/]+\.py)#(test_\w+)\)")
TO_NOTEBOOK = re.compile(r"\]\((?:\.\./)*notebooks/(\w+)\.ipynb\)")
PAGES_OF_NOTEBOOKS = tempfile.TemporaryDirectory(prefix="notebooks")
executing: dict[str, subprocess.Popen[bytes]] = {}  # by the notebook's name


def on_startup(**_: Any) -> None:
    """Begin to execute the notebooks, beside what else is to be done."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        folder = Path(PAGES_OF_NOTEBOOKS.name) / path.stem
        folder.mkdir()
        call = [sys.executable, str(ROOT / "scripts" / "docs_notebooks.py"), str(path), str(folder)]
        executing[path.stem] = subprocess.Popen(call, env=environment)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add guides that the navigation does not mention."""
    guides = next(part["Guides"] for part in config.nav or [] if "Guides" in part)
    mentioned = str(config.nav)
    for path in sorted((ROOT / "docs" / "guides").glob("*.md")):
        if f"guides/{path.name}'" not in mentioned:
            guides.append(f"guides/{path.name}")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from other files."""
    texts = {
        "changes.md": (ROOT / "CHANGELOG.md").read_text("utf-8"),
        "results/tables.md": "---\nhide: [toc]\n---\n\n" + (RESULTS / "README.md").read_text("utf-8"),
        "tests.md": page_of_tests((ROOT / "docs" / "guarantees.md").read_text("utf-8")),
    }
    for name, text in texts.items():
        files.append(File.generated(config, name, content=text))
    for path in (RESULTS / "index.html", *sorted((RESULTS / "pictures").glob("*.svg"))):
        name = f"results/{path.relative_to(RESULTS).as_posix()}"
        files.append(File.generated(config, name, abs_src_path=str(path)))
    for name, path in files_of_notebooks():
        files.append(File.generated(config, f"notebooks/{name}", abs_src_path=str(path)))
    return files


def files_of_notebooks() -> Iterator[tuple[str, Path]]:
    """Wait for the notebooks; return the names and the places of their pages and pictures."""
    for name, process in executing.items():
        if process.wait() != 0:
            raise RuntimeError(f"the notebook {name} cannot be executed; see above")
        folder = Path(PAGES_OF_NOTEBOOKS.name) / name
        yield f"{name}.md", folder / "page.md"
        yield from ((path.name, path) for path in folder.glob(f"{name}-*"))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in results, and translate blocks and links to tests."""
    markdown = MARKED.sub(lambda found: titled(*found.groups()), markdown)
    markdown = OF_ALGORITHM.sub(lambda found: results_of(found[1]), markdown)
    markdown = TO_NOTEBOOK.sub(lambda found: found[0].replace(".ipynb", ".md"), markdown)
    return TO_TEST.sub(lambda found: f"](tests.md#{anchor(found[1], found[2])})", markdown)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Put drawings into the page itself, and give tables of results a style of their own."""
    html = DRAWING.sub(lambda found: drawing(found[2], found[1]), html)
    kinds = {"results": "results whole", "algorithms": "results"}
    kind = kinds.get(page.file.src_uri.partition("/")[0])
    return html if kind is None else f'<div class="{kind}">{html}</div>'


def titled(language: str, mark: str) -> str:
    """Return the first line of a block."""
    return f'```{language} title="{mark}"' if "." in mark else f"```{language}"


def results_of(algorithm: str) -> str:
    """Return a table of all results of one algorithm with their curves, or a sentence that there are none."""
    table: list[dict[str, str]] = []
    curves: dict[str, str] = {}
    for section in (RESULTS / "README.md").read_text("utf-8").split("\n## ")[1:]:
        rows = [row for row in rows_of(section) if row["command"].startswith(f"`{algorithm} ")]
        table += [row for row in rows if row not in table]
        environments = {row["command"].split()[1].strip("`") for row in rows}
        curves |= {path: name for name, path in CURVES.findall(section) if environments & {*name.split()}}
    if not table:
        return "No run of this algorithm has been recorded with the present settings yet."
    columns = [name for name in OF_ALGORITHM_PAGES if any(row.get(name) for row in table)]
    lines = [columns, ["---"] * len(columns), *([row.get(name, "") for name in columns] for row in table)]
    pictures = [f"**{name}**\n\n![{name}](../results/{path})" for path, name in curves.items()]
    return "\n\n".join(["\n".join(f"| {' | '.join(line)} |" for line in lines), *pictures])


def rows_of(section: str) -> list[dict[str, str]]:
    """Return the rows of the table in a section of the results, by the names of their columns."""
    lines = [line[1:-1].split("|") for line in section.splitlines() if line.startswith("|")]
    names, *rows = [[cell.strip() for cell in line] for line in lines] or [[]]
    return [dict(zip(names, row, strict=True)) for row in rows[1:]]


def drawing(name: str, text: str) -> str:
    """Return a drawing as a part of a page. Its own style is left out, because the page has one."""
    svg = (ROOT / "docs" / "pictures" / f"{name}.svg").read_text("utf-8")
    svg = re.sub(r"<style>.*?</style>\s*", "", svg, flags=re.DOTALL)
    return f'<span class="drawing" role="img" aria-label="{text}">{svg.strip()}</span>'


def page_of_tests(guarantees: str) -> str:
    """Return a page with the source of every test that the guarantees link to."""
    parts = ["# Tests of the guarantees\n", "Each guarantee links to one of these tests.\n"]
    wanted: dict[str, list[str]] = {}
    for path, name in TO_TEST.findall(guarantees):
        wanted.setdefault(path, []).append(name)
    for path, names in wanted.items():
        source = (ROOT / path).read_text("utf-8")
        parts.append(f"## `{path}`\n")
        for name in dict.fromkeys(names):
            parts.append(f"### {name} {{ #{anchor(path, name)} }}\n\n```python\n{source_of(source, name)}\n```\n")
    return "\n".join(parts)


def source_of(source: str, name: str) -> str:
    """Return the lines of a function, with its decorators."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            return "\n".join(source.splitlines()[first - 1 : node.end_lineno])
    raise ValueError(f"there is no test {name}; a guarantee links to it.")


def anchor(path: str, name: str) -> str:
    """Return the name of the place that shows a test."""
    return f"{Path(path).stem}-{name}"
