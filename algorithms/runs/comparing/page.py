"""A page about a comparison, in one file without scripts. It needs no network, and fits wide and narrow screens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from algorithms.runs.comparing import chart
from algorithms.runs.comparing.comparison import ComparedRun, Comparison
from algorithms.runs.comparing.estimates import CONFIDENCE, NUM_RESAMPLES

WIDE, NARROW = (920, 420), (390, 320)  # sizes of the curves; the style sheet shows the one that fits


def write_page(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Write a page with the curves, the scores and the settings that differ.

    Raises:
        ValueError: when the file cannot be written.
    """
    try:
        Path(path).write_text(page(comparison), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror or error}.") from None


def page(comparison: Comparison) -> str:
    """Return the page as HTML."""
    count = len(comparison.runs)
    parts = [
        f'<p class="over">{count} run{"s" * (count > 1)} compared</p><h1>{escape(comparison.title)}</h1>',
        legend(comparison),
        "<h2>Learning curves</h2>",
        figure(comparison),
        "<h2>Scores</h2>",
        _scores(comparison),
        "<h2>Settings that differ</h2>",
        _settings(comparison),
    ]
    return document(comparison.title, parts)


def document(title: str, parts: Sequence[str]) -> str:
    """Return a whole page of HTML, given its parts."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{chart.style('chart.css')}{chart.style('style.css')}</style></head>\n"
        f"<body><main>\n{chr(10).join(parts)}\n</main></body></html>\n"
    )


def figure(comparison: Comparison) -> str:
    """Return the learning curves, for wide and for narrow screens."""
    return (
        f'<figure><div class="wide">{chart.curves(comparison, *WIDE)}</div>'
        f'<div class="narrow">{chart.curves(comparison, *NARROW)}</div>'
        "<figcaption>Return of deterministic episodes: mean over seeds, with the 95 % confidence band of that mean."
        "</figcaption></figure>"
    )


def legend(comparison: Comparison) -> str:
    """Return the names of the runs, each with a piece of its line."""
    entries = "".join(f"<li>{_named(index, run)}</li>" for index, run in enumerate(comparison.runs))
    return f'<ul class="legend">{entries}</ul>'


def _named(index: int, run: ComparedRun) -> str:
    """Return the name of a run, with a piece of its line before it."""
    return f'<span class="run">{_mark(index)}<span>{escape(run.label)}</span></span>'


def _mark(index: int) -> str:
    color, dashes = chart.look(index)
    return (
        f'<svg class="mark" viewBox="0 0 26 10" width="26" height="10" aria-hidden="true"><line x1="1" x2="25" y1="5" '
        f'y2="5" stroke="{color}" stroke-width="3.5" stroke-dasharray="{dashes}"/></svg>'
    )


def _scores(comparison: Comparison) -> str:
    best = max(run.interquartile_mean.value for run in comparison.runs)
    rows = "".join(_score_row(comparison, index, run, best) for index, run in enumerate(comparison.runs))
    low, high = (chart.spelled(value) for value in chart.span(comparison))
    others = f'<th class="number">better than{_mark(0)}</th>' if len(comparison.runs) > 1 else ""
    return (
        '<div class="scroll"><table class="scores"><thead><tr><th>run</th><th class="number">seeds</th>'
        '<th class="number">mean</th><th class="number">interquartile mean</th>'
        f'<th class="picture"><span>{low}</span><span>{high}</span></th>'
        f"{others}</tr></thead><tbody>{rows}</tbody></table></div>"
        f'<p class="note">Scores are returns: {comparison.basis}. Brackets are {CONFIDENCE:.0%} confidence intervals '
        f"by a stratified bootstrap over seeds ({NUM_RESAMPLES:,} resamples, percentiles). The interquartile mean is "
        "that of the middle half of the seeds; a stroke is a seed. The last column is the probability that a seed of "
        "this run scores higher than one of the first. All by the definitions of rliable (Agarwal et al., 2021).</p>"
    )


def _score_row(comparison: Comparison, index: int, run: ComparedRun, best: float) -> str:
    is_best = run.interquartile_mean.value == best and len(comparison.runs) > 1
    middle = _cell("interquartile mean", _estimate(run.interquartile_mean.spelled(1)), "best" if is_best else "")
    improvement = "" if run.improvement is None else _estimate(run.improvement.spelled(2))
    return (
        f'<tr><th scope="row">{_named(index, run)}</th>'
        f"{_cell('seeds', str(len(run.scores.of_seeds)))}{_cell('mean', _estimate(run.mean.spelled(1)))}{middle}"
        f'<td class="picture">{chart.interval(comparison, index)}</td>'
        f"{_cell('better than the first', improvement) if len(comparison.runs) > 1 else ''}</tr>"
    )


def _cell(name: str, text: str, kind: str = "") -> str:
    """Return a cell that also holds the name of its column, which is shown where the table has no header."""
    return f'<td class="number {kind}" data-name="{name}">{text}</td>'


def _estimate(text: str) -> str:
    """Return a number, with its interval below it in smaller print."""
    value, _, interval = text.partition(" ")
    return f"{value}<small>{interval}</small>" if interval else value


def _settings(comparison: Comparison) -> str:
    if not comparison.differences:
        return '<p class="note">None: the runs have the same settings.</p>'
    heads = "".join(f"<th>{_named(index, run)}</th>" for index, run in enumerate(comparison.runs))
    rows = "".join(
        f'<tr><th scope="row"><code>{escape(name)}</code></th>'
        + "".join("<td>&ndash;</td>" if value is None else f"<td><code>{escape(value)}</code></td>" for value in values)
        + "</tr>"
        for name, values in comparison.differences.items()
    )
    folders = "".join(f"<td><code>{escape(str(run.folder.path))}</code></td>" for run in comparison.runs)
    return (
        f'<div class="scroll"><table class="settings"><thead><tr><th></th>{heads}</tr></thead><tbody>{rows}'
        f'<tr class="folder"><th scope="row">folder</th>{folders}</tr></tbody></table></div>'
    )
