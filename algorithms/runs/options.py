"""What a run is told besides its settings, and what it tells between chunks."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from algorithms.runs import logs
from algorithms.training.plan import MAX_EPISODES
from jaxrl_buffers import config
from jaxrl_buffers._checks import require_integer, require_number


class Interrupted(Exception):
    """The run was asked to stop; what it had reached has been saved, and `resume` goes on from there."""

    def __init__(self, signal_number: int, steps: int):
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after {steps:,} steps")
        self.signal_number = signal_number

    @property
    def is_unseen(self) -> bool:
        """Whether nobody is there to be told: the terminal is closed, or the reader of a pipe gone."""
        return signal.Signals(self.signal_number).name in ("SIGHUP", "SIGPIPE")


class Report(NamedTuple):
    """What is known between chunks."""

    phase: str  # what comes next: "compiling", "training", or "testing" the last policy
    steps: int  # environment steps of each seed
    total_steps: int
    steps_per_second: float  # of all seeds together
    metrics: Mapping[str, Any] | None  # after an evaluation: arrays [S], returns [S, E]
    unit: str = "steps"  # or "offline updates", which are then counted in the place of steps


def _warn(line: str) -> None:
    warnings.warn(line, RuntimeWarning, stacklevel=2)


class Options(NamedTuple):
    """What does not change the outcome.

    Args:
        on_chunk: called before the first chunk, between chunks, and before the last evaluation. A `BrokenPipeError`,
            from printing where nobody reads, stops the run as SIGTERM does.
        checkpoint_seconds: how often the state is saved; it also is at the end, on Ctrl-C and on SIGTERM. None for
            what the run was started with, and 60 for a new one.
        final_episodes: episodes of the last, deterministic evaluation of every seed. None for what the run was started
            with, and 100 for a new one.
        on_signal: called with the number of every signal that asks to stop, at once and from another thread.
        on_notice: called with a line for people, such as when a first number is not finite; a warning by default.
        log: other logs to write beside metrics.jsonl, some of `csv`, `tensorboard` and `wandb`. None for those that
            the run has, and none for a new one.
        on_evaluation: called after every evaluation with what metrics.jsonl gets: `steps`, `seconds`,
            `steps_per_second`, metrics `[S]` and `returns` `[S, E]`. If it returns True, the run stops there: it is
            saved, tested and gets a result, as at its end, and can be resumed.
        max_time: stop like that after so many seconds of this call, at the end of a chunk; what follows (a checkpoint,
            the last evaluation) comes on top. Not kept with the run.
        stop_at_return: stop like that after an evaluation whose mean return, over all episodes of all seeds, is at
            least this. Not kept with the run.
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


class Kept(NamedTuple):
    """The options that stay with a run, with their defaults."""

    checkpoint_seconds: float = 60.0
    final_episodes: int = 100
    log: tuple[str, ...] = ()

    def over(self, values: Mapping[str, Any]) -> Kept:
        """Return these options, but for the values that are given."""
        given = {name: values[name] for name in self._fields if values.get(name) is not None}
        kept = self._replace(**config.check(Kept, given, self._fields))
        require_number("run", "checkpoint_seconds", kept.checkpoint_seconds, 0)
        require_integer("run", "final_episodes", kept.final_episodes, 1, MAX_EPISODES)
        return kept._replace(log=logs.chosen(kept.log))
