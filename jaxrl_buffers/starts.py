"""The legal starts of a window as the numbers `0..count-1`, newest first: what uniform draws and epochs count in."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import View, Window


def legal_window(storage: Ring, view: View) -> Window:
    """Return which ages a sample of `view` may start at."""
    newest = jnp.full_like(storage.size, view.lookahead)
    if view.stride > 1:
        # Starts stand at positions that are multiples of the stride; so is the modulus of positions.
        position = storage.head - 1 - newest
        newest = newest + position % view.stride
    return Window(newest, storage.size - view.lookback, view.stride)


def is_legal(window: Window, age: jax.Array, env: jax.Array) -> jax.Array:
    """Tell which ages are legal starts."""
    newest, oldest = ring.of_env(window.newest, env), ring.of_env(window.oldest, env)
    inside = (age >= newest) & (age < oldest)
    return inside & ((age - newest) % window.stride == 0) if window.stride > 1 else inside


def count_by_env(window: Window) -> jax.Array:
    """Count the starts of an environment (of each one, with per-environment cursors)."""
    return jnp.maximum(-((window.newest - window.oldest) // window.stride), 0)


def count(storage: Ring, window: Window) -> jax.Array:
    """Count all starts."""
    counts = count_by_env(window)
    return jnp.sum(counts, dtype=jnp.int32) if counts.ndim else counts * ring.shape(storage)[1]


def slot_of_number(storage: Ring, window: Window, number: jax.Array) -> jax.Array:
    """Return the slot of each start in `0..count-1`; meaningless but inside the storage for other numbers."""
    counts = count_by_env(window)
    if counts.ndim == 0:
        number_in_env, env = ring.unravel(storage, number)
    else:
        number_in_env, env = number_by_env(counts, number)
    return slot_in_env(storage, window, number_in_env, env)


def number_by_env(counts: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Turn numbers `0..sum(counts)-1` over all environments into the number within an environment, and that one."""
    ends = jnp.cumsum(counts, dtype=jnp.int32)
    env = jnp.minimum(jnp.searchsorted(ends, number, side="right"), counts.shape[0] - 1).astype(jnp.int32)
    return number - (ends - counts)[env], env


def slot_in_env(storage: Ring, window: Window, number: jax.Array, env: jax.Array) -> jax.Array:
    """Return the slot of the start with the given number within its environment."""
    age = ring.of_env(window.newest, env) + number * window.stride
    age = jnp.clip(age, 0, ring.shape(storage)[0] - 1)
    return ring.slot(storage, ring.row_of_age(storage, age, env), env)
