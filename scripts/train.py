"""Train an agent: one compiled program, any number of seeds, and a folder with all that came out of it.

    python scripts/train.py ddqn CartPole-v1 --buffer prioritized --n-step 3 --num-seeds 5 --total-steps 50_000
    python scripts/train.py --config settings.yaml --seed 1
    python scripts/train.py --resume runs/ddqn_CartPole-v1_seed0 [--total-steps 80_000] [--fresh-environments]
    python scripts/train.py --fork runs/ddqn_CartPole-v1_seed0 --out runs/slower --agent.learning-rate 1e-4

The two names come first, or are in the file.
`train.py ALGORITHM ENVIRONMENT --help` shows the settings that are tuned for that pair, which are the defaults.

Exit codes: 0 done; 2 bad input; 3 numbers that are not finite stopped the run, or are in its agent or its result;
128 + N stopped by signal N.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import itertools
import math
import os
import re
import shlex
import shutil
import signal
import statistics
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C ends this program at once, but while a run is under way: that is saved first. A KeyboardInterrupt would get
    # lost in callbacks of JAX, or end in a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import docstring_parser
import tyro

from algorithms import compilation_cache, presets, run, settings_file
from algorithms.experiment import ALGORITHMS, SAMPLERS
from algorithms.plan import Plan
from algorithms.progress import ProgressBar
from algorithms.run_folder import RunFolder
from algorithms.settings import GROUPS, SIZES, Settings, options_of
from algorithms.watch import NotFinite
from jaxrl_buffers._checks import one_line

NAMES = ("algorithm", "environment")
NOT_FINITE = 3  # the exit code
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
    "checkpoint_seconds": "How often the state is saved; it also is at the end, on Ctrl-C, on SIGTERM, and when the "
    "terminal is closed.",
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
        command = _parse(_command(defaults, is_named, kept), arguments)
        if command.fresh_environments:
            raise ValueError("--fresh-environments goes with --resume RUN; a new run has no others.")
        settings = _settings(command, defaults, arguments)
        if command.fork is not None:
            return _fork(command, settings)
        folder = command.out or Path("runs") / f"{settings.algorithm}_{settings.environment}_seed{settings.seed}"
        return _train(folder, settings, lambda options: run.start(settings, folder, options), command)
    except BrokenPipeError:  # nobody reads what is printed
        return _leave_quietly()
    except (ValueError, OSError) as error:  # the latter from files and from what environments download
        print(f"train.py: {one_line(error)}", file=sys.stderr)
        return 2


class _Parser(argparse.ArgumentParser):
    """Looks at some of the options; says in one line what is wrong with them."""

    def __init__(self):
        super().__init__(add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parse(command: type, arguments: list[str]) -> Any:
    """Return the options; say in one line what is wrong with them, where tyro draws a box."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(command, args=arguments, description=__doc__, prog="train.py")
    except SystemExit as stop:
        if stop.code != 2:
            raise
        box = re.sub(r"\x1b\[[\d;]*m", "", said.getvalue())
        rows = [line.strip("│ ") for line in box.splitlines()[1:]]
        rows = [row if row.strip("╰╯─-") else "" for row in rows]  # parts of the box have lines between them
        parts = [" ".join(part) for is_text, part in itertools.groupby(rows, bool) if is_text]
        parts = [part for part in parts if not part.startswith(("Argument helptext", "For full helptext"))]
        raise ValueError(f"{'; '.join(parts)}; see train.py ALGORITHM ENVIRONMENT --help") from None


def _first_look(arguments: list[str]) -> argparse.Namespace:
    """Find what decides which options there are."""
    parser = _Parser()
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
        given = {name: getattr(first, name) for name in NAMES if getattr(first, name) is not None}
        settings = presets.preset(**{"algorithm": "ddqn", "environment": "CartPole-v1", **given})
    return settings if first.buffer is None else settings.with_buffer(first.buffer)


def _command(defaults: Settings, is_named: bool, kept: run.Kept) -> type:
    """Return a dataclass with one field for each option, from the fields and docstrings of the components."""
    names = {name: getattr(defaults, name) if is_named else dataclasses.MISSING for name in NAMES}
    fields = [
        *[_field(name, str, default, HELP[name], positional=True) for name, default in names.items()],
        *_fields(Plan, defaults.plan.to_dict()),
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
    others = {*NAMES, *GROUPS, *defaults.replaced}
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
    types = {**dict.fromkeys(SIZES, tuple[int, ...]), "target_entropy": float | None}
    return [_field(name, types.get(name, type(value)), value, documented[name]) for name, value in defaults.items()]


def _field(name: str, kind: Any, default: Any, text: str, positional: bool = False) -> Any:
    text = text.replace("`", "")
    if positional:
        kind = tyro.conf.Positional[Annotated[kind, tyro.conf.arg(help=text, metavar=name.upper())]]
    else:
        kind = Annotated[kind, tyro.conf.arg(help=text)]
    return (name, kind) if default is dataclasses.MISSING else (name, kind, default)


def _settings(command: Any, defaults: Settings, arguments: list[str]) -> Settings:
    for name in NAMES:
        if getattr(command, name) != getattr(defaults, name):
            raise ValueError(f"{name} {getattr(command, name)!r} stands behind options; put it before them.")
    options = {argument.partition("=")[0].replace("-", "_") for argument in arguments}
    given = [field.name for field in dataclasses.fields(Plan) if f"__{field.name}" in options]
    plan = dataclasses.replace(defaults.plan, **{name: getattr(command, name) for name in given})
    changed = {name: getattr(command, name) for name in _flat_settings(defaults)}
    groups = {name: vars(getattr(command, name)) for name in defaults.groups}
    return dataclasses.replace(defaults, plan=plan, **changed, **groups)


def _resume(arguments: list[str]) -> int:
    parser = _Parser()
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
        options = run.Options(
            on_chunk=bar.update,
            checkpoint_seconds=command.checkpoint_seconds,
            final_episodes=command.final_episodes,
            on_signal=_Stopping(bar),
            on_notice=lambda line: bar.say(f"train.py: {line}"),
        )
        try:
            result = train(options)
        except NotFinite as stop:
            bar.close()
            RunFolder(folder).draw_curve()
            print(f"train.py: {stop}; {folder}", file=sys.stderr)
            return NOT_FINITE
        except run.Interrupted as stop:
            bar.close()
            if not stop.is_unseen:
                print(f"{stop}; continue with: {_command_line('--resume', str(folder))}", flush=True)
            return _leave_quietly(128 + stop.signal_number)
    rates = [100 * rate for rate in result.get("success_of_seeds", [])]
    success = f"success {_spread(rates)} %, " if rates else ""
    num_seeds = len(result["return_of_seeds"])
    episodes = f"{result['episodes']} episode{'s' * (result['episodes'] > 1)}"
    episodes = f"mean and range of {num_seeds} seeds, {episodes} each" if num_seeds > 1 else episodes
    print(
        f"{title}: {success}return {_spread(result['return_of_seeds'])} ({episodes}) "
        f"after {result['steps']:,} steps at {result['steps_per_second']:,.0f} steps/s; {folder}",
        flush=True,
    )
    num_nonfinite = result["nonfinite_numbers"]
    if num_nonfinite or not all(map(math.isfinite, result["return_of_seeds"])):
        what = f"{num_nonfinite:,} numbers of the agent" if num_nonfinite else "returns"
        print(f"train.py: the result is not to be used: {what} are not finite.", file=sys.stderr)
        return NOT_FINITE
    return 0


class _Stopping:
    """Tells that a signal was heard, and obeys a second one at once, also while compiled code is running."""

    def __init__(self, bar: ProgressBar):
        self._bar = bar
        self._is_second = False

    def __call__(self, number: int) -> None:
        if self._is_second:
            self._bar.close()
            os._exit(128 + number)
        self._is_second = True
        if self._bar.is_live:
            self._bar.say("stopping as soon as the present chunk is done and saved; once more to stop at once.")


def _command_line(*arguments: str) -> str:
    """Return how to call this script again, by the interpreter that runs it now."""
    python = shutil.which("python")
    is_usual = python is not None and Path(python).absolute() == Path(sys.executable).absolute()
    interpreter = "python" if is_usual else os.path.relpath(sys.executable)
    return shlex.join([interpreter, sys.argv[0], *arguments])


def _leave_quietly(code: int = 128 + 13) -> int:
    """Drop what is left to print if nobody reads it: Python would complain when it ends. Return the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _spread(of_seeds: list[float]) -> str:
    spread = f" [{min(of_seeds):.1f}, {max(of_seeds):.1f}]" if len(of_seeds) > 1 else ""
    return f"{statistics.mean(of_seeds):.1f}{spread}"


if __name__ == "__main__":
    warnings.formatwarning = lambda message, *_: f"train.py: {one_line(message)}\n"
    with compilation_cache.kept():
        sys.exit(main(sys.argv[1:]))
