"""What a command line of `python -m algorithms train` asks for, and how it is done."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from algorithms.runs import run, sweeps
from algorithms.runs.command_options import Option
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings


class Command(NamedTuple):
    """What a command line asks for."""

    settings: Settings
    out: Path | None = None
    resume: Path | None = None
    fork: Path | None = None
    start_from: Path | None = None
    fresh_environments: bool = False
    checkpoint_seconds: float | None = None
    final_episodes: int | None = None
    log: list[str] | None = None
    max_time: float | None = None
    stop_at_return: float | None = None
    cores: int | None = None
    sweep: dict[str, list[Any]] | None = None  # values by the names of settings
    total_steps: int | None = None  # a new budget of a run that is resumed
    devices: int | None = None  # a new number of devices of a run that is resumed
    distributed: bool = False  # this and the next three are obeyed before the command is parsed; see `cluster`
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    notice: str | None = None  # what the user should know before the run begins
    explained: tuple[Option, ...] = ()  # the options to show, if the command asks for help

    @property
    def folder(self) -> Path:
        """The folder of the run, or of the sweep."""
        settings = self.settings
        environment = re.sub(r"[^\w.-]", "_", settings.environment)  # some names contain : or /
        kind = "sweep" if self.sweep else f"seed{settings.seed}"
        return self.resume or self.out or Path("runs") / f"{settings.algorithm}_{environment}_{kind}"

    @property
    def is_sweep(self) -> bool:
        """Whether there are several runs side by side."""
        return self.sweep is not None or (self.resume is not None and sweeps.is_sweep(self.resume))

    @property
    def run_folders(self) -> list[RunFolder]:
        """The folders of all runs, once they exist."""
        return run_folders(self.folder)

    def train(self, options: run.Options) -> sweeps.Results:
        """Start, resume or fork the run, or the runs of a sweep; return results by point, `""` for a run alone."""
        if self.sweep is not None:
            return sweeps.start(self.settings, self.sweep, self.folder, options)
        if self.resume is not None:
            changes = self.fresh_environments, self.total_steps
            if self.is_sweep:
                return sweeps.resume(self.resume, options, *changes)
            return {"": run.resume(self.resume, options, *changes, self.devices)}
        if self.fork is not None:
            return {"": run.fork(self.fork, self.settings, self.folder, options)}
        return {"": run.start(self.settings, self.folder, options, self.start_from)}


def run_folders(folder: Path) -> list[RunFolder]:
    """Return the folder of a run, or those of all runs of a sweep."""
    return [*sweeps.runs_of(folder).values()] if sweeps.is_sweep(folder) else [RunFolder(folder)]
