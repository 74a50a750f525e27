"""Live progress of a run on a terminal, and a line for every evaluation elsewhere; needs rich."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Generator
from typing import Any, TextIO, cast

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from algorithms.runs.options import Report

HIDE_CURSOR = "\x1b[?25l"
WIDE = 90  # columns of a terminal that have room for the title and a bar


class ProgressBar:
    """Shows at once what the run is doing, and later steps, speed, the last return and the time left.

    On a terminal this is one line, which is drawn again and again. If standard output is not a terminal, each
    evaluation is printed there as a line. If it is a pipe, there is no bar, because the program that reads the pipe may
    write to the same terminal.

    Args:
        title: what is being trained.
        is_quiet: show no progress, such as in all processes of a run but the first.
    """

    def __init__(self, title: str, is_quiet: bool = False):
        self._title = title
        self._console, has_bar = for_bars()
        self._has_bar = has_bar and not is_quiet
        self._has_lines = not is_quiet and (not self._has_bar or not _is_terminal(sys.stdout))
        is_wide = self._console.width >= WIDE
        bar = [TextColumn(escape(title)), BarColumn()] if is_wide else []
        columns = [SpinnerColumn("line"), *bar, _Figures(is_wide)]
        # Rich would move printed lines above the bar, even if standard output goes to a file.
        self._bar = Progress(
            *columns, console=self._console, disable=not self._has_bar, transient=True, redirect_stdout=False
        )
        self._task = self._bar.add_task("", total=None, report=None, score="", deadline=None)
        # The time of the first report while training, its steps or offline updates, and their unit.
        self._first: tuple[float, int, str] | None = None

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop drawing, so that others can write to the terminal."""
        self._bar.stop()

    def say(self, text: str) -> None:
        """Show a line to a person: above the bar, or on standard error if there is no bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @property
    def is_live(self) -> bool:
        """Whether there is a bar, and so a person in front of it."""
        return self._has_bar

    def update(self, report: Report) -> None:
        """Show the progress of a run between chunks.

        Raises:
            BrokenPipeError: when the reader of the lines is gone.
        """
        shown: dict[str, Any] = {"report": report, "deadline": self._deadline(report)}
        if report.metrics is not None:
            shown["score"] = f"{np.mean(report.metrics['returns']):.1f}"
        is_news = "score" in shown
        self._bar.update(self._task, completed=report.steps, total=report.total_steps, refresh=is_news, **shown)
        if self._has_lines and report.phase == "compiling":
            which = f", {report.run}" if report.run else ""
            print(f"{self._title}{which}: compiling ...", flush=True)
        elif self._has_lines and is_news:
            speed = f"{report.steps_per_second:,.0f}"
            unit = report.unit
            print(f"{report.steps:>12,} {unit}  {speed:>8} {unit}/s  return {shown['score']}", flush=True)

    def _deadline(self, report: Report) -> float | None:
        """Return when the run will end at its present speed, evaluations included."""
        now = time.monotonic()
        if report.phase == "compiling":
            self._first = None  # the runs of a sweep may come one after the other
            return None
        if self._first is None or self._first[2] != report.unit:
            self._first = now, report.steps, report.unit
        begun, steps, _ = self._first
        return (
            now + (now - begun) / (report.steps - steps) * (report.total_steps - report.steps)
            if steps < report.steps
            else None
        )


def for_bars() -> tuple[Console, bool]:
    """Return a console on standard error, and whether bars can be drawn on it."""
    terminal = _is_terminal(sys.stderr) and not _is_pipe(sys.stdout)
    console = Console(file=cast(TextIO, _Forgiving(sys.stderr)), force_terminal=terminal)
    return console, terminal and not console.is_dumb_terminal


class _Figures(ProgressColumn):
    """A column with the present phase or, during training, the figures of the run, with or without units."""

    def __init__(self, has_units: bool):
        self._has_units, self._left = has_units, " left" if has_units else ""
        super().__init__()

    def render(self, task: Task) -> Text:
        """Return the text."""
        report, score, deadline = (task.fields[name] for name in ("report", "score", "deadline"))
        if report is None or report.phase == "compiling":
            figures = "compiling ..."
        elif report.phase == "testing":
            figures = "testing the last policy ..."
        else:
            unit = f" {report.unit}" if self._has_units else ""
            figures = f"{report.steps:,}/{report.total_steps:,}{unit}"
            figures += f"  {report.steps_per_second:,.0f}{unit}/s"
            figures += f"  return {score}" if score else ""
            figures += "" if deadline is None else f"  {clock(max(deadline - time.monotonic(), 0))}{self._left}"
        figures += f"  {report.run}" if report is not None and report.run else ""
        return Text(figures, no_wrap=True, overflow="ellipsis")


class _Forgiving:
    """A stream whose reader may go away; output that nobody can read is dropped.

    The cursor is never hidden: a process that is killed could not bring it back.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        with _nobody_there():
            return self._stream.write(text.replace(HIDE_CURSOR, ""))
        return len(text)

    def flush(self) -> None:
        with _nobody_there():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _nobody_there() -> Generator[None]:
    with contextlib.suppress(OSError, ValueError):  # a terminal that was closed, a stream that was closed
        yield


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _is_pipe(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # a stream without a file, as in a notebook
        return False


def clock(seconds: float) -> str:
    """Return a duration as text.

    Example:
        >>> clock(75.2), clock(7_384)
        ('1:15', '2:03:04')
    """
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
