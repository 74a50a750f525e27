"""The options of a run besides its settings, and what a run reports between chunks."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from algorithms.runs import logs
from algorithms.training.plan import MAX_EPISODES
from jaxrl_buffers import _processes as processes
from jaxrl_buffers import config
from jaxrl_buffers._checks import require_integer, require_number


class Interrupted(Exception):
    """The run was asked to stop. Its state has been saved, and `resume` continues from there."""

    def __init__(self, signal_number: int, steps: int):
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after {steps:,} steps")
        self.signal_number = signal_number

    @property
    def is_unseen(self) -> bool:
        """Whether nobody can read a message: the terminal was closed, or the reader of a pipe is gone."""
        return signal.Signals(self.signal_number).name in ("SIGHUP", "SIGPIPE")


class Report(NamedTuple):
    """The progress of a run between chunks."""

    phase: str  # what comes next: "compiling", "training", or "testing" the last policy
    steps: int  # environment steps of each seed
    total_steps: int
    steps_per_second: float  # of all seeds together
    metrics: Mapping[str, Any] | None  # after an evaluation: arrays [S], returns [S, E]
    unit: str = "steps"  # or "offline updates", which are then counted instead of steps
    run: str = ""  # which run of a sweep this is, if its runs are trained one after the other


def _warn(line: str) -> None:
    warnings.warn(line, RuntimeWarning, stacklevel=2)


class Options(NamedTuple):
    """Options of a run that do not change its outcome.

    If several processes train a run together, the functions are called in process 0, except `on_signal`.

    Args:
        on_chunk: called before the first chunk, between chunks, and before the last evaluation. A `BrokenPipeError`,
            from printing where nobody reads, stops the run as SIGTERM does.
        checkpoint_seconds: seconds between two saves of the state, which is also saved at the end, on Ctrl-C and on
            SIGTERM. None for the value that the run was started with; 60 for a new run.
        final_episodes: episodes of the last, deterministic evaluation of every seed. None for the value that the
            run was started with; 100 for a new run.
        on_signal: called at once, in another thread, with the number of every signal that asks the run to stop.
        on_notice: called with a message of one line, such as when a first number is not finite; by default a warning.
        log: other logs to write beside metrics.jsonl, some of `csv`, `tensorboard` and `wandb`. None for those that
            the run already has; a new run has none.
        on_evaluation: called after every evaluation with the values that metrics.jsonl gets: `steps`, `seconds`,
            `steps_per_second`, metrics `[S]` and `returns` `[S, E]`. If it returns True, the run stops there: as at
            its end, it is saved, tested and gets a result. It can be resumed.
        max_time: stop in the same way after so many seconds of this call, at the end of a chunk. The last checkpoint
            and evaluation take some more time. Not saved with the run.
        stop_at_return: stop in the same way after an evaluation whose mean return, over all episodes of all seeds, is
            at least this. Not saved with the run.
        cores: how many seeds run at a time on a CPU; None for as many as there are cores.
    """

    on_chunk: Callable[[Report], None] = lambda report: None
    checkpoint_seconds: float | None = None
    final_episodes: int | None = None
    on_signal: Callable[[int], None] | None = None
    on_notice: Callable[[str], None] = _warn
    log: Sequence[str] | None = None
    on_evaluation: Callable[[Mapping[str, Any]], bool | None] = lambda metrics: False
    max_time: float | None = None
    stop_at_return: float | None = None
    cores: int | None = None

    def of_process(self) -> Options:
        """Return the options with which this process trains. Only the first of several reports and decides."""
        if not processes.job().index:
            return self
        return Options(
            on_signal=self.on_signal,
            on_notice=lambda line: None,
            final_episodes=self.final_episodes,
            cores=self.cores,
        )


class Kept(NamedTuple):
    """The options that are saved with a run, with their defaults."""

    checkpoint_seconds: float = 60.0
    final_episodes: int = 100
    log: tuple[str, ...] = ()

    def over(self, values: Mapping[str, Any]) -> Kept:
        """Return these options with the given values in place of their own."""
        given = {name: values[name] for name in self._fields if values.get(name) is not None}
        kept = self._replace(**config.check(Kept, given, self._fields))
        require_number("run", "checkpoint_seconds", kept.checkpoint_seconds, 0)
        require_integer("run", "final_episodes", kept.final_episodes, 1, MAX_EPISODES)
        return kept._replace(log=logs.chosen(kept.log))
