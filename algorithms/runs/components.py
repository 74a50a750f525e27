"""The algorithms and samplers that settings know by name, and the options of each."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
import typing
from collections.abc import Callable, Generator, Mapping
from typing import Any

from algorithms.agents.ddpg import DDPG
from algorithms.agents.ddqn import DDQN
from algorithms.agents.mpo import MPO
from algorithms.agents.optimization import settings_of_adam
from algorithms.agents.ppo import PPO
from algorithms.agents.sac import SAC
from algorithms.agents.td3 import TD3
from algorithms.environments.spaces import Box, Discrete
from algorithms.optimizers import Optimizer
from algorithms.runs.settings import check_options, require_keys
from jaxrl_buffers import Episodic, LastN, Prioritized, Recent, Uniform
from jaxrl_buffers._checks import shown
from jaxrl_buffers.types import Sampler

Algorithm = DDQN | DDPG | TD3 | SAC | MPO | PPO
Made = typing.TypeVar("Made")
ALGORITHMS: dict[str, type[Algorithm]] = {"ddqn": DDQN, "ddpg": DDPG, "td3": TD3, "sac": SAC, "mpo": MPO, "ppo": PPO}
ACTION_SPACES: dict[str, tuple[type, ...]] = {
    "ddqn": (Discrete,),
    "ddpg": (Box,),
    "td3": (Box,),
    "sac": (Box, Discrete),
    "mpo": (Box, Discrete),
    "ppo": (Box, Discrete),
}
ON_POLICY = ("ppo",)
# `Combined` holds a list of samplers, and options have no lists. It is for a whole `buffer` in a file.
SAMPLERS: dict[str, Any] = {
    "uniform": Uniform,
    "prioritized": Prioritized,
    "recent": Recent,
    "last_n": LastN,
    "episodic": Episodic,
}
OF_ROLLOUT = ("length", "num_envs", "gamma")  # fields of a rollout that follow from other settings


def algorithm_of(agent: Mapping[str, Any]) -> str:
    """Return the name of the algorithm of an agent that is given as a whole component."""
    names = {component.__name__: algorithm for algorithm, component in ALGORITHMS.items()}
    name = agent.get("name")
    if not isinstance(name, str) or name not in names:
        raise ValueError(f"agent.name: got {shown(name)}, expected one of {', '.join(names)}.")
    return names[name]


def options_of(component: type[Any]) -> dict[str, Any]:
    """Return the options of an agent, sampler or rollout class with their defaults; `MISSING` where there is none.

    Options are the fields that hold a number, a string or a flag.
    """
    hints = typing.get_type_hints(component)
    fields = [field for field in dataclasses.fields(component) if field.init and field.name not in OF_ROLLOUT]
    return {field.name: field.default for field in fields if kind_of(hints[field.name]) is not None}


def kind_of(hint: Any) -> type | None:
    """Return the type of number, string or flag that an annotation such as `float | None` allows, if there is one."""
    kinds = typing.get_args(hint) or (hint,)
    return next((kind for kind in (bool, int, float, str) if kind in kinds), None)


def make(where: str, component: type[Made], given: object, *parts: Any, **others: Any) -> Made:
    """Return a component with the given options and with other parts; errors begin with the name of the setting."""
    options = _checked(where, component, given)
    missing = [name for name, value in (options_of(component) | options).items() if value is dataclasses.MISSING]
    if missing:
        raise ValueError(f"{where}.{missing[0]}: is missing, expected a number.")
    if "optimizer" in options:
        options["optimizer"] = make_optimizer(f"{where}.optimizer", options["optimizer"])
    construct: Callable[..., Made] = component
    with named(where):
        return construct(*parts, **others, **options)


def make_optimizer(where: str, given: object) -> Optimizer | dict[str, Any]:
    """Return the optimizer in `{name, learning_rate, ...}`, or in a dict from groups of parameters to such dicts.

    Example:
        >>> make_optimizer("agent.optimizer", {"critic": {"name": "adamw", "learning_rate": 3e-4}})["critic"].name
        'adamw'
    """
    given = require_keys(where, given)
    if "name" not in given:
        return {group: make_optimizer(f"{where}.{group}", one) for group, one in given.items()}
    options = check_options(where, given, Optimizer, [field.name for field in dataclasses.fields(Optimizer)])
    if "learning_rate" not in options:
        raise ValueError(f"{where}.learning_rate: is missing, expected a number.")
    with named(where):
        return Optimizer(**options)


def replaced_by_optimizer(component: type[Any], optimizer: Mapping[str, Any]) -> list[str]:
    """Return the settings of an agent class that have no effect beside an optimizer, given as to `make_optimizer`.

    Example:
        >>> replaced_by_optimizer(DDPG, {"actor": {"name": "lion", "learning_rate": 1e-4}})
        ['learning_rate_pi']
    """
    given = component.groups if "name" in optimizer else optimizer
    users = settings_of_adam(component.groups)
    return [setting for setting, groups in users.items() if all(group in given for group in groups)]


@contextlib.contextmanager
def named(where: str) -> Generator[None]:
    """Begin errors with the name of the setting."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def complete(where: str, component: type[Any], given: object) -> dict[str, Any]:
    """Return the given options, and the defaults of the others. JSON has no infinity: such defaults are left out."""
    defaults = {name: value for name, value in options_of(component).items() if value != math.inf}
    return defaults | _checked(where, component, given)


def _checked(where: str, component: type[Any], given: object) -> dict[str, Any]:
    """Return options of the right types; options of older runs may have the names of that time.

    An agent may also have an `optimizer`, which stays as it is.
    """
    given = require_keys(where, {} if given is None else given)
    given = {component.renamed.get(name, name): value for name, value in given.items()}
    has_optimizer = component in ALGORITHMS.values() and given.get("optimizer") is not None
    own = {"optimizer": given.pop("optimizer")} if has_optimizer else {}
    return check_options(where, given, component, options_of(component)) | own


class SamplerLevel(typing.NamedTuple):
    """A sampler of the settings, without the one that it wraps."""

    where: str  # such as "sampler.base"
    name: str
    component: type[Any]
    options: dict[str, Any]  # that are given

    @property
    def base_field(self) -> str | None:
        """The field for the sampler that it wraps; None if it wraps none."""
        hints = typing.get_type_hints(self.component)
        return next((field.name for field in dataclasses.fields(self.component) if hints[field.name] is Sampler), None)


def sampler_levels(data: object, where: str = "sampler") -> list[SamplerLevel]:
    """Return the samplers in `{name, option: value, ..., base: {...}}`, from the outermost to the innermost.

    A sampler may also be its name alone. Without a name it is `uniform`.

    Example:
        >>> [level.name for level in sampler_levels({"name": "recent", "base": "prioritized"})]
        ['recent', 'prioritized']
    """
    data = {"name": data} if isinstance(data, str) else data
    options = dict(require_keys(where, {} if data is None else data))
    name = options.pop("name", "uniform")
    name = "last_n" if name == "newest" else name  # its name in the settings of older runs
    require_name("sampler", name, SAMPLERS)
    level = SamplerLevel(where, name, SAMPLERS[name], options)
    if level.base_field is None:
        return [level]
    return [level, *sampler_levels(options.pop("base", None), f"{where}.base")]


def make_sampler(data: object) -> Sampler:
    """Return the sampler that the settings describe."""
    *outer, innermost = sampler_levels(data)
    sampler = make(innermost.where, innermost.component, innermost.options)
    for level in reversed(outer):
        sampler = make(level.where, level.component, level.options, **{str(level.base_field): sampler})
    return sampler


def complete_sampler(data: object) -> dict[str, Any]:
    """Return the data of a sampler with the defaults of options that are not given.

    Example:
        >>> complete_sampler("uniform")
        {'name': 'uniform', 'method': 'independent', 'balanced': False}
    """
    full: dict[str, Any] = {}
    for level in reversed(sampler_levels(data)):
        base = {"base": full} if full else {}
        full = {"name": level.name, **complete(level.where, level.component, level.options), **base}
    return full


def require_name(what: str, name: object, known: Mapping[str, Any]) -> None:
    """Refuse an unknown name; the error suggests the nearest known name."""
    if not isinstance(name, str) or name not in known:
        near = difflib.get_close_matches(shown(name, str).lower(), known, n=1) or [", ".join(known)]
        raise ValueError(f"there is no {what} {shown(name)}; did you mean {near[0]}?")
