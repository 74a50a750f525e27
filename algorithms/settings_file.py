"""The settings of a run from a YAML file.

    algorithm: ddqn
    environment: CartPole-v1
    plan: {total_steps: 20_000}
    buffer: prioritized
    agent: {learning_rate: 1e-3}
    sampler: {alpha: 0.7}

The keys are those of `Settings`, as they stand in the config.json of a run. What is left out is as in the preset of the
algorithm and environment.

Buffer and agent may also be whole components, as `jaxrl_buffers.config` builds them:

    environment: BitFlip15-v0
    buffer:
      name: ReplayBuffer
      config:
        length: 2_000
        sampler: {name: Recent, config: {sampler: {name: Prioritized}}}
        view: {name: Hindsight, config: {achieved: next_obs.achieved_goal, relabel: relabel_bit_flip}}
    agent:
      name: DDQN
      config: {torso: {name: Torso, config: {hidden_sizes: [256]}}, addons: [{name: RewardPrediction}]}

What is left out of such a `config` is as in the component's class, not as in a preset. The name of a whole agent says
which algorithm it is. Its action space is the environment's, and without a torso it gets the one of the settings. A
whole buffer is for the plan's environments.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from algorithms import presets
from algorithms.experiment import algorithm_of, is_component
from algorithms.plan import Plan
from algorithms.settings import Settings, options_of
from jaxrl_buffers import config, yaml_text

GROUPS = ("plan", "agent", "sampler")


def read(path: str | os.PathLike[str], **given: str | None) -> Settings:
    """Return the settings in a file.

    Args:
        path: of a YAML file.
        given: an `algorithm` or `environment` that goes before the file's.

    Raises:
        ValueError: one line, naming the file, the key, its value and what is expected.
    """
    try:
        values = yaml_text.parse(Path(path).read_text())
        return from_values(values, **given)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None


def from_values(values: Any, **given: str | None) -> Settings:
    """Return the settings in a dict, any of which may be left out but the algorithm and the environment.

    Example:
        >>> from_values({"algorithm": "ddqn", "environment": "CartPole-v1", "plan": {"num_envs": 4}}).plan.total_steps
        50000
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"got {values!r}, expected the keys of Settings with their values.")
    values = {**values, **{name: value for name, value in given.items() if value is not None}}
    names = [field.name for field in dataclasses.fields(Settings)]
    unknown = [key for key in values if key not in names]
    if unknown:
        raise ValueError(f"{unknown[0]}: is unknown (got {values[unknown[0]]!r}), expected are: {', '.join(names)}.")
    flat = config.check(Settings, *_split(values, names))
    agent = values.get("agent")
    if is_component(agent):
        flat.setdefault("algorithm", algorithm_of(agent))
    for name in ("algorithm", "environment"):
        if name not in flat:
            raise ValueError(f"{name}: is missing, expected a string.")
    settings = presets.preset(flat["algorithm"], flat["environment"])
    settings = settings.with_buffer(values.get("buffer", settings.buffer))
    settings = settings.with_agent(agent) if is_component(agent) else settings
    plan = dataclasses.replace(settings.plan, **_group("plan", values, Plan, vars(settings.plan)))
    tuned = {
        name: {**getattr(settings, name), **_group(name, values, component, options_of(component))}
        for name, component in settings.groups.items()
    }
    settings = dataclasses.replace(settings, **flat, **tuned, plan=plan)
    settings.refuse_replaced(values)
    return settings


def _split(values: Mapping[str, Any], names: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the values and the names of settings that do not hold others."""
    nested = {*GROUPS, "buffer"} if isinstance(values.get("buffer"), Mapping) else GROUPS
    flat = {key: value for key, value in values.items() if key not in nested}
    return flat, [name for name in names if name not in nested]


def _group(name: str, values: Mapping[str, Any], component: Any, keys: Mapping[str, Any]) -> dict[str, Any]:
    given = values.get(name) or {}
    if not isinstance(given, Mapping):
        raise ValueError(f"{name}: got {given!r}, expected keys with values.")
    try:
        return config.check(component, given, keys)
    except ValueError as error:
        raise ValueError(f"{name}.{error}") from None
