"""Live progress of a run on a terminal, or a line for every evaluation elsewhere; needs rich."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from algorithms.run import Report


class ProgressBar:
    """Shows steps, speed, the last return and the time left.

    Args:
        title: what is being trained.
    """

    def __init__(self, title: str):
        self._console = Console(file=sys.stderr)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"),
            TextColumn("{task.fields[speed]} steps/s  return {task.fields[score]}  left"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._task = self._progress.add_task(title, total=None, speed="...", score="...")

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the terminal to others."""
        self._progress.stop()

    def update(self, report: Report) -> None:
        """Show what is known after a chunk."""
        shown: dict[str, Any] = {"speed": f"{report.steps_per_second:,.0f}"}
        if report.metrics is not None:
            shown["score"] = f"{np.mean(report.metrics['returns']):.1f}"
            if not self._console.is_terminal:
                print(f"{report.steps:>12,} steps  {shown['speed']:>8} steps/s  return {shown['score']}", flush=True)
        self._progress.update(self._task, completed=report.steps, total=report.total_steps, **shown)

    def tell(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
