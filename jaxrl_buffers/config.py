"""Components from validated dicts and YAML files, and back.

A component is `{"name": ..., "config": {...}}`, nested where it is made of others:

    name: ReplayBuffer
    config:
      length: 250_000
      sampler: {name: Prioritized, config: {alpha: 0.6, epsilon: 1e-6}}

The annotations and defaults of the component define what its `config` may hold. An integer must be written as 3; 3.0
and true are refused. Where a float is needed, an integer is accepted too. A function is given by the name under which
it was registered. It may also be given as a component whose `__call__` has the annotations of that function.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import pydantic

from jaxrl_buffers import _yaml as yaml_text
from jaxrl_buffers import mixture, recipes, replay, rollouts, samplers, storage, views
from jaxrl_buffers._config_schema import COMPONENTS, FUNCTIONS, Problems, build, explained, parameters_of, schema_of
from jaxrl_buffers.storage import returns

Factory = TypeVar("Factory", bound=Callable[..., Any])


def register_component(factory: Factory, name: str | None = None) -> Factory:
    """Register a component class, or a function that returns a component, under a name; return it unchanged.

    Args:
        factory: called with the entries of a `config` as keyword arguments; every parameter is annotated.
        name: by default the factory's own name.

    Example:
        >>> import jaxrl_buffers as jb
        >>> def half_and_half(length: int) -> jb.ReplayBuffer:
        ...     return jb.ReplayBuffer(jb.Combined(jb.Uniform(), (jb.LastN(100.0),), (0.5,)), length=length)
        >>> _ = register_component(half_and_half)
        >>> from_config({"name": "half_and_half", "config": {"length": 1_000}}).length
        1000
    """
    _add(COMPONENTS, "component", name or factory.__name__, factory)
    return factory


def register(name: str, function: Callable[..., Any]) -> None:
    """Register a function, such as one that relabels goals, under a name.

    Example:
        >>> import jaxrl_buffers as jb
        >>> register("no_reward", lambda transition, goal: transition._replace(reward=0.0 * transition.reward))
        >>> view = {"name": "Hindsight", "config": {"achieved": "next_obs", "relabel": "no_reward"}}
        >>> from_config(view).achieved
        'next_obs'
    """
    _add(FUNCTIONS, "function", name, function)


def from_config(config: Mapping[str, Any]) -> Any:
    """Build a component.

    Raises:
        ValueError: naming every key that is missing, unknown or wrong, its value, and what is expected.

    Example:
        >>> sampler = {"name": "Prioritized", "config": {"alpha": 1, "epsilon": "1e-6"}}
        >>> buffer = from_config({"name": "ReplayBuffer", "config": {"length": 250_000, "sampler": sampler}})
        >>> buffer.sampler.alpha, buffer.sampler.epsilon
        (1.0, 1e-06)
    """
    try:
        return build(object, config)
    except Problems as problems:
        lines = "".join(f"\n  {'.'.join(map(str, path)) or 'the whole'}: {text}" for path, text in problems.found)
        raise ValueError(f"from_config() cannot build {_name_of(config)}:{lines}") from None
    except RecursionError:
        raise ValueError("from_config() got components nested too deeply; use fewer levels.") from None


def from_yaml(source: str | os.PathLike[str]) -> Any:
    """Build a component from a YAML file, or from YAML text.

    A string that holds a colon followed by a blank is taken as text, any other string as a path.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: for broken YAML, tags that would build objects, keys given twice, and what `from_config` refuses.

    Example:
        >>> from_yaml("{name: Uniform, config: {method: distinct}}")
        Uniform(method='distinct', balanced=False)
    """
    is_text = isinstance(source, str) and re.search(r":\s", source) is not None
    text = str(source) if is_text else Path(source).read_text("utf-8")
    return from_config(yaml_text.parse(text))


def to_config(component: object) -> dict[str, Any]:
    """Return the dict from which `from_config` builds an equal component. `yaml.safe_dump` can write this dict.

    Example:
        >>> import jaxrl_buffers as jb
        >>> to_config(jb.Uniform("distinct"))
        {'name': 'Uniform', 'config': {'method': 'distinct', 'balanced': False}}
    """
    name = _registered_name(COMPONENTS, type(component))
    if name is None:
        raise ValueError(
            f"to_config() got {component!r}, which is not a registered component; see register_component()."
        )
    return {"name": name, "config": {key: _plain(getattr(component, key)) for key in parameters_of(type(component))}}


def check(factory: Callable[..., Any], values: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Convert values to the types of a component's parameters, without building the component.

    Any parameter may be left out.

    Args:
        factory: a component class, or a function that returns a component.
        values: by the names of parameters.
        keys: the parameters that may be given.

    Raises:
        ValueError: one line, naming every key that is unknown or wrong, its value, and what is expected.

    Example:
        >>> import jaxrl_buffers as jb
        >>> check(jb.Prioritized, {"alpha": 1, "epsilon": "1e-6"}, keys=("alpha", "beta", "epsilon"))
        {'alpha': 1.0, 'epsilon': 1e-06}
    """
    schema = schema_of(factory, tuple(keys))
    try:
        model = schema.model.model_validate(dict(values))
    except pydantic.ValidationError as error:
        found = [f"{'.'.join(map(str, path[1:]))}: {text}" for path, text in explained(schema, error)]
        raise ValueError(" ".join(found)) from None
    return {key: getattr(model, key) for key in values}


def _plain(value: object) -> Any:
    """Return a value in the types that YAML has."""
    if dataclasses.is_dataclass(value) or _registered_name(COMPONENTS, type(value)) is not None:
        return to_config(value)
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return value.tolist()
    if callable(value):
        name = _registered_name(FUNCTIONS, value)
        if name is None:
            raise ValueError(f"to_config() met the function {value!r}, which has no name; register() it first.")
        return name
    return value


def _add(registry: dict[str, Any], what: str, name: str, value: object) -> None:
    if registry.get(name, value) is not value:
        raise ValueError(f"the {what} name {name!r} is taken by {registry[name]!r}; choose another name.")
    registry[name] = value


def _registered_name(registry: dict[str, Any], value: object) -> str | None:
    return next((name for name, known in registry.items() if known is value), None)


def _name_of(config: object) -> str:
    return str(config.get("name", "a component")) if isinstance(config, Mapping) else "a component"


for _factory in (
    replay.ReplayBuffer,
    mixture.Mixture,
    returns.EpisodicReturns,
    rollouts.Rollout,
    storage.Frames,
    samplers.Uniform,
    samplers.Prioritized,
    samplers.Recent,
    samplers.LastN,
    samplers.Combined,
    samplers.Episodic,
    views.NStep,
    views.Sequence,
    views.Hindsight,
    recipes.uniform,
    recipes.n_step,
    recipes.prioritized,
    recipes.emphasize_recent,
    recipes.guarantee_recent,
    recipes.hindsight,
    recipes.sequences,
    recipes.rollout,
):
    register_component(_factory)
