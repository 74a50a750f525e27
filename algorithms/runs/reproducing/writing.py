"""Writes tables, pictures and the page from the files of results."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from algorithms.runs.comparing import chart, page
from algorithms.runs.comparing.comparison import ComparedRun, Comparison, Scores
from algorithms.runs.comparing.estimates import mean
from algorithms.runs.reproducing import tables
from algorithms.runs.reproducing.results import Result, Results
from algorithms.runs.reproducing.rows import Group, Row, file_name
from algorithms.runs.run_folder import RunFolder

SIZE = (920, 420)  # of a picture, without its legend
INTRODUCTION = """# Results

This page is written by `python scripts/reproduce.py --write` from the JSON files beside it. A row is the command
`python scripts/train.py ROW`, and `python scripts/reproduce.py --only "ROW"` runs it again. Rows that have not been run
yet, or only with other settings than they have now, are listed below each table. [One page with all
curves](index.html) shows the same. Columns without an entry are left out.

Every seed is evaluated over 100 deterministic episodes after its last step. A score is the mean return of these
episodes or, where it has a %, the share of goals that were reached. The columns hold the mean over seeds, the
interquartile mean with its 95 % confidence interval by a bootstrap over seeds, and the worst and the best seed. Goals
were set beforehand. CPU time is what all cores together worked for all seeds, with compilation and evaluations. Most
rows shared their machine with other programs, which makes it longer. The time on the wall is shown only for rows that
were measured on a machine that did nothing else, by `python scripts/reproduce.py --quiet`.
"""


def write_all(groups: Sequence[Group], results: Results, readme: Path) -> None:
    """Write the tables, the pictures and the page.

    Args:
        groups: all rows.
        results: what they have reached. The page, the pictures and the long tables go into its folder.
        readme: the file that gets the short table, between its marks.
    """
    tables.write_between_marks(readme, tables.short(groups, results))
    results.folder.mkdir(parents=True, exist_ok=True)
    (results.folder / "README.md").write_text(long_page(groups, results), "utf-8")
    pictures = results.folder / "pictures"
    pictures.mkdir(exist_ok=True)
    drawn = comparisons(groups, results)
    for name, comparison in drawn.items():
        (pictures / f"{file_name(name)}.svg").write_text(chart.picture(comparison, *SIZE), "utf-8")
    for old in {path.stem for path in pictures.glob("*.svg")} - {*map(file_name, drawn)}:
        (pictures / f"{old}.svg").unlink()
    (results.folder / "index.html").write_text(html(groups, results), "utf-8")


def long_page(groups: Sequence[Group], results: Results) -> str:
    """Return the page with all tables, in Markdown."""
    parts = [INTRODUCTION]
    for group in groups:
        images = [f"![{name}](pictures/{file_name(name)}.svg)" for name in comparisons([group], results)]
        parts += [
            f"## {group.title}\n",
            f"{group.text}\n",
            f"{tables.long(group, results)}\n",
            *(f"{one}\n" for one in images),
        ]
    return "\n".join(parts)


def html(groups: Sequence[Group], results: Results) -> str:
    """Return the page with all tables and curves, in HTML."""
    rows = [row for group in groups for row in group.rows]
    count = sum(results.read(row) is not None for row in rows)
    parts = [f'<p class="over">{count} of {len(rows)} rows have been run</p><h1>Results</h1>']
    for group in groups:
        parts += [f"<h2>{escape(group.title)}</h2><p>{_rendered(group.text)}</p>", _html_table(group, results)]
        for name, comparison in comparisons([group], results).items():
            parts += [f"<h3>{escape(name)}</h3>", page.legend(comparison), page.figure(comparison)]
    return page.document("Results", parts)


def comparisons(groups: Sequence[Group], results: Results) -> dict[str, Comparison]:
    """Return the curves of each picture, by the picture's name."""
    found: dict[str, list[tuple[Row, Result]]] = {}
    for row in (row for group in groups for row in group.rows):
        result = results.read(row)
        if result is not None and result.curve["steps"]:
            found.setdefault(row.curve[0], []).append((row, result))
    return {name: _comparison(name, pairs) for name, pairs in found.items()}


def _comparison(name: str, pairs: Sequence[tuple[Row, Result]]) -> Comparison:
    runs = tuple(_compared(row, result) for row, result in pairs)
    return Comparison(name, "steps", tuple(dict.fromkeys(row.words[0] for row, _ in pairs)), runs, {})


def _compared(row: Row, result: Result) -> ComparedRun:
    scores = np.array(result.scores)
    returns = np.array(result.curve["returns"], np.float64)
    of_seeds = Scores(scores, result.steps, result.episodes)
    folder = RunFolder(os.fspath(row.file_name))
    return ComparedRun(
        *(row.curve[1], folder, np.array(result.curve["steps"]), returns, of_seeds), mean(scores), result.estimate, None
    )


def _html_table(group: Group, results: Results) -> str:
    done, missing = tables.apart(group, results)
    found = [tables.cells(row, results) for row in done]
    columns = tables.filled(tables.LONG, found)
    heads = "".join(f"<th>{escape(name)}</th>" for name in columns)
    rows = ["".join(_html_cell(name, cells[name]) for name in columns) for cells in found]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    table = f'<table class="results"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
    names = ", ".join(f"<code>{escape(row.command)}</code>" for row in missing)
    note = f'<p class="note">Not run yet: {names}.</p>' if missing else ""
    return (f'<div class="scroll">{table}</div>' if done else "") + note


def _html_cell(name: str, text: str) -> str:
    kind = ' class="long"' if name in ("goal", "known elsewhere") else ""
    return f"<td{kind}>{_rendered(text)}</td>"


def _rendered(text: str) -> str:
    """Return a line of Markdown as HTML: its code, and nothing else of it.

    Example:
        >>> _rendered("**met** by `ddqn`")
        'met by <code>ddqn</code>'
    """
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text).replace("**", ""))
