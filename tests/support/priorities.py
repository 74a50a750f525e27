"""Buffers with given priorities, and how often their rows are drawn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from support import helpers
from support.helpers import number_buffer, scalars

import jaxrl_buffers as jb

RAW = {"alpha": 1.0, "epsilon": 0.0}  # leaves are the priorities themselves


def with_priorities(priorities, **options):
    """Return a full one-environment buffer whose rows have the given priorities."""
    buffer, state = number_buffer(len(priorities), sampler=jb.Prioritized(**options))
    chunk, given = scalars(range(len(priorities))), jnp.asarray(priorities, jnp.float32)[:, None]
    return buffer, helpers.add(buffer, state, chunk, priorities=given)


def draw_counts(buffer, state, batch_size, seed=0):
    """Return how often each slot is drawn, and the weight of each slot that was."""
    sample = helpers.sample(buffer, state, jax.random.key(seed), batch_size=batch_size)
    slots = np.asarray(sample.handle.position) % buffer.length * buffer.num_envs + np.asarray(sample.handle.env)
    weights = dict(zip(slots.tolist(), [round(weight, 5) for weight in sample.weights.tolist()], strict=True))
    return np.bincount(slots, minlength=buffer.length * buffer.num_envs).tolist(), weights
