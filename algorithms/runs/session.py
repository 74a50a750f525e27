"""The training loop of the host: chunk by chunk, with evaluations, checkpoints, logs and signals between them.

It trains one run, or the runs of a sweep side by side. If several processes train a run together, each of them is in
this loop. They agree before every chunk whether to save and whether to stop.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms.environments.goals import Goal
from algorithms.runs import logs, memory_need
from algorithms.runs.early_stop import EarlyStop
from algorithms.runs.options import Interrupted, Kept, Options, Report
from algorithms.runs.programs import Programs
from algorithms.runs.progress import Progress
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings
from algorithms.runs.signals import StopSignals
from algorithms.runs.watch import Watch, num_nonfinite
from algorithms.training.train_state import TrainState, phase_of
from jaxrl_buffers import _processes as processes
from jaxrl_buffers.types import PyTree

Metrics = dict[str, np.ndarray]  # of all seeds of all points, [P * S, ...]


class Stops(NamedTuple):
    """What may end a run before it has made all its steps."""

    signals: StopSignals
    early: EarlyStop


class Point(NamedTuple):
    """One of the runs side by side: the only one, or one of a sweep."""

    settings: Settings
    folder: RunFolder
    log: Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def guarded(options: Options) -> Generator[Stops]:
    """Remember signals, and explain a lack of memory."""
    early = EarlyStop(options)
    with StopSignals(options.on_signal) as signals, memory_need.explained():
        yield Stops(signals, early)


def train(
    runs: Sequence[tuple[Settings, RunFolder]],
    programs: Programs,
    state: TrainState | None,
    progress: Progress,
    options: Options,
    kept: Kept,
    stops: Stops,
) -> list[dict[str, Any]]:
    """Train runs side by side, each in its folder, and return their results.

    Args:
        runs: settings and folder of each run.
        programs: of all runs together.
        state: of all runs; None to begin from scratch.
        progress: how far that state is.
        options: what does not change the outcome.
        kept: the options that stay with the runs.
        stops: what may end the training early.
    """
    names = () if processes.job().index else kept.log  # other processes write no logs
    with contextlib.ExitStack() as stack:
        points = [
            Point(settings, folder, stack.enter_context(logs.opened(names, folder.path, settings, folder.metrics())))
            for settings, folder in runs
        ]
        return _Session(points, programs, progress, options, kept, stops).train(state)


class _Session:
    """What one process does for runs: it trains, saves and reports until they are done or stopped."""

    def __init__(
        self,
        points: list[Point],
        programs: Programs,
        progress: Progress,
        options: Options,
        kept: Kept,
        stops: Stops,
    ):
        settings = points[0].settings
        self._points, self._programs, self._progress = points, programs, progress
        self._options, self._kept, self._stops = options, kept, stops
        self._plan, self._num_seeds = settings.plan, len(points) * settings.num_seeds
        self._watch = Watch(options.on_notice, settings.environment, self._plan.on_nan, self._steps_kept)
        self._saved = -math.inf  # time of the last save; the first save is due at once
        self._is_drawn = False  # whether the curves show the last evaluation
        self._signal: int | None = None  # that stops the run, in whichever process it came
        self._stopped_by: str | None = None  # the option that ended the training early

    def train(self, state: TrainState | None) -> list[dict[str, Any]]:
        """Train up to the end of the plan, and return the results."""
        self._report("compiling")
        state = self._begin() if state is None else state
        # The first steps may have faults too. They are checked before anything is saved.
        self._watch.look(self._programs.read_sums(state), is_read=False)
        while True:
            is_due = self._agree()  # a signal that comes during the save is obeyed after the next chunk
            if self._signal or self._is_done or is_due:
                self._save(state)
            if self._signal:
                raise Interrupted(self._signal, self._progress.steps(self._plan))
            if self._is_done:
                return self._finish(state)
            state, metrics = self._advance(state)
            self._note(metrics)
            self._report("testing" if self._is_done else "training", metrics)

    @property
    def _is_done(self) -> bool:
        return self._progress.iteration >= self._plan.num_iterations or self._stopped_by is not None

    def _agree(self) -> bool:
        """Agree with the other processes whether a signal or an option stops the run; return whether a save is due.

        A signal counts in whichever process it comes. Everything else is decided by process 0.
        """
        is_due = time.monotonic() - self._saved > self._kept.checkpoint_seconds
        own = self._stops.signals.received, self._stopped_by, is_due
        of_all = processes.gather(processes.job(), own)
        self._signal = next((received for received, *_ in of_all if received), None)
        _, self._stopped_by, is_due = of_all[0]
        return is_due

    def _begin(self) -> TrainState:
        self._agree()
        if self._signal:
            raise Interrupted(self._signal, 0)
        return self._programs.init()

    def _save(self, state: TrainState) -> None:
        """Save every run, and draw its curve if there is something new in it."""
        for point, of_point in zip(self._points, self._programs.split(state), strict=True):
            is_finite = num_nonfinite(of_point.agent) == 0
            saved = self._programs.saved.pack(of_point)
            point.folder.save(saved, point.settings, self._progress._asdict(), is_finite)
            if not is_finite:
                self._watch.saved_nonfinite()
            if not self._is_drawn:
                point.folder.draw_curve(point.settings)
        self._is_drawn = True
        self._saved = time.monotonic()

    def _advance(self, state: TrainState) -> tuple[TrainState, Metrics | None]:
        """Run one chunk, and the evaluation after it if one is due."""
        plan, programs, before = self._plan, self._programs, self._progress
        chunk = before.chunk(plan, programs.most_iterations)
        compiled = programs.run(chunk, phase_of(plan, before.iteration))
        begun = time.monotonic()
        state = jax.block_until_ready(compiled(state))
        self._progress = before.after(plan, chunk, time.monotonic() - begun)
        is_test = self._progress.iteration == plan.interval(before.iteration)[1]
        self._watch.look(programs.read_sums(state), is_read=is_test)
        if not is_test:
            return state, None
        state, means = programs.read_metrics(state)
        number = self._progress.num_tests(plan) - 1
        returns, lengths = programs.evaluate(state.agent, number, plan.num_test_episodes)
        metrics = {name: np.asarray(mean) for name, mean in means.items() if name != "steps"}
        return state, metrics | _success(programs.goal, returns, lengths) | {"returns": returns}

    def _note(self, metrics: Metrics | None) -> None:
        """Write the metrics of an evaluation, if there was one, and check whether the training ends early."""
        if metrics is not None:
            for point, of_point in zip(self._points, _apart(metrics, len(self._points)), strict=True):
                summary = self._progress.summary(self._plan, point.settings.num_seeds)
                point.log(point.folder.append({**summary, **of_point}))
            self._is_drawn = False
            metrics = {**self._progress.summary(self._plan, self._num_seeds), **metrics}
        self._stopped_by = self._stops.early.reason(metrics)

    def _finish(self, state: TrainState) -> list[dict[str, Any]]:
        """Make the last evaluation, and write the results."""
        number = self._progress.num_tests(self._plan)
        episodes = self._programs.evaluate(state.agent, number, self._kept.final_episodes)
        is_early = self._progress.iteration < self._plan.num_iterations
        results = []
        parts = zip(self._points, self._programs.split(state), _apart(episodes, len(self._points)), strict=True)
        for point, of_point, (returns, lengths) in parts:
            result = {
                "algorithm": point.settings.algorithm,
                "environment": point.settings.environment,
                **self._progress.summary(self._plan, point.settings.num_seeds),
                **_result(self._programs.goal, returns, lengths),
                "nonfinite_numbers": num_nonfinite(of_point.agent),
                **({"stopped_by": self._stopped_by} if is_early else {}),
            }
            point.folder.finish(result)
            results.append(result)
        return results

    def _report(self, phase: str, metrics: Metrics | None = None) -> None:
        """Report the progress to the caller; stop if the reader of its output is gone."""
        plan, progress = self._plan, self._progress
        if 0 < plan.offline_updates >= progress.iteration:
            speed = self._num_seeds * progress.iteration / max(progress.offline_seconds, 1e-9)
            report = Report(phase, progress.iteration, plan.offline_updates, speed, metrics, "offline updates")
        else:
            speed = progress.summary(plan, self._num_seeds)["steps_per_second"]
            report = Report(phase, progress.steps(plan), plan.total_steps, speed, metrics)
        try:
            self._options.on_chunk(report)
        except BrokenPipeError:
            self._stops.signals.stop(getattr(signal, "SIGPIPE", signal.SIGTERM))  # Windows has no SIGPIPE

    def _steps_kept(self) -> int | None:
        """Return the number of steps after which all runs have a finite checkpoint; None if a run has none."""
        iterations = [point.folder.finite_iteration() for point in self._points]
        known = [iteration for iteration in iterations if iteration is not None]
        return Progress(min(known)).steps(self._plan) if len(known) == len(iterations) else None


def _result(goal: Goal | None, returns: np.ndarray, lengths: np.ndarray) -> dict[str, Any]:
    """Return what the last evaluation says, from episodes `[S, E]`."""
    result = {
        "mean_return": float(np.mean(returns)),
        "return_of_seeds": np.mean(returns, axis=1).tolist(),
        "mean_length": float(np.mean(lengths)),
        "episodes": returns.shape[1],
    }
    for success in _success(goal, returns, lengths).values():
        result |= {"mean_success": float(np.mean(success)), "success_of_seeds": success.tolist()}
    return result


def _success(goal: Goal | None, returns: np.ndarray, lengths: np.ndarray) -> Metrics:
    """Return the share of the episodes `[S, E]` of each seed in which the goal was reached, if there are goals."""
    return {} if goal is None else {"success": np.mean(goal.is_reached(returns, lengths), axis=1)}


def _apart(values: PyTree, num_points: int) -> Iterator[Any]:
    """Split arrays `[P * S, ...]`, and yield the part of each point."""
    for point in range(num_points):
        yield jax.tree.map(lambda value: np.split(value, num_points)[point], values)  # noqa: B023
