"""A training run in a folder: chunks of one compiled program, with everything else between them on the host.

The outcome is the same, bit for bit, however the run is cut into chunks and however often it is stopped and continued,
and also if its budget is changed on the way (unless learning rates are annealed over that budget).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any

import jax

from algorithms.runs import logs, memory_need
from algorithms.runs.build import complete
from algorithms.runs.options import Interrupted as Interrupted
from algorithms.runs.options import Kept, Options
from algorithms.runs.programs import compile_programs
from algorithms.runs.progress import Progress, check_total, read_agent, read_origin
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.session import guarded, train
from algorithms.runs.settings import Settings
from algorithms.runs.side_by_side import shapes_of_all
from algorithms.training.loop import TrainState


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
            return train([(settings, run_folder)], programs, state, Progress(), options, kept, stops)[0]


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
            return train([(settings, run_folder)], programs, state, progress, options, kept, stops)[0]


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
                return train([(settings, run_folder)], programs, state, progress, options, kept, stops)[0]


def restore(folder: str | os.PathLike[str]) -> TrainState:
    """Return the state in the checkpoint of a run, the last finite one: leaves `[S, ...]`, also of one seed."""
    run_folder = RunFolder(folder)
    settings = run_folder.settings()
    state, _ = run_folder.restore(shapes_of_all(_shapes(settings)))
    return jax.tree.map(lambda leaf: leaf[None], state) if settings.num_seeds == 1 else state


def kept_options(*given: Mapping[str, Any]) -> Kept:
    """Return the options that stay with a run, of which the last ones given win; refuse logs that cannot be written."""
    kept = functools.reduce(Kept.over, given, Kept())
    logs.require(kept.log)
    return kept


def _shapes(settings: Settings) -> TrainState:
    return compile_programs(settings).shapes()
