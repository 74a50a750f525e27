"""A training run in a folder: chunks of one compiled program, with everything else between them on the host.

The outcome is the same, bit for bit, however the run is cut into chunks and however often it is stopped and continued,
and also if its budget is changed on the way (unless learning rates are annealed over that budget).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms.environments.goals import Goal
from algorithms.runs import logs, memory_need
from algorithms.runs.build import complete
from algorithms.runs.early_stop import EarlyStop
from algorithms.runs.options import Interrupted, Kept, Options, Report
from algorithms.runs.programs import Programs, compile_programs
from algorithms.runs.progress import Progress, check_total, read_agent, read_origin
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings
from algorithms.runs.side_by_side import shapes_of_all
from algorithms.runs.signals import StopSignals
from algorithms.runs.watch import Watch, num_nonfinite
from algorithms.training.loop import TrainState, phase_of
from algorithms.training.plan import Plan


def start(
    settings: Settings,
    folder: str | os.PathLike[str],
    options: Options = Options(),
    start_from: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Train in a folder, which must not exist, and return the result.

    Args:
        settings: of the run.
        folder: of the run.
        options: what does not change the outcome.
        start_from: the folder of another run, which is only read, whose agent goes on in this one as it is. The buffer
            is new, steps count from 0, and the first ones are those of the agent's policy. See also `fork`.

    Raises:
        Interrupted: because of Ctrl-C, SIGTERM or SIGHUP; the run can be resumed.
        NotFinite: with `on_nan="stop"`, because of the first number that is not finite.
        ValueError: also when there is not enough memory.
    """
    kept = kept_options(options._asdict())
    run_folder = RunFolder(folder)
    run_folder.require_new()  # which takes seconds less than what follows
    with guarded(options) as stops:
        settings = complete(settings)  # refuses what is wrong before anything is written
        programs = compile_programs(settings, options.cores)
        like = programs.shapes()
        memory_need.check(like)
        state = None
        if start_from is None:
            run_folder.create(settings, kept._asdict())
        else:
            origin = RunFolder(start_from)
            state = programs.init(read_agent(origin, _shapes(origin.settings()), like))
            begun = {**kept._asdict(), "started_from": str(origin.path.absolute())}
            run_folder.create(settings, begun, (state, Progress()._asdict()))
        with run_folder.lock(), contextlib.closing(programs):
            return _train(settings, run_folder, programs, state, Progress(), options, kept, stops)


def resume(
    folder: str | os.PathLike[str],
    options: Options = Options(),
    fresh_environments: bool = False,
    total_steps: int | None = None,
) -> dict[str, Any]:
    """Continue the run in a folder from its checkpoint, as if it had never stopped, and return the result.

    A run that was killed before its first checkpoint begins from scratch.

    Args:
        folder: of the run.
        options: what does not change the outcome.
        fresh_environments: restore agent and buffer only, and begin new episodes; the stored ones that were under way
            are closed as by a time limit. A finished run stays as it is.
        total_steps: a new budget of the run, also of a finished one: environment steps in all, not below those that
            were made. Evaluations are where they would be if it had been the budget from the beginning, and where the
            run had ended. Learning rates that are annealed go on along the line over the new budget.

    Raises:
        Interrupted: because of Ctrl-C, SIGTERM or SIGHUP; the run can be resumed.
        NotFinite: with `on_nan="stop"`, because of the first number that is not finite.
        ValueError: also when another process writes to the folder, when its checkpoint is gone or damaged, or when
            there is not enough memory.
    """
    run_folder = RunFolder(folder)
    with run_folder.lock(), guarded(options) as stops:
        settings = run_folder.settings()
        kept = kept_options(run_folder.options(), options._asdict())
        run_folder.metrics()  # refuses those that could not be drawn in the end
        if total_steps is not None:
            settings = dataclasses.replace(settings, plan=dataclasses.replace(settings.plan, total_steps=total_steps))
        programs = compile_programs(settings, options.cores)
        like = programs.shapes()
        memory_need.check(like)
        state, progress = None, Progress()
        if run_folder.has_checkpoint:
            state, saved = run_folder.restore(like, furthest=True)
            progress = Progress.of(saved)
        go_on(run_folder, settings, progress, options, kept)
        with contextlib.closing(programs):
            begins_anew = fresh_environments or not programs.keeps_episodes
            if begins_anew and state is not None and progress.iteration < settings.plan.num_iterations:
                state = programs.begin_anew(state)
            return _train(settings, run_folder, programs, state, progress, options, kept, stops)


def go_on(folder: RunFolder, settings: Settings, progress: Progress, options: Options, kept: Kept) -> None:
    """Make the folder of a run ready to be continued from some progress, with settings whose budget may be new."""
    plan = settings.plan
    check_total(folder, plan, progress.steps(plan))
    if settings != folder.settings():
        folder.change_settings(settings)
    folder.keep_metrics(progress.steps(plan), plan.updates(progress.iteration))
    if options.log is not None:
        folder.change_options({**folder.options(), "log": kept.log})


def fork(
    source: str | os.PathLike[str],
    settings: Settings,
    folder: str | os.PathLike[str],
    options: Options = Options(),
) -> dict[str, Any]:
    """Train in a folder, which must not exist, from what another run has learned and stored; return the result.

    The new run takes over agent and buffer, begins new episodes, and goes on counting steps from where the other one
    is: `total_steps` are those of both together. The other run is only read.

    Args:
        source: the folder of the other run.
        settings: of the new run, such as `dataclasses.replace(RunFolder(source).settings(), gamma=0.9)`; anything may
            be changed that leaves the shapes of the agent's and the buffer's state as they are.
        folder: of the new run.
        options: what does not change the outcome; those of the other run where they are None.

    Raises:
        Interrupted: because of Ctrl-C, SIGTERM or SIGHUP; the new run can be resumed.
        NotFinite: with `on_nan="stop"`, because of the first number that is not finite.
        ValueError: also when the settings do not fit to the state.
    """
    origin, run_folder = RunFolder(source), RunFolder(folder)
    run_folder.require_new()
    kept = kept_options(origin.options(), options._asdict())
    with guarded(options) as stops:
        settings = complete(settings)
        programs = compile_programs(settings, options.cores)
        agent, buffer, progress = read_origin(origin, settings, _shapes(origin.settings()), _shapes(settings))
        with contextlib.closing(programs):
            state = programs.adopt(agent, buffer, progress.iteration)
            forked_from = {"run": str(origin.path.absolute()), "steps": progress.steps(settings.plan)}
            run_folder.create(settings, {**kept._asdict(), "forked_from": forked_from}, (state, progress._asdict()))
            with run_folder.lock():
                return _train(settings, run_folder, programs, state, progress, options, kept, stops)


def restore(folder: str | os.PathLike[str]) -> TrainState:
    """Return the state in the checkpoint of a run, the last finite one: leaves `[S, ...]`, also of one seed."""
    run_folder = RunFolder(folder)
    settings = run_folder.settings()
    state, _ = run_folder.restore(shapes_of_all(_shapes(settings)))
    return jax.tree.map(lambda leaf: leaf[None], state) if settings.num_seeds == 1 else state


class Stops(NamedTuple):
    """What may end a run before it has made all its steps."""

    signals: StopSignals
    early: EarlyStop


@contextlib.contextmanager
def guarded(options: Options) -> Generator[Stops]:
    """Remember signals, and explain a lack of memory."""
    early = EarlyStop(options)
    with StopSignals(options.on_signal) as signals, memory_need.explained():
        yield Stops(signals, early)


def kept_options(*given: Mapping[str, Any]) -> Kept:
    """Return the options that stay with a run, of which the last ones given win; refuse logs that cannot be written."""
    kept = functools.reduce(Kept.over, given, Kept())
    logs.require(kept.log)
    return kept


def _shapes(settings: Settings) -> TrainState:
    return compile_programs(settings).shapes()


def _train(
    settings: Settings,
    folder: RunFolder,
    programs: Programs,
    state: TrainState | None,
    progress: Progress,
    options: Options,
    kept: Kept,
    stops: Stops,
) -> dict[str, Any]:
    return train_points([(settings, folder)], programs, state, progress, options, kept, stops)[0]


class Point(NamedTuple):
    """One of the runs side by side: the only one, or one of a sweep."""

    settings: Settings
    folder: RunFolder
    log: Callable[[Mapping[str, Any]], None]


def train_points(
    points: Sequence[tuple[Settings, RunFolder]],
    programs: Programs,
    state: TrainState | None,  # None to begin from scratch
    progress: Progress,
    options: Options,
    kept: Kept,
    stops: Stops,
) -> list[dict[str, Any]]:
    """Train runs side by side, each in its folder, and return their results."""
    with contextlib.ExitStack() as stack:
        opened = [
            Point(settings, folder, stack.enter_context(logs.opened(kept.log, folder.path, settings, folder.metrics())))
            for settings, folder in points
        ]
        return _train_logged(opened, programs, state, progress, options, kept, stops)


def _train_logged(
    points: list[Point],
    programs: Programs,
    state: TrainState | None,
    progress: Progress,
    options: Options,
    kept: Kept,
    stops: Stops,
) -> list[dict[str, Any]]:
    settings, signals = points[0].settings, stops.signals
    plan = settings.plan
    watch = Watch(options.on_notice, settings.environment, plan.on_nan, lambda: _kept_steps(points))

    def tell(phase: str, metrics: Mapping[str, Any] | None = None) -> None:
        try:
            options.on_chunk(_report(phase, settings, len(points), progress, metrics))
        except BrokenPipeError:
            signals.stop(getattr(signal, "SIGPIPE", signal.SIGTERM))  # the former is unknown to Windows

    tell("compiling")
    if state is None:
        if signals.received:
            raise Interrupted(signals.received, 0)
        state = programs.init()
    watch.look(state.sums, is_read=False)  # of the warm-up, before anything is saved
    saved = -math.inf  # the first save is due at once
    is_drawn = False
    stopped_by = None
    while True:
        is_done = progress.iteration >= plan.num_iterations or stopped_by is not None
        stop = signals.received  # one that comes during the save is obeyed after the next chunk
        if stop or is_done or time.monotonic() - saved > kept.checkpoint_seconds:
            for point, of_point in zip(points, programs.split(state), strict=True):
                is_finite = num_nonfinite(of_point.agent) == 0
                point.folder.save(of_point, point.settings, progress._asdict(), is_finite)
                if not is_finite:
                    watch.saved_nonfinite()
                if not is_drawn:
                    point.folder.draw_curve()
            is_drawn = True
            saved = time.monotonic()
        if stop:
            raise Interrupted(stop, progress.steps(plan))
        if is_done:
            break
        state, progress, metrics = _advance(settings, programs, state, progress, watch)
        if metrics is not None:
            for point, of_point in zip(points, _apart(metrics, len(points)), strict=True):
                point.log(point.folder.append({**_summary(point.settings, progress), **of_point}))
            is_drawn = False
        stopped_by = stops.early.reason(metrics and {**_summary(settings, progress, len(points)), **metrics})
        is_last = progress.iteration >= plan.num_iterations or stopped_by is not None
        tell("testing" if is_last else "training", metrics)
    episodes = programs.evaluate(state.agent, progress.num_tests(plan), kept.final_episodes)
    results = []
    for point, of_point, part in zip(points, programs.split(state), _apart(episodes, len(points)), strict=True):
        result = _result(point.settings, progress, programs.goal, *part) | {
            "nonfinite_numbers": num_nonfinite(of_point.agent)
        }
        result |= {"stopped_by": stopped_by} if progress.iteration < plan.num_iterations else {}
        point.folder.finish(result)
        results.append(result)
    return results


def _result(
    settings: Settings, progress: Progress, goal: Goal | None, returns: np.ndarray, lengths: np.ndarray
) -> dict[str, Any]:
    """Return what the last evaluation says, episodes `[S, E]`."""
    result = {
        "algorithm": settings.algorithm,
        "environment": settings.environment,
        **_summary(settings, progress),
        "mean_return": float(np.mean(returns)),
        "return_of_seeds": np.mean(returns, axis=1).tolist(),
        "mean_length": float(np.mean(lengths)),
        "episodes": returns.shape[1],
    }
    for success in _success(goal, returns, lengths).values():
        result |= {"mean_success": float(np.mean(success)), "success_of_seeds": success.tolist()}
    return result


def _apart(values: Any, num_points: int) -> Iterator[Any]:
    """Yield the part of each point of arrays `[P * S, ...]`."""
    for point in range(num_points):
        yield jax.tree.map(lambda value: np.split(value, num_points)[point], values)  # noqa: B023


def _kept_steps(points: list[Point]) -> int | None:
    iterations = [point.folder.finite_iteration() for point in points]
    known = [iteration for iteration in iterations if iteration is not None]
    return Progress(min(known)).steps(points[0].settings.plan) if len(known) == len(points) else None


def _advance(
    settings: Settings, programs: Programs, state: TrainState, progress: Progress, watch: Watch
) -> tuple[TrainState, Progress, dict[str, np.ndarray] | None]:
    """Run one chunk, and the evaluation behind it if one is due."""
    plan = settings.plan
    chunk = _chunk(plan, progress.iteration)
    compiled = programs.run(chunk, phase_of(plan, progress.iteration))
    begun = time.monotonic()
    state = jax.block_until_ready(compiled(state))
    progress, metrics = progress.after(plan, chunk, time.monotonic() - begun), None
    is_test = progress.iteration == plan.interval(progress.iteration - 1)[1]
    watch.look(state.sums, is_read=is_test)
    if is_test:
        state, means = programs.read_metrics(state)
        number = progress.num_tests(plan) - 1
        returns, lengths = programs.evaluate(state.agent, number, plan.num_test_episodes)
        metrics = {name: np.asarray(mean) for name, mean in means.items() if name != "steps"}
        metrics |= {**_success(programs.goal, returns, lengths), "returns": returns}
    return state, progress, metrics


def _success(goal: Goal | None, returns: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """Return in which part of the episodes `[S, E]` of each seed the goal was reached, if there are goals."""
    return {} if goal is None else {"success": np.mean(goal.is_reached(returns, lengths), axis=1)}


def _chunk(plan: Plan, iteration: int) -> int:
    """Return how many iterations to run now: never across an evaluation, and about ten chunks between two of them."""
    tested, next_test = plan.interval(iteration)
    interval = next_test - tested
    # Even parts, so that one compiled program serves them all. A run whose budget was changed may be between them.
    part = next(interval // parts for parts in (10, 8, 12, 5, 4, 3, 2, 1) if interval % parts == 0)
    return min(part, next_test - iteration)


def _summary(settings: Settings, progress: Progress, num_points: int = 1) -> dict[str, Any]:
    return progress.summary(settings.plan, num_points * settings.num_seeds)


def _report(
    phase: str, settings: Settings, num_points: int, progress: Progress, metrics: Mapping[str, Any] | None
) -> Report:
    plan = settings.plan
    if 0 < plan.offline_updates >= progress.iteration:
        speed = num_points * settings.num_seeds * progress.iteration / max(progress.offline_seconds, 1e-9)
        return Report(phase, progress.iteration, plan.offline_updates, speed, metrics, "offline updates")
    speed = _summary(settings, progress, num_points)["steps_per_second"]
    return Report(phase, progress.steps(plan), plan.total_steps, speed, metrics)
