"""Tables of results in Markdown, and their place between the marks of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from algorithms.runs.reproducing.results import Results
from algorithms.runs.reproducing.rows import Group, Row

BEGIN, END = "<!-- reproduce:begin -->", "<!-- reproduce:end -->"
SHORT = ("command", "steps", "seeds", "mean (worst to best)", "goal", "")
LONG = (
    *("command", "steps", "seeds", "mean", "interquartile mean", "worst", "best", "goal", ""),
    *("known elsewhere", "CPU time", "time", "date"),
)


def short(groups: Sequence[Group], results: Results) -> str:
    """Return the table of the best-known rows."""
    return _table(SHORT, [row for group in groups for row in group.rows if row.is_best_known], results)


def long(group: Group, results: Results) -> str:
    """Return the table of the rows of a group that have a result, and the names of the others."""
    done, missing = apart(group, results)
    parts = [_table(filled(LONG, [cells(row, results) for row in done]), done, results)] if done else []
    if missing:
        parts.append(f"Not run yet: {', '.join(f'`{row.command}`' for row in missing)}.")
    return "\n\n".join(parts)


def apart(group: Group, results: Results) -> tuple[list[Row], list[Row]]:
    """Return the rows of a group that have a result, and those that have none."""
    done = [row for row in group.rows if results.read(row) is not None]
    return done, [row for row in group.rows if row not in done]


def cells(row: Row, results: Results) -> dict[str, str]:
    """Return what a table says about a row, by the names of columns; without a result there are no figures."""
    result = results.read(row)
    if result is None:
        figures = dict.fromkeys(LONG, "") | {"": "not run"}
    else:
        of_success = " %" if row.of_success else ""
        seeds = _spread(result._asdict())
        verdict = {True: "met", False: "**not met**", None: ""}[row.is_met(result.scores)]
        figures = {
            "steps": shown_steps(result.steps),
            "seeds": str(len(result.scores)),
            "mean (worst to best)": f"{seeds[0]}{of_success} ({seeds[1]} to {seeds[2]})",
            "mean": f"{seeds[0]}{of_success}",
            "interquartile mean": result.estimate.spelled(1),
            "worst": seeds[1],
            "best": seeds[2],
            "": verdict,
            "CPU time": shown_time(result.times.cpu_seconds),
            "time": shown_time(result.times.wall_seconds) if result.times.is_quiet else "",
            "date": result.date,
        }
    known = "; ".join(filter(None, (row.known, _of_sbx(row, results))))
    return figures | {"command": f"`{row.command}`", "goal": row.aim, "known elsewhere": known}


def filled(names: Sequence[str], rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the columns in which at least one row has an entry.

    Example:
        >>> filled(("steps", "goal"), [{"steps": "20k", "goal": ""}])
        ['steps']
    """
    return [name for name in names if any(row.get(name) for row in rows)]


def shown_steps(steps: int) -> str:
    """Return a number of steps in few characters.

    Example:
        >>> shown_steps(20_000), shown_steps(1_000_000), shown_steps(1_234)
        ('20k', '1M', '1,234')
    """
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if steps and steps % size == 0:
            return f"{steps // size}{unit}"
    return f"{steps:,}"


def shown_time(seconds: float | None) -> str:
    """Return a time in few characters.

    Example:
        >>> shown_time(48.4), shown_time(600.0), shown_time(None)
        ('48 s', '10.0 min', 'not known')
    """
    if seconds is None:
        return "not known"
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def write_between_marks(path: Path, text: str) -> None:
    """Put a text between the marks of a file.

    Raises:
        ValueError: when the file does not have both marks once.
    """
    whole = path.read_text("utf-8")
    if whole.count(BEGIN) != 1 or whole.count(END) != 1 or whole.index(BEGIN) > whole.index(END):
        raise ValueError(f"{path} needs the lines {BEGIN} and {END}, once each, around the table's place.")
    before, rest = whole.split(BEGIN)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", "utf-8")


def _spread(found: Mapping[str, Any]) -> list[str]:
    return [f"{found[name]:.1f}" for name in ("mean", "worst", "best")]


def _of_sbx(row: Row, results: Results) -> str:
    found = results.read_sbx(row)
    if found is None:
        return ""
    mean, worst, best = _spread(found)
    return f"SBX {found['versions']['sbx-rl']} here: {mean} ({worst} to {best}), {len(found['scores'])} seeds"


def _table(names: Sequence[str], rows: Sequence[Row], results: Results) -> str:
    found = [cells(row, results) for row in rows]
    lines = [names, ["---"] * len(names), *([cell.get(name, "") for name in names] for cell in found)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
