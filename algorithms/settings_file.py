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
from typing import Any

from algorithms import presets
from algorithms.experiment import algorithm_of, is_component
from algorithms.files import read_text
from algorithms.plan import Plan
from algorithms.settings import Settings, check_flat, check_group, options_of
from jaxrl_buffers import _yaml as yaml_text
from jaxrl_buffers._checks import shown


def read(path: str | os.PathLike[str], **given: str | None) -> Settings:
    """Return the settings in a file.

    Args:
        path: of a YAML file.
        given: an `algorithm` or `environment` that goes before the file's.

    Raises:
        ValueError: one line, naming the file, the key, its value and what is expected.
    """
    text = read_text(path)
    try:
        return from_values(yaml_text.parse(text), **given)
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None


def from_values(values: Any, **given: str | None) -> Settings:
    """Return the settings in a dict, any of which may be left out but the algorithm and the environment.

    Example:
        >>> from_values({"algorithm": "ddqn", "environment": "CartPole-v1", "plan": {"num_envs": 4}}).plan.total_steps
        50000
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"got {shown(values)}, expected the keys of Settings with their values.")
    values = {**values, **{name: value for name, value in given.items() if value is not None}}
    flat = check_flat(values)
    agent = values.get("agent")
    if is_component(agent):
        flat.setdefault("algorithm", algorithm_of(agent))
    for name in ("algorithm", "environment"):
        if name not in flat:
            raise ValueError(f"{name}: is missing, expected a string.")
    settings = presets.preset(flat["algorithm"], flat["environment"])
    settings = settings.with_buffer(values.get("buffer", settings.buffer))
    settings = settings.with_agent(agent) if is_component(agent) else settings
    plan = dataclasses.replace(settings.plan, **check_group("plan", values, Plan, vars(settings.plan)))
    tuned = {
        name: {**getattr(settings, name), **check_group(name, values, component, options_of(component))}
        for name, component in settings.groups.items()
    }
    settings = dataclasses.replace(settings, **flat, **tuned, plan=plan)
    settings.refuse_replaced(values)
    return settings
