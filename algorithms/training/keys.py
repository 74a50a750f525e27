"""The PRNG keys of each iteration of a training run.

With several devices, these functions run on each device inside of `shard_map`, and return the keys of the device. An
environment has the keys of its number among the environments of all devices, so its random numbers do not depend on how
many devices there are. Everything else gets keys that differ from device to device.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.training.plan import Plan
from jaxrl_buffers._mesh import own_key
from jaxrl_buffers._random.hashing import fold_in, split


class Keys(NamedTuple):
    """The keys of one iteration, which has `K` rows of `N` environments and `U` updates."""

    act: jax.Array  # keys [K]
    env: jax.Array  # keys [K, N]
    sample: jax.Array  # keys [U]
    gradients: jax.Array  # keys [U]


def iteration_keys(key: jax.Array, plan: Plan) -> Keys:
    """Split the key of an iteration into all keys that it needs; consumes `key`."""
    num_rows = plan.update_every // plan.num_envs
    if plan.devices > 1:
        after = num_rows * (1 + plan.num_envs)
        return Keys(
            act=own_keys(key, num_rows, plan),
            env=env_keys(key, num_rows, plan, first=num_rows),
            sample=own_keys(key, plan.num_updates, plan, first=after),
            gradients=own_keys(key, plan.num_updates, plan, first=after + plan.num_updates),
        )
    keys = split(key, num_rows * (1 + plan.num_envs) + 2 * plan.num_updates)
    limits = np.cumsum([num_rows, num_rows * plan.num_envs, plan.num_updates])
    act, env, sample, gradients = jnp.split(keys, limits)
    return Keys(act, env.reshape(num_rows, plan.num_envs, *env.shape[1:]), sample, gradients)


def env_keys(key: jax.Array, num_rows: int, plan: Plan, first: int = 0) -> jax.Array:
    """Return keys `[K, n]` for the device's environments in `K` rows; consumes `key`.

    They are columns of the keys `first, first + 1, ...` of `split(key, ...)`, laid out as `[K, N]`. On one device,
    `first` is 0.
    """
    if plan.devices == 1:
        return split(key, (num_rows, plan.num_envs))
    env = jax.lax.axis_index(plan.axis) * plan.envs_of_device + jnp.arange(plan.envs_of_device, dtype=jnp.int32)
    row = jnp.arange(num_rows, dtype=jnp.int32)
    number = first + row[:, None] * plan.num_envs + env[None]
    return jax.vmap(jax.vmap(lambda one: fold_in(key, one)))(number)


def own_keys(key: jax.Array, count: int, plan: Plan, first: int = 0) -> jax.Array:
    """Return keys `[count]` that differ from device to device; consumes `key`.

    They are made from the keys `first, first + 1, ...` of `split(key, ...)`. On one device they are these keys, and
    `first` is 0.
    """
    if plan.devices == 1:
        return split(key, count)
    keys = jax.vmap(lambda one: fold_in(key, one))(first + jnp.arange(count, dtype=jnp.int32))
    return jax.vmap(lambda key: own_key(key, plan.axis))(keys)
