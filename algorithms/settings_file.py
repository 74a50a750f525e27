"""The settings of a run from a YAML file.

    algorithm: ddqn
    environment: CartPole-v1
    plan: {total_steps: 20_000}
    buffer: prioritized
    agent: {learning_rate: 1e-3}
    sampler: {alpha: 0.7}

The keys are those of `Settings`, as they stand in the config.json of a run. What is left out is as in the preset of the
algorithm and environment.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from algorithms import presets
from algorithms.plan import Plan
from algorithms.settings import ALGORITHMS, SAMPLERS, Settings, options_of
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
    for name in ("algorithm", "environment"):
        if name not in flat:
            raise ValueError(f"{name}: is missing, expected a string.")
    settings = presets.preset(flat["algorithm"], flat["environment"])
    settings = settings.with_buffer(flat.get("buffer", settings.buffer))
    agent, sampler = ALGORITHMS[settings.algorithm], SAMPLERS[settings.buffer]
    plan = dataclasses.replace(settings.plan, **_group("plan", values, Plan, vars(settings.plan)))
    tuned = {**settings.agent, **_group("agent", values, agent, options_of(agent))}
    drawn = {**settings.sampler, **_group("sampler", values, sampler, options_of(sampler))}
    return dataclasses.replace(settings, **{**flat, "plan": plan, "agent": tuned, "sampler": drawn})


def _split(values: Mapping[str, Any], names: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the values and the names of settings that are no groups of others."""
    flat = {key: value for key, value in values.items() if key not in GROUPS}
    return flat, [name for name in names if name not in GROUPS]


def _group(name: str, values: Mapping[str, Any], component: Any, keys: Mapping[str, Any]) -> dict[str, Any]:
    given = values.get(name) or {}
    if not isinstance(given, Mapping):
        raise ValueError(f"{name}: got {given!r}, expected keys with values.")
    try:
        return config.check(component, given, keys)
    except ValueError as error:
        raise ValueError(f"{name}.{error}") from None
