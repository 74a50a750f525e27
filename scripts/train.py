"""Train an agent: one compiled program, any number of seeds, and a folder with all that came out of it.

    python scripts/train.py ddqn CartPole-v1 --buffer prioritized --n-step 3 --num-seeds 5 --total-steps 50_000
    python scripts/train.py --config settings.yaml --seed 1
    python scripts/train.py --resume runs/ddqn_CartPole-v1_seed0 [--total-steps 80_000] [--fresh-environments]
    python scripts/train.py --fork runs/ddqn_CartPole-v1_seed0 --out runs/slower --agent.learning-rate 1e-4

The two names come first, or are in the file.
`train.py ALGORITHM ENVIRONMENT --help` shows the settings that are tuned for that pair, which are the defaults.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import shlex
import signal
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

# What follows takes seconds, and a KeyboardInterrupt would get lost in callbacks of JAX, or end in a traceback.
_before = signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
try:
    import docstring_parser
    import tyro

    from algorithms import plotting, presets, run, settings_file
    from algorithms.experiment import ALGORITHMS, SAMPLERS
    from algorithms.plan import Plan
    from algorithms.progress import ProgressBar
    from algorithms.run_folder import RunFolder
    from algorithms.settings import Settings, options_of
finally:
    signal.signal(signal.SIGINT, _before)

NAMES = ("algorithm", "environment")
HELP = {
    "algorithm": f"One of {', '.join(ALGORITHMS)}.",
    "environment": "A name that gymnax knows, such as CartPole-v1.",
    "buffer": f"How samples are drawn: {', '.join(SAMPLERS)}.",
    "config": "A YAML file with settings as in the config.json of a run; what it lacks is as tuned for the pair, and "
    "options given besides go before it. Buffer and agent may be whole components there, {name: ..., config: {...}}; "
    "what these lack is as in their classes, and what they decide is no option.",
    "out": "The run's folder, which must not exist; runs/ALGORITHM_ENVIRONMENT_seedSEED by default.",
    "resume": "The folder of a run to continue, exactly as if it had not stopped; it takes no settings besides, but "
    "--checkpoint-seconds and --final-episodes, which are otherwise those of the run, and --total-steps, a new budget: "
    "steps in all, also of a finished run. Annealed learning rates then follow the line over the new budget.",
    "fork": "The folder of a run whose agent and buffer a new run takes over, with --out for the new one's folder. "
    "Settings are those of the run unless given, and may be changed as far as the shapes of its state allow. Steps are "
    "counted on from there, so --total-steps are those of both; episodes begin anew.",
    "fresh_environments": "With --resume: restore agent and buffer only, and begin new episodes.",
    "checkpoint_seconds": "How often the state is saved; it also is at the end, on Ctrl-C and on SIGTERM.",
    "final_episodes": "Episodes of the last, deterministic evaluation of every seed.",
}


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code."""
    try:
        first = _first_look(arguments)
        if first.resume is not None:
            return _resume(arguments)
        defaults = _defaults(first)
        is_named = first.config is not None or first.fork is not None
        kept = run.Kept().over({} if first.fork is None else RunFolder(first.fork).options())
        command = tyro.cli(_command(defaults, is_named, kept), args=arguments, description=__doc__, prog="train.py")
        if command.fresh_environments:
            raise ValueError("--fresh-environments goes with --resume RUN; a new run has no others.")
        settings = _settings(command, defaults)
        if command.fork is not None:
            return _fork(command, settings)
        folder = command.out or Path("runs") / f"{settings.algorithm}_{settings.environment}_seed{settings.seed}"
        return _train(folder, settings, lambda options: run.start(settings, folder, options), command)
    except (ValueError, OSError) as error:  # the latter from files and from what environments download
        print(f"train.py: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before training, behind it, or while a first one waited for the chunk to end
        print("train.py: stopped by SIGINT at once.", file=sys.stderr)
        return 128 + signal.SIGINT


def _first_look(arguments: list[str]) -> argparse.Namespace:
    """Find what decides which options there are."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--buffer")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--fork", type=Path)
    first = parser.parse_known_args(arguments)[0]
    # Behind options a name could not be told from a value.
    leading = list(itertools.takewhile(lambda argument: not argument.startswith("-"), arguments))
    first.algorithm, first.environment = [*leading, None, None][:2]
    has_others = first.config or first.resume or first.fork or {"-h", "--help"} & {*arguments}
    if arguments and not leading and not has_others:
        raise ValueError(
            f"algorithm and environment come first, as in: train.py ALGORITHM ENVIRONMENT {shlex.join(arguments[:2])}"
        )
    return first


def _defaults(first: argparse.Namespace) -> Settings:
    if first.fork is not None:
        if first.config is not None:
            raise ValueError(
                "--fork takes the settings of its run, not those of --config; give what changes as options."
            )
        settings = RunFolder(first.fork).settings()
        given = {name: getattr(first, name) for name in NAMES if getattr(first, name) is not None}
        settings = dataclasses.replace(settings, **given)
    elif first.config is not None:
        settings = settings_file.read(first.config, algorithm=first.algorithm, environment=first.environment)
    else:
        settings = presets.preset(first.algorithm or "ddqn", first.environment or "CartPole-v1")
    return settings if first.buffer is None else settings.with_buffer(first.buffer)


def _command(defaults: Settings, is_named: bool, kept: run.Kept) -> type:
    """Return a dataclass with one field for each option, from the fields and docstrings of the components."""
    names = {name: getattr(defaults, name) if is_named else dataclasses.MISSING for name in NAMES}
    fields = [
        *[_field(name, str, default, HELP[name], positional=True) for name, default in names.items()],
        *_fields(Plan, vars(defaults.plan)),
        *_fields(Settings, {name: getattr(defaults, name) for name in _flat_settings(defaults)}),
        *[(name, *_group(component, getattr(defaults, name))) for name, component in defaults.groups.items()],
        _field("config", Path | None, None, HELP["config"]),
        _field("out", Path | None, None, HELP["out"]),
        _field("resume", Path | None, None, HELP["resume"]),
        _field("fork", Path | None, None, HELP["fork"]),
        _field("fresh_environments", bool, False, HELP["fresh_environments"]),
        *[_field(name, type(value), value, HELP[name]) for name, value in kept._asdict().items()],
    ]
    return dataclasses.make_dataclass("Command", fields, frozen=True)


def _flat_settings(defaults: Settings) -> list[str]:
    """Return the settings that are options: not those that hold others, nor those that whole components decide."""
    others = {*NAMES, *settings_file.GROUPS, *defaults.replaced}
    others |= set() if isinstance(defaults.buffer, str) else {"buffer"}
    return [field.name for field in dataclasses.fields(Settings) if field.name not in others]


def _group(component: Any, tuned: Mapping[str, Any]) -> tuple[type, Any]:
    options = {**options_of(component), **tuned}
    group = dataclasses.make_dataclass(component.__name__, _fields(component, options), frozen=True)
    group.__doc__ = docstring_parser.parse(component.__doc__).short_description
    return group, dataclasses.field(default_factory=group)


def _fields(component: Any, defaults: Mapping[str, Any]) -> list[Any]:
    documented = {}
    for parameter in docstring_parser.parse(component.__doc__).params:
        documented |= dict.fromkeys(parameter.arg_name.split(", "), parameter.description)
    types = {"hidden_sizes": tuple[int, ...], "target_entropy": float | None}
    return [_field(name, types.get(name, type(value)), value, documented[name]) for name, value in defaults.items()]


def _field(name: str, kind: Any, default: Any, text: str, positional: bool = False) -> Any:
    text = text.replace("`", "")
    if positional:
        kind = tyro.conf.Positional[Annotated[kind, tyro.conf.arg(help=text, metavar=name.upper())]]
    else:
        kind = Annotated[kind, tyro.conf.arg(help=text)]
    return (name, kind) if default is dataclasses.MISSING else (name, kind, default)


def _settings(command: Any, defaults: Settings) -> Settings:
    for name in NAMES:
        if getattr(command, name) != getattr(defaults, name):
            raise ValueError(f"{name} {getattr(command, name)!r} stands behind options; put it before them.")
    plan = Plan(**{field.name: getattr(command, field.name) for field in dataclasses.fields(Plan)})
    changed = {name: getattr(command, name) for name in _flat_settings(defaults)}
    groups = {name: vars(getattr(command, name)) for name in defaults.groups}
    return dataclasses.replace(defaults, plan=plan, **changed, **groups)


def _resume(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--fresh-environments", action="store_true")
    parser.add_argument("--checkpoint-seconds", type=float)
    parser.add_argument("--final-episodes", type=int)
    parser.add_argument("--total-steps", type=int)
    given, others = parser.parse_known_args(arguments)
    if others:
        raise ValueError(
            f"--resume takes no other settings such as {others[0]}: a run continues with those in its config.json."
        )
    folder = given.resume
    settings = RunFolder(folder).settings()
    changes = given.fresh_environments, given.total_steps
    return _train(folder, settings, lambda options: run.resume(folder, options, *changes), given)


def _fork(command: Any, settings: Settings) -> int:
    if command.out is None:
        raise ValueError("--fork RUN needs --out NEW, the folder of the new run.")
    return _train(
        command.out, settings, lambda options: run.fork(command.fork, settings, command.out, options), command
    )


def _train(folder: Path, settings: Settings, train: Any, command: Any) -> int:
    title = f"{settings.algorithm} on {settings.environment}"
    with ProgressBar(title) as bar:
        try:
            result = train(run.Options(bar.update, command.checkpoint_seconds, command.final_episodes))
        except run.Interrupted as stop:
            bar.close()
            print(f"{stop}; continue with: python scripts/train.py --resume {folder}")
            return 128 + stop.signal_number
    run_folder = RunFolder(folder)
    plotting.draw_curve(run_folder.metrics(), title, run_folder.curve)
    seeds = result["return_of_seeds"]
    rates = [100 * rate for rate in result.get("success_of_seeds", [])]
    success = f"success {_spread(rates)} %, " if rates else ""
    print(
        f"{title}: {success}return {_spread(seeds)} (mean and range of {len(seeds)} seed{'s' * (len(seeds) > 1)}, "
        f"{result['episodes']} episodes each) after {result['steps']:,} steps at "
        f"{result['steps_per_second']:,.0f} steps/s; {folder}"
    )
    return 0


def _spread(of_seeds: list[float]) -> str:
    return f"{statistics.mean(of_seeds):.1f} [{min(of_seeds):.1f}, {max(of_seeds):.1f}]"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
