"""Handles: from slots to names that survive overwriting, and back."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import Handle


def of_slots(storage: Ring, slots: jax.Array, valid: jax.Array) -> Handle:
    """Return the handles of what the slots hold now; where not `valid`, one that will never be live."""
    row, env = ring.unravel(storage, slots)
    position = ring.position_of_age(storage, ring.age_of_row(storage, row, env), env)
    return Handle(env, jnp.where(valid, position, -1))


def locate(storage: Ring, handle: Handle) -> tuple[jax.Array, jax.Array]:
    """Return the slots that handles name and whether they are still stored."""
    length, num_envs = ring.shape(storage)
    env, position = jnp.asarray(handle.env, jnp.int32), jnp.asarray(handle.position, jnp.int32)
    age = ring.age_of_position(storage, position, env)
    known = (env >= 0) & (env < num_envs) & (position >= 0) & (position < ring.modulus(storage))
    live = known & (age < ring.of_env(storage.size, env))
    row = ring.row_of_age(storage, jnp.where(live, age, 0), env)
    return jnp.where(live, ring.slot(storage, row, env), length * num_envs), live
