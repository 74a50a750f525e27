"""The options of `python -m algorithms train`: of settings, found in the fields of components, and of the run."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from algorithms.runs.components import ALGORITHMS, ON_POLICY, SAMPLERS, kind_of, sampler_levels
from algorithms.runs.components import options_of as options_of_component
from algorithms.runs.options import Kept
from algorithms.runs.settings import GROUPS, Settings, is_component, replaced_settings
from algorithms.training.plan import Plan
from jaxrl_buffers._checks import shown
from jaxrl_buffers.rollouts import Rollout

WORDS: dict[type, str] = {int: "a whole number", float: "a number", str: "a word", Path: "a path"}
OF_RUN = {
    "config": "A YAML file with settings, in the form of a run's config.json. What it leaves out comes from the preset "
    "of the pair; options on the command line win over it. Buffer and agent may be whole components there, "
    "{name: ..., config: {...}}.",
    "out": "The folder of the new run, which must not exist; by default runs/ALGORITHM_ENVIRONMENT_seedSEED.",
    "resume": "The folder of a run to continue, exactly as if it had not stopped. Beside it only --total-steps, "
    "--devices, --fresh-environments, --checkpoint-seconds, --final-episodes, --log, --max-time, --stop-at-return, "
    "--cores and those of processes may be given. --total-steps is a new budget of the whole run, also of a finished "
    "one; annealed learning rates then follow the line over the new budget.",
    "fork": "The folder of a run whose agent and buffer the new run in --out takes over. Settings are those of that "
    "run unless given, and may change as long as the shapes of its state stay the same. Steps are counted on, so "
    "--total-steps includes those of that run. Episodes begin anew.",
    "start_from": "The folder of a run whose agent, and nothing else, goes on in the new run in --out, with a new "
    "buffer and steps counted from 0. Settings are those of that run unless given, but for its data set and its "
    "offline updates. (--fork takes the buffer too and counts steps on; --resume continues the run itself.)",
    "sweep": "A setting and its values, as in --sweep agent.learning_rate=1e-4,1e-3: a run for each value, side by "
    "side. Several --sweep make a run for every combination. Each run has a folder of its own in the folder of the "
    "sweep, and --resume of that folder continues all.",
    "fresh_environments": "With --resume: begin new episodes, and restore only the agent and the buffer.",
    "checkpoint_seconds": "Seconds between two checkpoints (in the place of PyTorchRL's save_interval). One is also "
    "saved at the end, on Ctrl-C, on SIGTERM, and when the terminal is closed. "
    f"{Kept().checkpoint_seconds:g} for a new run, else as the run had it.",
    "final_episodes": "Episodes of the last, deterministic evaluation of every seed. "
    f"{Kept().final_episodes} for a new run, else as the run had it.",
    "log": "Logs to write beside metrics.jsonl, one or more of csv, tensorboard and wandb, or none. A point for every "
    "evaluation, so --test-every says how often (in the place of PyTorchRL's log_interval). A resumed run keeps them.",
    "max_time": "Seconds after which the run stops and ends as if it had made all its steps: saved, tested, with a "
    "result. Counted from the beginning of this command, checked between chunks. --resume goes on from there.",
    "stop_at_return": "The run stops like that after an evaluation whose mean return, over all episodes of all seeds, "
    "is at least this.",
    "cores": "How many seeds run at a time on a CPU; all cores that the process may use unless given. The results are "
    "the same.",
    "distributed": "Train with all processes that a launcher such as srun has started. Give all of them this command.",
    "coordinator": "HOST:PORT of process 0, if no launcher tells it. Start every process with the same command, "
    "except --process-id.",
    "num_processes": "How many processes train together; with --coordinator.",
    "process_id": "Which of them this one is, counted from 0; with --coordinator.",
}
KINDS: dict[str, type] = {
    "sweep": str,
    **{"fresh_environments": bool, "checkpoint_seconds": float, "final_episodes": int, "log": str},
    **{"max_time": float, "stop_at_return": float, "cores": int},
    **{"distributed": bool, "coordinator": str, "num_processes": int, "process_id": int},
}
OF_RESUME = ("resume", "total_steps", "devices", *(name for name in KINDS if name != "sweep"))
REPEATED = ("log", "sweep")  # options that may be given several times, each with one or more values
ENV = "env."  # prefix of options of the environment's constructor, whose names are not known beforehand
OF_ENV = (
    "Option NAME of the environment's constructor, such as --env.ctrl-cost-weight 0.2 of gymnasium:HalfCheetah-v5. "
    "Values are read as in YAML."
)


class Option(NamedTuple):
    """An option of the command line."""

    name: str  # such as "sampler.base.alpha"
    path: tuple[str, ...]  # the keys that lead to its value in the settings
    kind: type  # int, float, bool, str or Path
    text: str  # what it is
    default: Any = None  # None if leaving the option out changes nothing
    is_list: bool = False
    group: str = "run"

    @classmethod
    def of_field(cls, component: type[Any], field: str, within: str = "", default: Any = None) -> Option:
        """Return the option for a field of a class, explained by the `Args` of its docstring.

        Args:
            component: the class.
            field: the name of the field.
            within: the setting that holds the component's options, such as `sampler.base`.
            default: the value that the field has without the option.
        """
        hint = typing.get_type_hints(component)[field]
        of_list = next((one for one in (hint, *typing.get_args(hint)) if typing.get_origin(one) is tuple), None)
        is_list = of_list is not None
        kind = typing.get_args(of_list)[0] if is_list else kind_of(hint) or str
        path = (*(within.split(".") if within else ()), field)
        name = field if within == "plan" else ".".join(path)
        return cls(name, path, kind, documented(component)[field], default, is_list, within or "settings")

    @property
    def flag(self) -> str:
        """The option as it is written on the command line, such as `--n-step`."""
        return "--" + self.name.replace("_", "-")

    @property
    def opposite(self) -> str:
        """The option that switches a flag off."""
        *path, last = self.flag.removeprefix("--").split(".")
        return "--" + ".".join([*path, f"no-{last}"])

    def read(self, words: list[str]) -> Any:
        """Return the value that the words after the option mean; refuse words that are no valid value."""
        if self.kind is bool:
            if words:
                raise ValueError(
                    f"{self.flag}: got {shown(words[0])}, expected no value; the opposite is {self.opposite}."
                )
            return True
        if not words:
            raise ValueError(f"{self.flag}: is given without a value, expected {WORDS[self.kind]}.")
        if self.is_list:
            return [self._value(word) for word in words]
        if len(words) > 1:
            others = " ".join(words[1:])
            raise ValueError(
                f"{self.flag}: got {shown(others)} after its value {shown(words[0], str)}; if these are an algorithm "
                "or an environment, put them before the options."
            )
        return self._value(words[0])

    def _value(self, word: str) -> Any:
        if word.lower() == "none" and self.kind in (int, float):
            return None
        try:
            return self.kind(word)
        except ValueError:
            raise ValueError(f"{self.flag}: got {shown(word)}, expected {WORDS[self.kind]}.") from None


def options_of_run() -> dict[str, Option]:
    """Return the options that are not settings."""
    return {
        name: Option(name, (name,), KINDS.get(name, Path), text, is_list=name in REPEATED)
        for name, text in OF_RUN.items()
    }


def options_of_settings(values: Mapping[str, Any]) -> dict[str, Option]:
    """Return the options that exist for given settings, with the values of these settings as defaults.

    Args:
        values: settings as a dict, in which at least the algorithm and the samplers have been chosen.
    """
    plan = {field.name: field.default for field in dataclasses.fields(Plan)} | dict(values["plan"])
    found = [Option.of_field(Plan, name, "plan", default) for name, default in plan.items()]
    hidden = {"algorithm", "environment", *GROUPS, *replaced_settings(values)}
    flat = {field.name: field.default for field in dataclasses.fields(Settings) if field.name not in hidden}
    found += [Option.of_field(Settings, name, "", values.get(name, default)) for name, default in flat.items()]
    found.append(Option(f"{ENV}NAME", (), str, OF_ENV, group="run"))
    if "dataset" not in replaced_settings(values):
        text, path = documented(Settings)["dataset"], (values.get("dataset") or {}).get("path")
        found.append(Option("dataset", ("dataset", "path"), str, text, path, group="settings"))
    if not is_component(values.get("agent")):
        found += _options_of("agent", ALGORITHMS[values["algorithm"]], values.get("agent"))
    if values.get("buffer") is None and values["algorithm"] in ON_POLICY:
        found += _options_of("rollout", Rollout, values.get("rollout"))
    elif values.get("buffer") is None:
        for level in sampler_levels(values.get("sampler")):
            found.append(_sampler_option(level.where, level.name))
            found += _options_of(level.where, level.component, level.options)
    else:
        found.append(_sampler_option("sampler", None))
    return {option.name: option for option in found}


def _sampler_option(where: str, name: str | None) -> Option:
    what = "How the sampler around it draws" if "." in where else "Which transitions are drawn"
    text = f"{what}: {', '.join(SAMPLERS)}. Combined is for a whole buffer in a file; see --config."
    return Option(where, (*where.split("."), "name"), str, text, name, group=where)


def _options_of(where: str, component: type[Any], given: object) -> list[Option]:
    given = given if isinstance(given, Mapping) else {}
    defaults = options_of_component(component)
    return [Option.of_field(component, name, where, given.get(name, default)) for name, default in defaults.items()]


def documented(component: type[Any]) -> dict[str, str]:
    """Return what the `Args` of a docstring say about each parameter.

    Example:
        >>> [*documented(Plan)][:2]
        ['total_steps', 'num_envs']
    """
    text = inspect.cleandoc(component.__doc__ or "").partition("\nArgs:\n")[2]
    section = re.split(r"\n(?=\S)", text)[0]
    found = re.findall(r"^    (\w[\w, ]*): (.*(?:\n        .*)*)", section, re.MULTILINE)
    return {
        name: " ".join(description.split()).replace("`", "")
        for names, description in found
        for name in names.split(", ")
    }


def help_text(options: Iterable[Option], description: str, program: str) -> str:
    """Return the text that explains options of a program, with their defaults."""
    parser = argparse.ArgumentParser(
        prog=program,
        usage=f"{program} ALGORITHM ENVIRONMENT [--option VALUE ...]",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    names = parser.add_argument_group("names, before all options")
    names.add_argument("ALGORITHM", help=f"One of {', '.join(ALGORITHMS)}.")
    names.add_argument("ENVIRONMENT", help=documented(Settings)["environment"])
    groups = {group: parser.add_argument_group(group) for group in dict.fromkeys(option.group for option in options)}
    for option in options:
        text = option.text[0].upper() + option.text[1:]
        text = (text + _shown_default(option)).replace("%", "%%")
        if option.kind is bool:
            flags = [option.flag] if option.group == "run" else [option.flag, option.opposite]
            groups[option.group].add_argument(*flags, action="store_true", help=text)
        else:
            groups[option.group].add_argument(option.flag, metavar=_metavar(option), help=text)
    return parser.format_help()


def _metavar(option: Option) -> str:
    return option.kind.__name__.upper() + (" ..." if option.is_list else "")


def _shown_default(option: Option) -> str:
    if option.group == "run":
        return ""
    if option.default is dataclasses.MISSING:
        return " (needed)"
    value = option.default
    if option.is_list and value is None:
        return ""
    return f" (default: {' '.join(map(str, value)) if option.is_list else value})"
