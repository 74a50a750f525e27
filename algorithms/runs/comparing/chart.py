"""Learning curves and intervals as SVG, which browsers draw without any script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from importlib import resources
from typing import ClassVar

import numpy as np

from algorithms.runs.comparing.comparison import ComparedRun, Comparison
from algorithms.runs.plotting import COLORS, mean_and_band

DASHES = ("", "7 4", "2 3")  # from the seventh run on, colors repeat with other dashes
MOST_DOTS = 60  # per curve; more dots would hide the line


def look(index: int) -> tuple[str, str]:
    """Return the color and the dashes of the run with this number."""
    return COLORS[index % len(COLORS)], DASHES[index // len(COLORS) % len(DASHES)]


class Frame:
    """The axes of a chart: turns values into coordinates, and draws the grid and the ticks.

    Args:
        width: of the picture.
        height: of the picture.
        axis: the name of the horizontal axis.
        across: smallest and largest value of the horizontal axis.
        up: smallest and largest value of the vertical axis.
    """

    left: ClassVar[int] = 52  # margins, with room for the labels
    right: ClassVar[int] = 18
    top: ClassVar[int] = 26
    bottom: ClassVar[int] = 44
    width: int
    height: int

    def __init__(self, width: int, height: int, axis: str, across: tuple[float, float], up: tuple[float, float]):
        self.axis = axis
        self.width, self.height = width, height
        self._x = _scale(across, self.left, width - self.right)
        self._y = _scale(up, height - self.bottom, self.top)
        self._across, self._up = across, up

    def points(self, steps: np.ndarray, values: np.ndarray) -> list[tuple[float, float]]:
        """Return the coordinates of the finite values."""
        return [(self._x(x), self._y(y)) for x, y in zip(steps, values, strict=True) if np.isfinite(y)]

    def grid(self) -> str:
        """Return the grid lines, the ticks and the names of the axes."""
        parts = []
        right, floor = self.width - self.right, self.height - self.bottom
        for value in _ticks(*self._up, 6):
            y = self._y(value)
            parts.append(f'<line class="grid" x1="{self.left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{self.left - 8}" y="{y + 4:.1f}" text-anchor="end">{spelled(value)}</text>')
        for value in _ticks(*self._across, 8 if self.width > 500 else 4):
            x = self._x(value)
            parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{floor}" y2="{floor + 5}"/>')
            parts.append(f'<text x="{x:.1f}" y="{floor + 19}" text-anchor="middle">{spelled(value)}</text>')
        parts.append(f'<line class="axis" x1="{self.left}" x2="{right}" y1="{floor}" y2="{floor}"/>')
        middle = (self.left + right) / 2
        parts.append(
            f'<text class="what" x="{middle:.0f}" y="{self.height - 6}" text-anchor="middle">{self.axis}</text>'
        )
        parts.append(f'<text class="what" x="{self.left - 8}" y="12" text-anchor="end">return</text>')
        return "".join(parts)


def curves(comparison: Comparison, width: int, height: int) -> str:
    """Return a chart of the returns over steps: for each run the mean over seeds, with its confidence band."""
    name = escape(f"Returns over {comparison.axis} of {', '.join(run.label for run in comparison.runs)}")
    return (
        f'<svg class="curves" viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{name}">'
        f"{_drawn(comparison, width, height)}</svg>"
    )


def picture(comparison: Comparison, width: int, height: int) -> str:
    """Return the same chart as an SVG file of its own, with a title and a legend below."""
    legend = "".join(_entry(index, run.label, height + 14 + 22 * index) for index, run in enumerate(comparison.runs))
    whole = height + 10 + 22 * len(comparison.runs)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {whole}" width="{width}" height="{whole}">'
        f"<title>{escape(comparison.title)}</title><style>\n{style('chart.css')}</style>"
        f'<rect class="paper" width="{width}" height="{whole}"/>{_drawn(comparison, width, height)}{legend}</svg>\n'
    )


def style(name: str) -> str:
    """Return a style sheet of this package."""
    return resources.files("algorithms.runs.comparing").joinpath(name).read_text(encoding="utf-8")


def _drawn(comparison: Comparison, width: int, height: int) -> str:
    bands = [mean_and_band(run.returns) for run in comparison.runs]
    finite = np.concatenate([np.ravel(one)[np.isfinite(np.ravel(one))] for one in bands])
    steps = np.concatenate([run.steps for run in comparison.runs])
    up = _with_room(finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    frame = Frame(width, height, comparison.axis, (min(0, steps.min()), steps.max()), up)
    drawn = [
        _curve(frame, index, run, band) for index, (run, band) in enumerate(zip(comparison.runs, bands, strict=True))
    ]
    areas, lines = ("".join(parts) for parts in zip(*drawn, strict=True))
    return f"{frame.grid()}{areas}{lines}"


def _entry(index: int, label: str, y: int) -> str:
    """Return a line of a legend: a piece of the run's line, and its name."""
    color, dashes = look(index)
    ends = f'x1="{Frame.left}" x2="{Frame.left + 30}" y1="{y - 4}" y2="{y - 4}"'
    line = f'<line {ends} stroke="{color}" stroke-width="3.5" stroke-dasharray="{dashes}"/>'
    return f'{line}<text class="what" x="{Frame.left + 40}" y="{y}">{escape(label)}</text>'


def _curve(frame: Frame, index: int, run: ComparedRun, band: tuple[np.ndarray, ...]) -> tuple[str, str]:
    """Return the band of a run, and its line with dots that show their values."""
    steps = run.steps
    center, low, high = band
    color, dashes = look(index)
    area = [*frame.points(steps, low), *reversed(frame.points(steps, high))]
    line = frame.points(steps, center)
    path = f'<path class="line" d="{_path(line)}" stroke="{color}" stroke-dasharray="{dashes}"/>'
    dots = []
    finite = [(step, value) for step, value in zip(steps, center, strict=True) if np.isfinite(value)]
    if len(finite) <= MOST_DOTS:
        for (x, y), (step, value) in zip(line, finite, strict=True):
            tip = escape(f"{run.label}: {value:,.1f} after {step:,} {frame.axis}")
            dots.append(
                f'<g><title>{tip}</title><circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{color}"/>'
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="transparent"/></g>'
            )
    return f'<path class="band" d="{_path(area)}Z" fill="{color}"/>' if area else "", path + "".join(dots)


def interval(comparison: Comparison, index: int, width: int = 210, height: int = 30) -> str:
    """Return a chart of one run: a stroke for each seed, and the interquartile mean with its interval.

    All runs have the same scale.
    """
    run = comparison.runs[index]
    x = _scale(span(comparison), 8, width - 8)
    color, middle = look(index)[0], height / 2
    strokes = "".join(
        f'<line class="seed" x1="{x(score):.1f}" x2="{x(score):.1f}" y1="5" y2="{height - 5}" stroke="{color}"/>'
        for score in run.scores.of_seeds
    )
    found, bar = run.interquartile_mean, ""
    if found.low is not None and found.high is not None:
        ends = f'x1="{x(found.low):.1f}" x2="{x(found.high):.1f}"'
        bar = f'<line class="interval" {ends} y1="{middle}" y2="{middle}" stroke="{color}"/>'
    dot = f'<circle class="center" cx="{x(found.value):.1f}" cy="{middle}" r="5" fill="{color}"/>'
    name = escape(f"{run.label}: {found.spelled(1)}")
    return (
        f'<svg class="interval" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{name}"><title>{name}</title>{strokes}{bar}{dot}</svg>'
    )


def span(comparison: Comparison) -> tuple[float, float]:
    """Return the smallest and the largest score of any seed, moved apart a little if they are equal."""
    scores = np.concatenate([run.scores.of_seeds for run in comparison.runs])
    low, high = float(scores.min()), float(scores.max())
    return (low, high) if high > low else (low - 1, high + 1)


def spelled(value: float) -> str:
    """Return a number in few characters.

    Example:
        >>> spelled(2_500), spelled(1_500_000), spelled(0.25), spelled(-1_200)
        ('2.5k', '1.5M', '0.25', '-1.2k')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"


def _ticks(low: float, high: float, most: int) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    values = MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [float(value) for value in values if low <= value <= high]


def _with_room(low: float, high: float) -> tuple[float, float]:
    room = 0.04 * (high - low) or 1.0
    return float(low - room), float(high + room)


def _scale(values: tuple[float, float], begin: float, end: float) -> Callable[[float], float]:
    low, high = values
    size = (end - begin) / ((high - low) or 1)
    return lambda value: begin + (value - low) * size


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "".join(f"{'L' if index else 'M'}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(points))
