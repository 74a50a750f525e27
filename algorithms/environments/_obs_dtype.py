"""The dtype to which observations are converted, so that they take less memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_buffers.types import PyTree

if TYPE_CHECKING:
    from algorithms.environments.environment import Environment, EnvironmentState

OBS_DTYPES = ("bool", "uint8")  # dtypes that take less memory than float32
NUM_TRIED_STEPS, NUM_TRIED_ENVS = 100, 8  # random steps that test whether a dtype can hold the observations


def check(env: Environment, obs_dtype: str) -> None:
    """Take some random steps, and refuse a dtype that cannot hold their observations."""

    def step(state: EnvironmentState, key: jax.Array) -> tuple[EnvironmentState, PyTree]:
        key_action, key_step = jax.random.split(key)
        action = env.action_space.sample(key_action, NUM_TRIED_ENVS)
        state, transition, _ = env.step(state, action, key_step)
        return state, (transition.obs, transition.next_obs)

    @jax.jit
    def observations(key: jax.Array) -> PyTree:
        key_reset, key_steps = jax.random.split(key)
        keys = jax.random.split(key_steps, NUM_TRIED_STEPS)
        return jax.lax.scan(step, env.reset(key_reset, NUM_TRIED_ENVS), keys)[1]

    for leaf in jax.tree.leaves(observations(jax.random.key(0))):
        kept = leaf.astype(converted(leaf, obs_dtype).dtype).astype(leaf.dtype)
        lost = np.asarray(leaf)[np.asarray(kept != leaf)]
        if lost.size:
            raise ValueError(
                f"environment(obs_dtype={obs_dtype!r}): {env.name} has observations such as {lost[0]}, which "
                f"{obs_dtype} cannot hold; leave `obs_dtype` out."
            )


def converted(leaf: jax.Array | jax.ShapeDtypeStruct, obs_dtype: str | None) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of a leaf of observations after the conversion to `obs_dtype`."""
    is_changed = obs_dtype is not None and jnp.issubdtype(leaf.dtype, jnp.floating)
    return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(obs_dtype) if is_changed else leaf.dtype)
