"""Logs that other tools read: CSV, TensorBoard, Weights & Biases.

A run always writes metrics.jsonl, and every other log is a copy of it. A process that starts or resumes a run first
writes each log anew from metrics.jsonl, and then adds a point for every evaluation. So no point is doubled or lost,
however often and however the run was stopped. A log that is added later has all points from the beginning.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

from algorithms.runs.logs.csv_file import csv_writer
from algorithms.runs.logs.points import Point, Writer
from algorithms.runs.logs.tensorboard import tensorboard_writer
from algorithms.runs.logs.wandb import require_login, wandb_writer
from algorithms.runs.settings import Settings
from jaxrl_buffers._checks import shown

__all__ = ["WRITERS", "Point", "Writer", "chosen", "opened", "require"]

WRITERS: Mapping[str, Callable[[Path, Settings], contextlib.AbstractContextManager[Writer]]] = {
    "csv": csv_writer,
    "tensorboard": tensorboard_writer,
    "wandb": wandb_writer,
}
PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}


def chosen(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of logs, each once; `none` alone means no log.

    Example:
        >>> chosen(["tensorboard", "csv", "csv"]), chosen(["none"])
        (('tensorboard', 'csv'), ())
    """
    given = tuple(dict.fromkeys(names))
    if given == ("none",):
        return ()
    for name in given:
        if name not in WRITERS:
            raise ValueError(f"log: got {shown(name)}, expected one or more of {', '.join(WRITERS)}, or none.")
    return given


def require(names: Iterable[str]) -> None:
    """Refuse logs that cannot be written here: a package is missing, or nobody is logged in."""
    for name in names:
        package = PACKAGES.get(name)
        if package is not None and importlib.util.find_spec(package) is None:
            raise ValueError(
                f"--log {name} needs the package {package}: pip install 'jaxrl-buffers[logging]', or choose "
                "--log csv or --log none."
            )
        if name == "wandb":
            require_login()


@contextlib.contextmanager
def opened(
    names: Iterable[str], folder: str | os.PathLike[str], settings: Settings, history: Iterable[Mapping[str, Any]]
) -> Generator[Callable[[Mapping[str, Any]], None]]:
    """Write logs into the folder of a run, and yield a function that adds a line of its metrics to all of them.

    Args:
        names: of the logs.
        folder: of the run.
        settings: of the run.
        history: the lines that are already in its metrics.jsonl.
    """
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(WRITERS[name](Path(folder), settings)) for name in names]

        def write(line: Mapping[str, Any]) -> None:
            point = Point.of_line(line, settings.seed)
            for writer in writers:
                writer(point)

        if writers:
            for line in history:
                write(line)
        yield write
