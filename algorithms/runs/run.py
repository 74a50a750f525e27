"""A training run in a folder. It runs chunks of one compiled program; everything else happens between them on the host.

The outcome is the same, bit for bit, however the run is cut into chunks and however often it is stopped and continued.
It is also the same if the budget is changed on the way, unless learning rates are annealed over this budget.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Mapping
from typing import Any

import jax

from algorithms.runs import devices, logs, memory_need
from algorithms.runs.build import Experiment, build_completed
from algorithms.runs.options import Interrupted as Interrupted
from algorithms.runs.options import Kept, Options
from algorithms.runs.programs import Programs, compile_programs
from algorithms.runs.progress import Progress, check_total, read_agent, read_origin
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.saved_states import SavedStates
from algorithms.runs.session import guarded, train
from algorithms.runs.settings import Settings, differing
from algorithms.runs.side_by_side import shapes_of_all
from algorithms.training.train_state import TrainState
from jaxrl_buffers import _processes as processes


def start(
    settings: Settings,
    folder: str | os.PathLike[str],
    options: Options = Options(),
    start_from: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Train a new run in a folder, which must not exist yet, and return the result.

    Args:
        settings: of the run.
        folder: of the run.
        options: what does not change the outcome.
        start_from: the folder of another run, which is only read. This run continues with the agent of that run. The
            buffer is new, steps count from 0, and the agent's policy takes the first steps. See also `fork`.

    Raises:
        Interrupted: because of Ctrl-C, SIGTERM or SIGHUP; the run can be resumed.
        NotFinite: with `on_nan="stop"`, because of the first number that is not finite.
        ValueError: also when there is not enough memory.
    """
    kept = kept_options(options._asdict())
    options = options.of_process()
    run_folder = RunFolder(folder)
    _require_same_job("start", run_folder)
    run_folder.require_new()  # checked first, because what follows takes seconds
    with guarded(options) as stops:
        # Refuse what is wrong before anything is written.
        settings, experiment = processes.all_or_none(
            processes.job(), lambda: build_completed(settings, options.on_notice)
        )
        programs = _prepared(settings, options, kept, experiment)
        like, state = programs.shapes(), None
        if start_from is None:
            run_folder.create(settings, kept._asdict())
        else:
            origin = RunFolder(start_from)
            state = programs.init(read_agent(origin, _shapes(origin.settings()), like))
            begun = {**kept._asdict(), "started_from": str(origin.path.absolute())}
            run_folder.create(settings, begun, (programs.saved.pack(state), Progress()._asdict()))
        with run_folder.lock(), contextlib.closing(programs):
            return train([(settings, run_folder)], programs, state, Progress(), options, kept, stops)[0]


def resume(
    folder: str | os.PathLike[str],
    options: Options = Options(),
    fresh_environments: bool = False,
    total_steps: int | None = None,
    num_devices: int | None = None,
) -> dict[str, Any]:
    """Continue the run in a folder from its checkpoint, as if it had never stopped, and return the result.

    A run that was killed before its first checkpoint begins from scratch.

    Args:
        folder: of the run.
        options: what does not change the outcome.
        fresh_environments: restore only agent and buffer, and begin new episodes. Stored episodes that were not
            finished are closed as by a time limit. A finished run does not change.
        total_steps: a new budget, also for a finished run: all environment steps, at least those that were made.
            Evaluations come at the same steps as if this had been the budget from the beginning; the one at the old end
            stays. Annealed learning rates follow the line over the new budget from here on.
        num_devices: how many devices share each seed from now on. By default as many as before, if these are all
            devices of several processes; otherwise all.

    Raises:
        Interrupted: because of Ctrl-C, SIGTERM or SIGHUP; the run can be resumed.
        NotFinite: with `on_nan="stop"`, because of the first number that is not finite.
        ValueError: also when another process writes to the folder, when its checkpoint is gone or damaged, or when
            there is not enough memory.
    """
    run_folder, given, options = RunFolder(folder), options, options.of_process()
    _require_same_job("resume", run_folder)
    with run_folder.lock(), guarded(options) as stops:
        changes = {"total_steps": total_steps, "devices": num_devices}
        settings, kept = processes.all_or_none(processes.job(), lambda: _to_resume(run_folder, given, changes))
        programs = _prepared(settings, options, kept)
        state, progress = None, Progress()
        if processes.on_first(processes.job(), lambda: run_folder.has_checkpoint):
            packed, saved = run_folder.restore(programs.saved.shapes, furthest=True)
            state, progress = programs.saved.unpack(packed), Progress.of(saved)
        go_on(run_folder, settings, progress, given, kept)
        with contextlib.closing(programs):
            begins_anew = fresh_environments or not programs.has_episodes
            if begins_anew and state is not None and progress.iteration < settings.plan.num_iterations:
                state = programs.begin_anew(state)
            return train([(settings, run_folder)], programs, state, progress, options, kept, stops)[0]


def go_on(folder: RunFolder, settings: Settings, progress: Progress, options: Options, kept: Kept) -> None:
    """Prepare the folder of a run to be continued from `progress`; the settings may have a new budget."""
    plan = settings.plan
    check_total(folder, plan, progress.steps(plan))
    folder.keep_settings(settings)
    folder.keep_metrics(progress.steps(plan), plan.updates(progress.iteration))
    if options.log is not None:
        folder.change_options({**folder.options(), "log": kept.log})


def fork(
    source: str | os.PathLike[str],
    settings: Settings,
    folder: str | os.PathLike[str],
    options: Options = Options(),
) -> dict[str, Any]:
    """Train a new run that begins with the agent and the buffer of another run; return the result.

    The new run takes over agent and buffer and begins new episodes. It continues to count steps where the other run is,
    so `total_steps` are the steps of both together. The other run is only read.

    Args:
        source: the folder of the other run.
        settings: of the new run, such as `dataclasses.replace(RunFolder(source).settings(), gamma=0.9)`; they
            may differ in anything that keeps the shapes of the agent's and the buffer's state.
        folder: of the new run; it must not exist yet.
        options: what does not change the outcome; None takes the value of the other run.

    Raises:
        Interrupted: because of Ctrl-C, SIGTERM or SIGHUP; the new run can be resumed.
        NotFinite: with `on_nan="stop"`, because of the first number that is not finite.
        ValueError: also when the settings do not fit the state.
    """
    origin, run_folder = RunFolder(source), RunFolder(folder)
    _require_same_job("fork", run_folder)
    run_folder.require_new()
    kept = kept_options(origin.options(), options._asdict())
    options = options.of_process()
    with guarded(options) as stops:
        settings, experiment = processes.all_or_none(
            processes.job(), lambda: build_completed(settings, options.on_notice)
        )
        programs = _prepared(settings, options, kept, experiment)
        agent, buffer, progress = read_origin(origin, settings, _shapes(origin.settings()), programs.saved)
        with contextlib.closing(programs):
            state = programs.adopt(agent, buffer, progress.iteration)
            forked_from = {"run": str(origin.path.absolute()), "steps": progress.steps(settings.plan)}
            begun = programs.saved.pack(state), progress._asdict()
            run_folder.create(settings, {**kept._asdict(), "forked_from": forked_from}, begun)
            with run_folder.lock():
                return train([(settings, run_folder)], programs, state, progress, options, kept, stops)[0]


def restore(folder: str | os.PathLike[str]) -> TrainState:
    """Return the last finite state that a run has saved; leaves are `[S, ...]`, even for one seed."""
    run_folder = RunFolder(folder)
    settings = run_folder.settings()
    like = shapes_of_all(_shapes(settings))
    saved = SavedStates(like, like, axis=int(settings.num_seeds > 1))
    state = saved.unpack(run_folder.restore(saved.shapes)[0])
    return jax.tree.map(lambda leaf: leaf[None], state) if settings.num_seeds == 1 else state


def _require_same_job(command: str, folder: RunFolder) -> None:
    """Refuse processes that were told to do different things, before any of them waits for what another never does."""
    _require_same({"command": command, "folder": str(folder.path)})


def _to_resume(folder: RunFolder, options: Options, changes: Mapping[str, int | None]) -> tuple[Settings, Kept]:
    """Return the settings of a run that is continued, and the options that stay with it.

    Args:
        folder: of the run.
        options: what does not change the outcome.
        changes: values of the plan that differ from now on. None keeps the run's value. For `devices`, None chooses the
            number from the devices that are present.
    """
    settings = folder.settings()
    kept = kept_options(folder.options(), options._asdict())
    folder.metrics()  # refuses metrics that could not be drawn at the end
    if changes["devices"] is None:
        changes = {**changes, "devices": devices.on_resume(settings)}
    given = {name: value for name, value in changes.items() if value is not None}
    return dataclasses.replace(settings, plan=dataclasses.replace(settings.plan, **given)), kept


def _prepared(settings: Settings, options: Options, kept: Kept, experiment: Experiment | None = None) -> Programs:
    """Return the programs of a run.

    Refuse what is wrong or too large, and settings that are not the same in all processes that train the run.

    Args:
        settings: of the run.
        options: what does not change the outcome.
        kept: the options that stay with the run.
        experiment: the components of the run, if they are built already.
    """
    _require_same(kept._asdict() | settings.to_dict())

    def compiled() -> Programs:
        devices.check(settings)
        programs = compile_programs(settings, options.cores, experiment)
        memory_need.check(programs.shapes())
        return programs

    return processes.all_or_none(processes.job(), compiled)


def _require_same(values: Mapping[str, Any]) -> None:
    """Refuse to go on if another process of the run has other values, such as settings, than process 0.

    Args:
        values: values that JSON can express, by name.
    """
    own = json.loads(json.dumps(dict(values)))  # tuples become lists, as in what the others give
    first, *others = processes.gather(processes.job(), own)
    for process, other in enumerate(others, 1):
        if names := differing(first, other):
            raise ValueError(
                f"process {process} was started with other values than process 0: {', '.join(names)}; start all "
                "processes with the same command and the same files."
            )


def kept_options(*given: Mapping[str, Any]) -> Kept:
    """Return the options to save with a run; later arguments win. Refuse logs that cannot be written."""
    kept = functools.reduce(Kept.over, given, Kept())
    logs.require(kept.log)
    return kept


def _shapes(settings: Settings) -> TrainState:
    """Return the shapes of the state of a run, as if one device had everything."""
    plan = dataclasses.replace(settings.plan, devices=1)
    return compile_programs(dataclasses.replace(settings, plan=plan)).shapes()
