"""Settings from YAML files.

    algorithm: ddqn
    environment: CartPole-v1
    plan: {total_steps: 20_000}
    sampler: {name: recent, base: {name: prioritized, alpha: 0.7}}
    agent: {learning_rate: 1e-3}

The keys are those of `Settings`, as in the config.json of a run. Whatever a file leaves out comes from the preset of
its algorithm and environment.

An agent may have any optimizer of optax, for all of its parameters or for some groups of them. Learning rates and
clipping that it replaces are then left out of the preset:

    agent: {optimizer: {name: adamw, learning_rate: 3e-4, max_grad_norm: 0.5, options: {weight_decay: 1e-4}}}
    agent: {optimizer: {critic: {name: lion, learning_rate: 1e-4}}, learning_rate_pi: 1e-3}

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

What their `config` leaves out has the default of the component's class; presets have no effect on it. The name of a
whole agent also names the algorithm. Its action space is that of the environment. If its `config` has no torso, it gets
the torso of the settings. A whole buffer is for as many environments as the plan has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from algorithms.runs import old_settings, presets
from algorithms.runs.build import build
from algorithms.runs.components import ALGORITHMS, algorithm_of, replaced_by_optimizer
from algorithms.runs.files import read_text
from algorithms.runs.settings import Settings, is_component, merged
from jaxrl_buffers import _yaml as yaml_text
from jaxrl_buffers._checks import one_line, shown


def read(path: str | os.PathLike[str], **names: str | None) -> Settings:
    """Return the settings in a file, with the preset for what it leaves out; see `read_dict`."""
    return Settings.from_dict(read_dict(path, **names))


def read_dict(path: str | os.PathLike[str], **names: str | None) -> dict[str, Any]:
    """Return the settings in a file, with the preset for what it leaves out, as a dict.

    Args:
        path: a YAML file.
        names: an `algorithm` or `environment` that replaces the one in the file.

    Raises:
        ValueError: one line that names the file, the key, its value and what is expected.
    """
    text = read_text(path)
    try:
        values = over_preset(yaml_text.parse(text), **names)
        build(Settings.from_dict(values))  # refuses what is wrong
    except ValueError as error:
        raise ValueError(f"{path}: {one_line(error)}") from None
    return values


def from_values(values: object, **names: str | None) -> Settings:
    """Return the settings in a dict, with the preset for what it leaves out.

    Example:
        >>> from_values({"algorithm": "ddqn", "environment": "CartPole-v1", "gamma": 0.9}).plan.total_steps
        50000
    """
    return Settings.from_dict(over_preset(values, **names))


def over_preset(values: object, **names: str | None) -> dict[str, Any]:
    """Return the settings in a dict, merged over the preset of its algorithm and environment."""
    if not isinstance(values, Mapping):
        raise ValueError(f"got {shown(values)}, expected the keys of Settings with their values.")
    values = old_settings.current(values, is_by_hand=True)
    values |= {name: value for name, value in names.items() if value is not None}
    if is_component(values.get("agent")):
        values.setdefault("algorithm", algorithm_of(values["agent"]))
    for name in ("algorithm", "environment"):
        if not isinstance(values.get(name), str):
            problem = f"got {shown(values[name])}" if name in values else "is missing"
            raise ValueError(f"{name}: {problem}, expected a string.")
    preset = presets.read(values["algorithm"], values["environment"])
    return merged(_beside_optimizer(preset, values.get("agent")), values)


def _beside_optimizer(preset: dict[str, Any], agent: object) -> dict[str, Any]:
    """Return a preset without the settings that an optimizer of the agent replaces."""
    component = ALGORITHMS.get(preset["algorithm"])
    optimizer = agent.get("optimizer") if isinstance(agent, Mapping) else None
    if component is None or not isinstance(optimizer, Mapping):
        return preset
    replaced = replaced_by_optimizer(component, optimizer)
    own = {name: value for name, value in preset.get("agent", {}).items() if name not in replaced}
    return preset | {"agent": own} | ({"anneal": False} if "schedule" in replaced else {})
