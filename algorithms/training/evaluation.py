"""Evaluation of a policy, with its own environments and its own keys."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from algorithms.environments import Described, Environment, EnvironmentState
from algorithms.types import Agent
from jaxrl_buffers._checks import require_integer
from jaxrl_buffers._mesh import vary_like
from jaxrl_buffers._random.hashing import fold_in, split
from jaxrl_buffers.types import PyTree, Scalar


class _Progress(NamedTuple):
    env: EnvironmentState
    carry: PyTree
    returns: jax.Array  # float32[E]
    lengths: jax.Array  # int32[E]; 0 until the episode ends
    step: jax.Array  # int32[]


def evaluate(
    agent: Agent,
    state: PyTree,
    env: Environment,
    key: jax.Array,
    num_episodes: int,
    deterministic: bool = True,
    max_steps: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return the returns `float32[E]` and lengths `int32[E]` of complete episodes; consumes `key`.

    Each of `num_episodes` environments plays one episode to its end. (If evaluation took the episodes that finish
    first, short episodes would be too frequent.)

    Args:
        agent: the algorithm.
        state: the agent's state.
        env: the environment.
        key: a PRNG key.
        num_episodes: `E`, the number of episodes.
        deterministic: whether to act without exploration.
        max_steps: the number of steps after which the evaluation stops. Episodes that have not ended by then have the
            length 0 and the return 0. It is required for environments without a time limit.

    Example:
        >>> from algorithms import SAC, environments
        >>> env = environments.make("Pendulum-v1")
        >>> agent = SAC(env.action_space)
        >>> state = agent.init(jax.random.key(0), env.obs, env.action_space.example)
        >>> returns, lengths = evaluate(agent, state, env, jax.random.key(1), num_episodes=3)
        >>> print(lengths)
        [200 200 200]
    """
    require_integer("evaluate", "num_episodes", num_episodes, 1)
    limit = time_limit(env, max_steps)
    key_reset, key_play = split(key)

    def step(progress: _Progress) -> _Progress:
        keys = split(fold_in(key_play, progress.step), 1 + num_episodes)
        keys_act, keys_env = jnp.split(keys, [1])
        action, carry, _ = agent.act(state, progress.env.obs, progress.carry, keys_act[0], deterministic)
        after, _, finished = env.step(progress.env, action, keys_env)
        is_first = finished.ended & (progress.lengths == 0)
        returns = jnp.where(is_first, finished.episode_return, progress.returns)
        lengths = jnp.where(is_first, finished.episode_length, progress.lengths)
        return _Progress(after, carry, returns, lengths, progress.step + 1)

    def goes_on(progress: _Progress) -> jax.Array:
        return jnp.any(progress.lengths == 0) & (progress.step < limit)

    zeros = jnp.zeros(num_episodes, jnp.int32)
    progress = _Progress(
        env.reset(key_reset, num_episodes),
        agent.initial_carry(num_episodes),
        jnp.zeros(num_episodes, jnp.float32),
        zeros,
        jnp.zeros((), jnp.int32),
    )
    progress = jax.lax.while_loop(goes_on, step, vary_like(progress, (state, key)))
    return progress.returns, progress.lengths


def time_limit(env: Described, max_steps: int | None) -> Scalar:
    """Return the number of steps after which an evaluation stops. Refuse environments whose episodes may never end."""
    limit = env.max_episode_length if max_steps is None else max_steps
    if limit is None:
        raise ValueError(
            f"{env.name} has no known time limit, so an evaluation might never end; give it one (for an id of "
            "Gymnasium: --env.max-episode-steps 500; in your own function: the wrapper TimeLimit of Gymnasium, also if "
            "`step` keeps the limit itself, or `max_steps_in_episode` in the params of gymnax), or evaluate with "
            "`max_steps`."
        )
    return limit
