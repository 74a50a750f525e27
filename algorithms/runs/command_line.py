"""The command line of `python -m algorithms train`: settings as options, in the words of a settings file.

    ddqn CartPole-v1 --n-step 3 --sampler recent --sampler.base prioritized --sampler.base.alpha 0.7

means the same as `n_step: 3` and `sampler: {name: recent, base: {name: prioritized, alpha: 0.7}}` in a file. Options of
the plan and of `Settings` have no prefix. Options of other components begin with the setting that holds them.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from algorithms.runs import devices, old_settings, presets, settings_file
from algorithms.runs.command import Command, run_folders
from algorithms.runs.command_options import (
    ENV,
    OF_RESUME,
    OF_RUN,
    REPEATED,
    Option,
    options_of_run,
    options_of_settings,
)
from algorithms.runs.components import ALGORITHMS, require_name
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings, merged
from algorithms.training.plan import Plan
from jaxrl_buffers import _yaml as yaml_text
from jaxrl_buffers._checks import shown

NAMES = ("algorithm", "environment")
OF_STEPS = ("total_steps", "start_steps", "test_every")  # numbers of a plan that depend on its steps


def parse(arguments: list[str], program: str = "train.py") -> Command:
    """Return what a command line asks for.

    Args:
        arguments: the words of the command line.
        program: what comes before them, for messages.

    Raises:
        ValueError: one line, naming the option as it was written.

    Example:
        >>> command = parse(["ddqn", "CartPole-v1", "--sampler", "recent", "--sampler.base", "prioritized"])
        >>> command.settings.sampler
        {'name': 'recent', 'base': {'name': 'prioritized'}}
    """
    names, given = _split(arguments)
    if "resume" in given:
        return _parse_resume(names, given)
    is_help = bool({"help", "h"} & {*given})
    of_run = {name: option.read(given.pop(name)) for name, option in options_of_run().items() if name in given}
    if not is_help:
        _check_names(names, arguments, program, is_optional=bool({"config", "fork", "start_from"} & {*of_run}))
        _check_run(of_run)
    config, origin = of_run.pop("config", None), of_run.get("fork") or of_run.get("start_from")
    sweep = of_run.pop("sweep", None)
    flags = old_settings.current(_nested(given), is_by_hand=True)
    chosen = merged(_below(names, config, origin, "start_from" in of_run), _sampler_names(flags))
    options = options_of_settings(chosen)
    if is_help:
        return Command(Settings.from_dict(chosen), explained=(*options.values(), *options_of_run().values()))
    settings = Settings.from_dict(merged(chosen, _read(flags, options, program)))
    notice = None
    if config is None and origin is None and sweep is None and not any("weighting" in name for name in flat(flags)):
        settings, notice = devices.without_batch_weights(settings)
    varied = None if sweep is None else _read_sweep(sweep, options, program)
    return Command(settings, **of_run, notice=notice, sweep=varied)


def _split(arguments: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the words before the first option, and the words after each option.

    If an option is given twice, the last one counts; options that may be repeated keep all words.
    """
    is_option = [(argument.startswith("--") and argument != "--") or argument == "-h" for argument in arguments]
    first = next(itertools.compress(itertools.count(), is_option), len(arguments))
    given: dict[str, list[str]] = {}
    name = ""
    for argument, starts in zip(arguments[first:], is_option[first:], strict=True):
        if starts:
            name, has_value, value = argument.partition("=")
            name = name.lstrip("-").replace("-", "_")
            given[name] = [*(given.get(name, []) if name in REPEATED else []), *([value] if has_value else [])]
        else:
            given[name].append(argument)
    return arguments[:first], given


def _check_names(names: list[str], arguments: list[str], program: str, is_optional: bool) -> None:
    if len(names) > len(NAMES):
        raise ValueError(f"got {shlex.join(names[2:])!r} after algorithm and environment, expected options.")
    if is_optional or len(names) == len(NAMES):
        return
    if names:
        raise ValueError(f"the environment is missing; it comes before the options: {program} {names[0]} CartPole-v1")
    raise ValueError(
        f"algorithm and environment come first, as in: {program} ALGORITHM ENVIRONMENT {shlex.join(arguments[:2])}"
    )


def _check_run(of_run: Mapping[str, Any]) -> None:
    if of_run.get("fresh_environments"):
        raise ValueError("--fresh-environments goes with --resume RUN; a new run begins new episodes anyway.")
    if "fork" in of_run and "start_from" in of_run:
        raise ValueError("--fork RUN takes agent and buffer, --start-from RUN the agent alone; give one of them.")
    for name in {"fork", "start_from"} & {*of_run}:
        if "sweep" in of_run:
            raise ValueError(f"--sweep begins runs from scratch, it does not go with {_flag(name)}.")
        if "config" in of_run:
            raise ValueError(f"{_flag(name)} takes the settings of its run; give changes as options, not by --config.")
        if "out" not in of_run:
            raise ValueError(f"{_flag(name)} RUN needs --out NEW, the folder of the new run.")


def _below(names: list[str], config: Path | None, origin: Path | None, is_agent_only: bool) -> dict[str, Any]:
    """Return the settings under the options: those of the run to begin from, of a file, or of a preset."""
    given = dict(zip(NAMES, names, strict=False))
    if "algorithm" in given:
        require_name("algorithm", given["algorithm"], ALGORITHMS)
    if origin is not None:
        values = RunFolder(origin).settings().to_dict() | given
        return _for_agent_only(values) if is_agent_only else values
    if config is not None:
        return settings_file.read_dict(config, **given)
    return presets.read(**{"algorithm": "ddqn", "environment": "CartPole-v1", **given})


def _for_agent_only(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run without what belongs to its data set, which the agent alone does not take along."""
    plan = values["plan"] | {"offline_updates": 0}
    if not plan["total_steps"]:  # the run only learned offline, so its plan has no numbers for steps
        fresh = presets.read(values["algorithm"], values["environment"])["plan"]
        plan = {name: value for name, value in plan.items() if name not in OF_STEPS}
        plan |= {name: fresh[name] for name in OF_STEPS if name in fresh}
    return {name: value for name, value in values.items() if not name.startswith("dataset")} | {"plan": plan}


def _nested(given: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return options as nested dicts; a single word is not put into a list.

    Example:
        >>> _nested({"sampler": ["recent"], "sampler.base.alpha": ["0.7"], "hidden_sizes": ["64", "64"]})
        {'sampler': {'name': 'recent', 'base': {'alpha': '0.7'}}, 'hidden_sizes': ['64', '64']}
    """
    nested: dict[str, Any] = {}
    for option, words in given.items():
        *path, last = option.split(".")
        if {*path, last} <= {"sampler", "base"}:
            words = [Option(option, (), str, "").read(words)]
            path, last = [*path, last], "name"
        inside = nested
        for part in path:
            inside = inside.setdefault(part, {})
            if not isinstance(inside, dict):
                raise ValueError(f"{_flag(option)}: {_flag('.'.join(path))} takes a value, it holds no options.")
        inside[last] = words[0] if len(words) == 1 else words
    return nested


def _sampler_names(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return only the names of the samplers; they decide which other options exist."""

    def names(holder: Mapping[str, Any], key: str) -> dict[str, Any]:
        if key not in holder:
            return {}
        sampler = holder[key]
        found = {"name": sampler["name"]} if "name" in sampler else {}
        found |= names(sampler, "base")
        return {key: found} if found else {}

    return names(flags, "sampler")


def _read(flags: Mapping[str, Any], options: Mapping[str, Option], program: str) -> dict[str, Any]:
    """Return the values of options that were given as words, with the types that settings have."""
    values: dict[str, Any] = {}
    for name, words in flat(flags).items():
        *path, last = name.split(".")
        positive = ".".join([*path, last.removeprefix("no_")])
        is_negated = name not in options and positive in options and options[positive].kind is bool
        option = options.get(positive if is_negated else name)
        if name.startswith(ENV) and name.count(".") == 1:
            values.setdefault("env", {})[last] = _yaml_value(name, words)
            continue
        if option is None:
            raise ValueError(f"there is no option {_flag(name)}; {_nearest(name, options, program)}")
        value = option.read(words if isinstance(words, list) else [words])
        inside = values
        for part in option.path[:-1]:
            inside = inside.setdefault(part, {})
        inside[option.path[-1]] = not value if is_negated else value
    return values


def _read_sweep(words: list[str], options: Mapping[str, Option], program: str) -> dict[str, list[Any]]:
    """Return the values of each setting that is swept, from words such as `agent.learning_rate=1e-4,1e-3`."""
    sweep: dict[str, list[Any]] = {}
    for word in words:
        given, _, values = word.partition("=")
        name = given.replace("-", "_")
        if not all(values.split(",")):
            raise ValueError(
                f"--sweep: got {shown(word)}, expected a setting and its values, as in --sweep gamma=0.9,0.99."
            )
        option = options.get(name)
        if option is None:
            raise ValueError(
                f"--sweep {shown(given, str)}: there is no such option; {_nearest(name, options, program)}"
            )
        if option.kind is bool or option.is_list:
            raise ValueError(f"--sweep {given}: only numbers can be swept; start separate runs.")
        setting = ".".join(option.path)
        if setting in sweep:
            raise ValueError(f"--sweep {given}: is given twice; give all its values at once.")
        sweep[setting] = [option.read([value]) for value in values.split(",")]
    return sweep


def _yaml_value(name: str, words: str | list[str]) -> Any:
    """Return the value of an option of unknown type, read as YAML; without a word it is a flag."""
    if not words:
        return True
    if not isinstance(words, str):
        raise ValueError(f"{_flag(name)}: got {shown(' '.join(words))}, expected one value; write lists as [1,2].")
    try:
        return yaml_text.parse(words)
    except ValueError as error:
        raise ValueError(f"{_flag(name)}: {error}") from None


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested options by their names on the command line; the option `sampler` holds the name of the sampler."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        else:
            found[before.removesuffix(".") if before and name == "name" else f"{before}{name}"] = value
    return found


def _nearest(name: str, options: Mapping[str, Option], program: str) -> str:
    known = [*options, *OF_RUN]
    spelled = re.sub(r"(?<![a-z])lr(?![a-z])", "learning_rate", name)  # as other libraries call it
    near = difflib.get_close_matches(spelled, known, n=1)
    return f"did you mean {_flag(near[0])}?" if near else f"see {program} ALGORITHM ENVIRONMENT --help"


def _parse_resume(names: list[str], given: dict[str, list[str]]) -> Command:
    known = options_of_run() | {name: Option.of_field(Plan, name) for name in ("total_steps", "devices")}
    others = [*names, *(_flag(name) for name in given if name not in OF_RESUME)]
    if others:
        raise ValueError(
            f"--resume takes no other settings such as {shown(others[0], str)}: a run continues with those in its "
            "config.json."
        )
    values = {name: known[name].read(words) for name, words in given.items()}
    settings = run_folders(values["resume"])[0].settings()
    if "devices" in values:
        settings = dataclasses.replace(settings, plan=dataclasses.replace(settings.plan, devices=values["devices"]))
    return Command(settings, **values)


def _flag(option: str) -> str:
    return "--" + shown(option, str).replace("_", "-")
