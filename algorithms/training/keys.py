"""The PRNG keys of each iteration of a training run."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.training.plan import Plan
from jaxrl_buffers._random.hashing import split


class Keys(NamedTuple):
    """The keys of one iteration, which has `K` rows of `N` environments and `U` updates."""

    act: jax.Array  # keys [K]
    env: jax.Array  # keys [K, N]
    sample: jax.Array  # keys [U]
    gradients: jax.Array  # keys [U]


def iteration_keys(key: jax.Array, plan: Plan) -> Keys:
    """Split the key of an iteration into all keys that it needs; consumes `key`."""
    num_rows = plan.update_every // plan.num_envs
    keys = split(key, num_rows * (1 + plan.num_envs) + 2 * plan.num_updates)
    limits = np.cumsum([num_rows, num_rows * plan.num_envs, plan.num_updates])
    act, env, sample, gradients = jnp.split(keys, limits)
    return Keys(act, env.reshape(num_rows, plan.num_envs, *env.shape[1:]), sample, gradients)
