"""Collection of the steps that an agent takes in its environments."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algorithms.environments import Environment, EnvironmentState, Finished
from algorithms.environments.described import with_info
from algorithms.types import Agent
from jaxrl_buffers import Transition
from jaxrl_buffers._random.hashing import split
from jaxrl_buffers.types import PyTree


class Collector(NamedTuple):
    """The state of the environments, and the agent's carry."""

    env: EnvironmentState
    carry: PyTree  # [N, ...]


def collect(
    agent: Agent,
    agent_state: PyTree,
    env: Environment,
    collector: Collector,
    keys_act: jax.Array,
    keys_env: jax.Array,
    random: bool = False,
    is_random: bool | None = None,
) -> tuple[Collector, Transition, Finished]:
    """Take `K` steps in each of `N` environments, with uniformly random actions if `random`.

    Args:
        agent: the algorithm.
        agent_state: the agent's state.
        env: the environment.
        collector: the state of the environments, and the agent's carry.
        keys_act: keys `[K]` for the agent, consumed.
        keys_env: keys `[K, N]` for the environments, consumed.
        random: whether to draw actions uniformly. Carry and extras still come from the agent.
        is_random: the old name of `random`.

    Returns:
        The collector after these steps, the transitions `[K, N, ...]`, and the episodes `[K, N]` that finished.

    Example:
        >>> from algorithms import DDQN, environments
        >>> env = environments.make("CartPole-v1")
        >>> agent, key = DDQN(env.action_space), jax.random.key(0)
        >>> state = agent.init(key, env.obs, env.action_space.example)
        >>> collector = Collector(env.reset(key, 2), agent.initial_carry(2))
        >>> keys = jax.random.split(key, 3), jax.random.split(key, (3, 2))  # of 3 steps in 2 environments
        >>> collector, chunk, finished = collect(agent, state, env, collector, *keys, random=True)
        >>> chunk.reward.shape
        (3, 2)
    """
    if is_random is not None:
        message = "`is_random` of collect() is now called `random`; the old name will be removed in version 2."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        random = is_random
    num_envs = collector.env.episode_length.shape[0]
    fresh_carry = agent.initial_carry(num_envs)

    def step(collector: Collector, keys: tuple[jax.Array, jax.Array]) -> tuple[Collector, tuple[Transition, Finished]]:
        key_act, keys_env = keys
        key_act, key_random = split(key_act) if random else (key_act, None)
        action, carry, extras = agent.act(agent_state, collector.env.obs, collector.carry, key_act)
        if key_random is not None:
            action = env.action_space.sample(key_random, num_envs)
        env_state, transition, finished = env.step(collector.env, action, keys_env)
        carry = jax.tree.map(lambda fresh, old: where_env(finished.ended, fresh, old), fresh_carry, carry)
        extras = with_info(extras, transition.extras)
        return Collector(env_state, carry), (transition._replace(extras=extras), finished)

    collector, (chunk, finished) = jax.lax.scan(step, collector, (keys_act, keys_env))
    return collector, chunk, finished


def where_env(condition: jax.Array, chosen: jax.Array, other: jax.Array) -> jax.Array:
    """Return a leaf `[N, ...]`: the entries of `chosen` where the condition `bool[N]` is True, else of `other`."""
    return jnp.where(condition.reshape(-1, *[1] * (chosen.ndim - 1)), chosen, other)
