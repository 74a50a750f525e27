"""A data set of Pendulum: a controller by hand that swings up and balances, and every second action at random."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import Plan, environments

ENV = environments.make("Pendulum-v1")
PLAN = Plan(
    total_steps=20,
    num_envs=2,
    start_steps=8,
    update_every=4,
    num_updates=2,
    mini_batch_size=8,
    test_every=4,
    num_test_episodes=2,
    offline_updates=10,
)


def controlled(obs: jax.Array) -> jax.Array:
    """Return actions `[N, 1]`: pump energy until the pendulum is up, then hold it there."""
    cos, sin, velocity = obs[:, 0], obs[:, 1], obs[:, 2]
    angle, energy = jnp.arctan2(sin, cos), velocity**2 / 6 + 5 * (cos - 1)
    swing, balance = -2 * energy * jnp.sign(velocity), -10 * angle - 2 * velocity
    return jnp.clip(jnp.where(jnp.abs(angle) < 0.4, balance, swing), -2, 2)[:, None]


@functools.cache
def data_set(num_envs: int = 20, num_steps: int = 400) -> tuple[dict[str, Any], float]:
    """Return arrays under D4RL's keys, one environment after the other, and the mean return of their episodes."""

    def step(state: Any, key: jax.Array) -> tuple[Any, Any]:
        key_choice, key_action, key_step = jax.random.split(key, 3)
        is_random = jax.random.bernoulli(key_choice, 0.5, (num_envs, 1))
        action = jnp.where(is_random, ENV.action_space.sample(key_action, num_envs), controlled(state.obs))
        state, transition, finished = ENV.step(state, action, key_step)
        return state, (transition, finished)

    @jax.jit
    def collected(key: jax.Array) -> Any:
        key_reset, key_steps = jax.random.split(key)
        return jax.lax.scan(step, ENV.reset(key_reset, num_envs), jax.random.split(key_steps, num_steps))[1]

    rows, finished = jax.tree.map(np.asarray, collected(jax.random.key(0)))
    rows = jax.tree.map(lambda leaf: np.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:]), rows)
    names = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    return dict(zip(names, rows[:6], strict=True)), float(finished.episode_return[finished.ended].mean())
