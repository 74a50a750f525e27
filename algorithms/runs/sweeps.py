"""Sweeps: runs that differ in hyper-parameters, trained side by side by the same programs.

A sweep is a folder with a run folder for each of its points, such as `agent.learning_rate=0.001`. Each is a run like
any other: it can be plotted, compared, evaluated, forked and resumed by itself. If environments are stepped on the
host, the runs are trained one after the other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from algorithms.environments import Environment
from algorithms.runs import devices, memory_need, run, session
from algorithms.runs.build import build, complete
from algorithms.runs.command_options import options_of_settings
from algorithms.runs.files import parse_json, read_text
from algorithms.runs.options import Options, Report
from algorithms.runs.programs import Programs, compile_points
from algorithms.runs.progress import Progress
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings
from algorithms.runs.varied import Varied
from algorithms.training.train_state import TrainState
from jaxrl_buffers import _durable as durable
from jaxrl_buffers._checks import shown

# Settings that hold hyper-parameters or seeds. Points may differ only in these.
WITH_PARAMETERS = ("agent", "sampler", "rollout", "buffer", "gamma", "hindsight_ratio", "averaging", "seed")
Results = dict[str, dict[str, Any]]  # by the name of the point


def start(
    settings: Settings,
    values: Mapping[str, Sequence[Any]],
    folder: str | os.PathLike[str],
    options: Options = Options(),
) -> Results:
    """Train a run for every value, or every combination of values, side by side; return the result of each.

    Args:
        settings: what all runs have in common.
        values: the values of each setting, by its name in config.json, such as `{"agent.learning_rate": [1e-4, 1e-3]}`.
            They must be numbers that do not change the compiled program (see `can_be_swept`), unless environments are
            stepped on the host.
        folder: of the sweep, which must not exist. It gets a subfolder for the run of each point.
        options: as for `run.start`. `on_chunk` and `on_evaluation` get arrays with the seeds of all points, one point
            after the other. `stop_at_return` is refused. If environments are stepped on the host, the options hold for
            each run by itself.

    Raises:
        Interrupted: because of Ctrl-C, SIGTERM or SIGHUP; the sweep can be resumed.
        NotFinite: with `on_nan="stop"`, because of the first number of any point that is not finite.
        ValueError: also when something cannot be swept side by side.
    """
    kept = _kept(options)
    RunFolder(folder).require_new()
    if _is_on_host(settings):
        _create(Path(folder), points_of(settings, values), kept._asdict())
        return _one_after_the_other(runs_of(folder), options)
    with session.guarded(options) as stops:
        points = points_of(settings, values)
        programs = compile_points(list(points.values()), options.cores)
        memory_need.check(programs.shapes())
        _create(Path(folder), points, kept._asdict())
        folders = runs_of(folder)
        with _locked(folders.values()):
            pairs = [(points[name], folders[name]) for name in points]
            results = session.train(pairs, programs, None, Progress(), options, kept, stops)
    return dict(zip(points, results, strict=True))


def resume(
    folder: str | os.PathLike[str],
    options: Options = Options(),
    fresh_environments: bool = False,
    total_steps: int | None = None,
) -> Results:
    """Continue all runs of a sweep from the last step that all have saved; return their results. See `run.resume`.

    Raises:
        ValueError: also when one run was continued by itself, so that the runs have no saved step in common.
    """
    folders = runs_of(folder)
    if _is_on_host(next(iter(folders.values())).settings()):
        _kept(options)  # refuses what is not for sweeps
        return _one_after_the_other(folders, options, fresh_environments, total_steps)
    with _locked(folders.values()), session.guarded(options) as stops:
        points = [one.settings() for one in folders.values()]
        kept = _kept(options, next(iter(folders.values())).options())
        if total_steps is not None:
            points = [
                dataclasses.replace(point, plan=dataclasses.replace(point.plan, total_steps=total_steps))
                for point in points
            ]
        _require_alike(folder, points)
        programs = compile_points(points, options.cores)
        memory_need.check(programs.shapes())
        state, progress = _restore(folders, programs)
        pairs = list(zip(points, folders.values(), strict=True))
        for point, one in pairs:
            run.go_on(one, point, progress, options, kept)
        if fresh_environments and state is not None and progress.iteration < points[0].plan.num_iterations:
            state = programs.begin_anew(state)
        results = session.train(pairs, programs, state, progress, options, kept, stops)
    return dict(zip(folders, results, strict=True))


def is_sweep(folder: str | os.PathLike[str]) -> bool:
    """Return whether this is the folder of a sweep, not of a run."""
    return _file(folder).is_file()


def runs_of(folder: str | os.PathLike[str]) -> dict[str, RunFolder]:
    """Return the runs of a sweep, by the names of its points."""
    try:
        names = parse_json(read_text(_file(folder)))["points"]
        return {name: RunFolder(Path(folder) / name) for name in names}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{_file(folder)} does not hold the points of a sweep: {error!r}") from None


def points_of(settings: Settings, values: Mapping[str, Sequence[Any]]) -> dict[str, Settings]:
    """Return the settings of every point by its name; refuse what cannot be swept.

    Example:
        >>> from algorithms import Plan
        >>> settings = Settings("ddqn", "CartPole-v1", Plan(total_steps=2_000))
        >>> list(points_of(settings, {"agent.learning_rate": [1e-4, 1e-3], "gamma": [0.9]}))
        ['agent.learning_rate=0.0001,gamma=0.9', 'agent.learning_rate=0.001,gamma=0.9']
    """
    settings = complete(devices.for_sweep(settings))
    if not values or not all(values.values()):
        raise ValueError("a sweep needs at least one setting, and at least one value of each.")
    for name, choices in values.items():
        if len({str(choice) for choice in choices}) < len(choices):
            raise ValueError(f"--sweep {name}: got {shown(list(choices))}, expected every value once.")
    if not _is_on_host(settings):
        _require_side_by_side(settings, values)
    combinations = [dict(zip(values, choices, strict=True)) for choices in itertools.product(*values.values())]
    names = [",".join(f"{name}={value}" for name, value in changes.items()) for changes in combinations]
    points = [changed(settings, changes) for changes in combinations]
    for point in points:
        build(point)  # refuses what is wrong
    return dict(zip(names, points, strict=True))


def _require_side_by_side(settings: Settings, values: Mapping[str, Sequence[Any]]) -> None:
    """Refuse values with which runs cannot share their programs and their data set."""
    if settings.dataset is not None and not all(name.startswith("agent.") for name in values):
        # The data set is stored once, with the priorities from the buffer of the first point.
        raise ValueError("--sweep: with a data set only settings of the agent can be swept; start separate runs.")
    for name, choices in values.items():
        varied = _varied([changed(settings, {name: choice}) for choice in choices])
        if varied is None or (len(choices) > 1 and not varied.values and name != "seed"):
            problem = "need programs of their own; start separate runs for them" if varied is None else "change nothing"
            raise ValueError(
                f"--sweep {name}: the values {', '.join(map(str, choices))} {problem}. What can be swept: "
                f"{', '.join(can_be_swept(settings))}."
            )


def _is_on_host(settings: Settings) -> bool:
    return not isinstance(build(settings).env, Environment)


def _one_after_the_other(folders: Mapping[str, RunFolder], options: Options, *changes: Any) -> Results:
    """Begin or continue each run by itself, with the `changes` of `resume`; leave out those that are finished."""
    results = {}
    for number, (name, folder) in enumerate(folders.items(), 1):

        def report(now: Report, which: str = f"{name} ({number} of {len(folders)})") -> None:
            options.on_chunk(now._replace(run=which))

        finished = _finished(folder, *changes)
        results[name] = finished or run.resume(folder.path, options._replace(on_chunk=report), *changes)
    return results


def _finished(folder: RunFolder, fresh_environments: bool = False, total_steps: int | None = None) -> dict[str, Any]:
    """Return the result of a run that has made all its steps; empty if it has not."""
    result, total = folder.result() or {}, total_steps or folder.settings().plan.total_steps
    return result if result.get("steps") == total and "stopped_by" not in result else {}


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return the settings with changes, which are given by their names in config.json."""
    values = json.loads(json.dumps(settings.to_dict()))
    for name, value in changes.items():
        *path, last = name.split(".")
        inside = values
        for part in path:
            inside = inside.setdefault(part, {})
            if not isinstance(inside, dict):
                raise ValueError(f"--sweep {name}: {part} holds no options.")
        inside[last] = value
    return Settings.from_dict(values)


def can_be_swept(settings: Settings) -> list[str]:
    """Return the names of settings that can be swept: changing their values does not change the programs."""
    found = []
    for option in options_of_settings(settings.to_dict()).values():
        name = ".".join(option.path)
        if option.kind is float and isinstance(option.default, int | float):
            for other in (0.5 * option.default, 0.5):
                with contextlib.suppress(ValueError):
                    varied = _varied([settings, changed(settings, {name: other})])
                    if varied is not None and varied.values:
                        found.append(name)
                        break
    return found


def _varied(points: Sequence[Settings]) -> Varied | None:
    """Return one component for all points; None if they cannot share programs."""
    experiments = [build(point) for point in points]
    if any(_fixed(point) != _fixed(points[0]) for point in points):
        return None
    try:
        return Varied([(one.agent, one.buffer) for one in experiments])
    except ValueError:
        return None


def _fixed(settings: Settings) -> dict[str, Any]:
    """Return the settings that hold no hyper-parameters."""
    return {name: value for name, value in settings.to_dict().items() if name not in WITH_PARAMETERS}


def _require_alike(folder: str | os.PathLike[str], points: Sequence[Settings]) -> None:
    if _varied(points) is None:
        raise ValueError(
            f"the runs in {folder} differ in more than hyper-parameters, and cannot go on side by side; resume each by "
            "itself."
        )


def _kept(options: Options, saved: Mapping[str, Any] | None = None) -> Any:
    if options.stop_at_return is not None:
        raise ValueError("--stop-at-return is for a single run, not for a sweep; leave it out.")
    return run.kept_options(saved or {}, options._asdict())


def _create(folder: Path, points: Mapping[str, Settings], options: Mapping[str, Any]) -> None:
    """Make the folder with all its runs. After a crash it is either complete or not there."""
    aside = folder.with_name(f".{folder.name}.new")
    try:
        durable.remove_folder(aside)  # a killed process may have left it
        durable.make_folder(aside.absolute())
        for name, settings in points.items():
            RunFolder(aside / name).create(settings, options)
        durable.write_text(_file(aside), json.dumps({"points": list(points)}, indent=2) + "\n")
        durable.rename(aside, folder)
    except OSError as error:
        durable.remove_folder(aside)
        raise ValueError(f"{folder} cannot be written ({error.strerror}); choose another folder.") from None


def _restore(folders: Mapping[str, RunFolder], programs: Programs) -> tuple[TrainState | None, Progress]:
    """Return the last state that all runs have saved; a killed process may have saved only some of them."""
    saved = {one: set(one.saved_iterations().values()) for one in folders.values() if one.has_checkpoint}
    if len(saved) < len(folders) and all(max(iterations) == 0 for iterations in saved.values()):
        return None, Progress()  # some run has no checkpoint, so all begin from scratch
    common = min((max(iterations) for iterations in saved.values()), default=0)
    for one in folders.values():
        if common not in saved.get(one, ()):
            raise ValueError(
                f"{one.path} has no state from the step at which other runs of the sweep are; resume each by itself."
            )
    likes = jax.eval_shape(lambda state: list(programs.split(state)), programs.shapes())
    states, progress = [], Progress()
    for one, like in zip(folders.values(), likes, strict=True):
        one.go_back(common)
        state, known = one.restore(like, furthest=True)
        states.append(state)
        progress = Progress.of(known)
    return programs.join(states), progress


@contextlib.contextmanager
def _locked(folders: Iterable[RunFolder]) -> Generator[None]:
    with contextlib.ExitStack() as stack:
        for folder in folders:
            stack.enter_context(folder.lock())
        yield


def _file(folder: str | os.PathLike[str]) -> Path:
    return Path(folder) / ".sweep.json"  # hidden, so that FOLDER/* are the runs
