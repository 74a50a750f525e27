"""How good a policy is, measured in environments that are stepped on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.environments.gymnasium import HostEnvironment
from algorithms.environments.stepping import Stepper
from algorithms.training.evaluation import time_limit
from algorithms.types import Agent
from jaxrl_buffers._checks import require_integer
from jaxrl_buffers._random.hashing import fold_in, split
from jaxrl_buffers.types import PyTree, Scalar

MOST_SIDE_BY_SIDE = 20  # more environments at once take more memory, but save no time


def evaluate_on_host(
    agent: Agent,
    state: PyTree,
    env: HostEnvironment,
    key: jax.Array,
    num_episodes: int,
    deterministic: bool = True,
    max_steps: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Do the same as `evaluate`, in environments that are stepped on the host; consumes `key`.

    At most 20 environments play at once, so more episodes are played in rounds. The result is the returns
    `float32[E]` and the lengths `int32[E]` of the episodes.

    Example:
        >>> from algorithms import DDQN, environments
        >>> env = environments.make("gymnasium:CartPole-v1")
        >>> agent, key = DDQN(env.action_space), jax.random.key(0)
        >>> state = agent.init(key, env.obs, env.action_space.example)
        >>> returns, lengths = evaluate_on_host(agent, state, env, key, num_episodes=2)
        >>> returns.shape
        (2,)
    """
    require_integer("evaluate_on_host", "num_episodes", num_episodes, 1)
    limit, num_envs = time_limit(env, max_steps), side_by_side(num_episodes)
    test = jax.jit(functools.partial(act_in_test, agent, deterministic=deterministic))
    steps = env.start_tests(num_envs)

    def play_round(number: int) -> tuple[np.ndarray, np.ndarray]:
        key_reset, key_play = split(fold_in(key, number) if number else key)
        steps.reset(seed_of(key_reset))
        return play(steps, lambda *inputs: test(state, *inputs, key_play), agent.initial_carry(num_envs), limit)

    try:
        return in_rounds(play_round, num_envs, num_episodes)
    finally:
        steps.close()


def side_by_side(num_episodes: int, num_seeds: int = 1) -> int:
    """Return how many environments of every seed play at once, chosen so that rounds have about the same size."""
    most = max(MOST_SIDE_BY_SIDE // num_seeds, 1)
    return -(-num_episodes // -(-num_episodes // most))


def in_rounds(
    play_round: Callable[[int], tuple[np.ndarray, np.ndarray]], num_envs: int, num_episodes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return returns and lengths `[..., E]`; `play_round(number)` plays one round in `num_envs` environments.

    Extra episodes of the last round are left out, whatever their returns are.
    """
    rounds = range(-(-num_episodes // num_envs))
    returns, lengths = zip(*map(play_round, rounds), strict=True)
    return np.concatenate(returns, -1)[..., :num_episodes], np.concatenate(lengths, -1)[..., :num_episodes]


def play(
    steps: Stepper, act: Callable[..., tuple[PyTree, PyTree]], carry: PyTree, limit: Scalar
) -> tuple[np.ndarray, np.ndarray]:
    """Let every environment play its first episode to the end, or up to the limit."""
    returns, lengths = np.zeros(steps.num_envs, np.float32), np.zeros(steps.num_envs, np.int32)
    number = 0
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
    agent_state: PyTree,
    obs: PyTree,
    carry: PyTree,
    number: jax.Array,
    key: jax.Array,
    deterministic: bool,
) -> tuple[jax.Array, PyTree]:
    """Act as `evaluate` does in step `number`."""
    num_envs = jax.tree.leaves(obs)[0].shape[0]
    key = split(fold_in(key, number), 1 + num_envs)[0]
    action, carry, _ = agent.act(agent_state, obs, carry, key, deterministic)
    return action, carry


def seed_of(key: jax.Array) -> int:
    """Return a seed for Gymnasium; consumes `key`."""
    return int(jax.random.bits(key, dtype=jnp.uint32)) >> 1
