"""How good a policy is, measured in environments that are stepped on the host."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.environments.gymnasium import HostEnvironment, Stepper
from algorithms.training.evaluation import time_limit
from algorithms.types import Agent
from jaxrl_buffers._checks import require_integer
from jaxrl_buffers._random.hashing import fold_in, split
from jaxrl_buffers.types import PyTree, Scalar


def evaluate_on_host(
    agent: Agent,
    state: Any,
    env: HostEnvironment,
    key: jax.Array,
    num_episodes: int,
    deterministic: bool = True,
    max_steps: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return what `evaluate` does, of environments that are stepped on the host; consumes `key`."""
    require_integer("evaluate_on_host", "num_episodes", num_episodes, 1)
    key_reset, key_play = split(key)
    test = jax.jit(functools.partial(act_in_test, agent), static_argnames=("num_envs", "deterministic"))
    act = functools.partial(test, num_envs=num_episodes, deterministic=deterministic)
    limit = time_limit(env, max_steps)
    steps = env.start(num_episodes, seed_of(key_reset))
    try:
        return play(steps, lambda *inputs: act(state, *inputs, key_play), agent, limit)
    finally:
        steps.close()


def play(steps: Stepper, act: Any, agent: Agent, limit: Scalar) -> tuple[np.ndarray, np.ndarray]:
    """Let every environment play its first episode to the end, or up to the limit."""
    num = steps.num_envs
    returns, lengths = np.zeros(num, np.float32), np.zeros(num, np.int32)
    carry, number = agent.initial_carry(num), 0
    while (lengths == 0).any() and number < limit:
        action, carry = act(steps.obs, carry, np.int32(number))
        finished = steps.step(np.asarray(action)).finished
        is_first = finished.ended & (lengths == 0)
        returns, lengths = (
            np.where(is_first, new, old)
            for new, old in ((finished.episode_return, returns), (finished.episode_length, lengths))
        )
        number += 1
    return returns, lengths


def act_in_test(
    agent: Agent,
    agent_state: Any,
    obs: PyTree,
    carry: PyTree,
    number: jax.Array,
    key: jax.Array,
    num_envs: int,
    deterministic: bool,
) -> tuple[jax.Array, PyTree]:
    """Act as `evaluate` does in the step of a number."""
    key = split(fold_in(key, number), 1 + num_envs)[0]
    action, carry, _ = agent.act(agent_state, obs, carry, key, deterministic)
    return action, carry


def seed_of(key: jax.Array) -> int:
    """Return a seed for Gymnasium; consumes `key`."""
    return int(jax.random.bits(key, dtype=jnp.uint32)) >> 1
