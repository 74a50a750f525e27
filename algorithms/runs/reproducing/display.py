"""Shows how many rows are done, which ones are running, and about how long the rest will take; needs rich."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from algorithms.runs.progress_bar import clock, for_bars
from algorithms.runs.reproducing.results import Result
from algorithms.runs.reproducing.rows import Row

FIRST_SHARE = 0.01  # of all work; before that, an estimate would only be noise


class Display:
    """One line for all rows and one for each that is running. Without a terminal, a line for each result.

    Args:
        rows: what will be run.
    """

    def __init__(self, rows: Sequence[Row]):
        self._work = {row: _work(row) for row in rows}
        self._done: list[Row] = []
        self._begun = time.monotonic()
        console, has_bar = for_bars()
        self._bar = Progress(
            *(SpinnerColumn("line"), BarColumn(bar_width=24), TextColumn("{task.description}", markup=False)),
            console=console,
            disable=not has_bar,
            transient=True,
            redirect_stdout=False,
        )
        self._all = self._bar.add_task("", total=1.0)
        self._tasks: dict[Row, TaskID] = {}

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def result(self, row: Row, result: Result) -> None:
        """Say what a row has reached."""
        self._done.append(row)
        unit = " %" if row.of_success else ""
        verdict = {True: "met", False: "NOT MET", None: "no goal"}[row.is_met(result.scores)]
        line = f"{row.command}: {result.mean:.1f}{unit} [{result.worst:.1f}, {result.best:.1f}], {verdict}"
        if self._bar.disable:
            print(f"{self._count}  {line}", flush=True)
        else:  # above the lines that are drawn again and again
            self._bar.console.print(f"{self._count}  {line}", markup=False, highlight=False, soft_wrap=True)

    def tick(self, shares: Mapping[Row, float]) -> None:
        """Draw the lines anew.

        Args:
            shares: of the steps that each running row has made.
        """
        for row in [row for row in self._tasks if row not in shares]:
            self._bar.remove_task(self._tasks.pop(row))
        for row, share in shares.items():
            if row not in self._tasks:
                self._tasks[row] = self._bar.add_task(row.command, total=1.0)
            self._bar.update(self._tasks[row], completed=share)
        share = self._share(shares)
        left = f", about {clock(self._left(share))} left" if share > FIRST_SHARE else ""
        self._bar.update(self._all, completed=share, description=f"{self._count} rows done{left}")

    @property
    def _count(self) -> str:
        return f"{len(self._done)}/{len(self._work)}"

    def _share(self, running: Mapping[Row, float]) -> float:
        made = sum(self._work[row] for row in self._done)
        made += sum(self._work[row] * share for row, share in running.items())
        return made / (sum(self._work.values()) or 1)

    def _left(self, share: float) -> float:
        return (time.monotonic() - self._begun) * (1 - share) / share


def _work(row: Row) -> float:
    """Return how much there is to do, in steps of all seeds."""
    settings = row.settings()
    return settings["num_seeds"] * settings["plan"]["total_steps"]
