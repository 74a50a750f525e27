"""metrics.csv, a table that spreadsheets and pandas read: a row for every evaluation and series."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

from algorithms.runs.logs.points import Point, Writer
from algorithms.runs.settings import Settings
from jaxrl_buffers import _durable as durable

NAME = "metrics.csv"


@contextlib.contextmanager
def csv_writer(folder: Path, settings: Settings) -> Generator[Writer]:
    """Write metrics.csv anew: columns `steps`, `series` (`mean`, `seed0` ...) and one for every metric."""
    path = folder / NAME
    names = ["steps", "series"]
    points: list[Point] = []
    durable.write_text(path, _text([names]))

    def write(point: Point) -> None:
        points.append(point)
        new = dict.fromkeys(name for values in point.series.values() for name in values if name not in names)
        names.extend(new)
        if new:  # new columns: the whole table is written again
            durable.write_text(path, _text([names, *_rows(points, names)]))
        else:
            durable.append_text(path, _text(_rows([point], names)))

    yield write


def _rows(points: Iterable[Point], names: list[str]) -> Iterator[list[object]]:
    for point in points:
        for series, values in point.series.items():
            yield [point.steps, series, *(values.get(name, "") for name in names[2:])]


def _text(rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
