"""The legal starts of a window, numbered `0..count-1` from the newest on. Uniform draws and epochs use the numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_buffers import _needs as needs
from jaxrl_buffers.storage import _fits as fits
from jaxrl_buffers.storage import episodes, ring
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import View, Window


def legal_window(storage: Ring, view: View, lookback: int) -> Window:
    """Return the ages at which a sample of `view` may start. Users call `buffer.window(state)` instead.

    Args:
        storage: the ring.
        view: the view that makes samples.
        lookback: how many older rows a start needs, including the rows that hold its frames.
    """
    newest = jnp.full_like(storage.size, view.lookahead)
    if view.stride > 1:
        # The positions of starts are multiples of the stride. The modulus of positions is a multiple of it, too.
        position = storage.head - 1 - newest
        newest = newest + position % view.stride
    fit = view.lookahead if needs.one_episode(view) else 0
    if fit and not fits.are_counted(storage):
        raise ValueError(
            f"{view!r} needs starts that fit into one episode, which were not counted in this state; make the state "
            "by init() of a buffer whose view has `within_episode=True`."
        )
    return Window(newest, storage.size - lookback, view.stride, fit)


def narrow(window: Window, num_rows: jax.Array) -> Window:
    """Keep only the newest `num_rows` rows of a window."""
    oldest = jnp.clip(window.newest + num_rows, window.newest, window.oldest)
    return window._replace(oldest=oldest, is_narrowed=True)


def slot_ranges(storage: Ring, window: Window) -> tuple[jax.Array, jax.Array]:
    """Return the slots of a window as ranges `begin..end-1`: `int32[2]` in lock-step, `[2 N]` otherwise.

    The second half holds the parts that wrap around to the beginning of the ring. With a stride above 1, the ranges
    also include the slots between starts.
    """
    length, num_envs = ring.shape(storage)
    num_rows = jnp.clip(window.oldest - window.newest, 0, length)
    first = ring.wrap(storage.head % length - window.newest - num_rows, length)
    begin = jnp.stack([first, jnp.zeros_like(first)])
    end = jnp.stack([jnp.minimum(first + num_rows, length), jnp.maximum(first + num_rows - length, 0)])
    if ring.is_lockstep(storage):
        return begin * num_envs, end * num_envs
    base = length * jnp.arange(num_envs, dtype=jnp.int32)[None]
    return (begin + base).reshape(-1), (end + base).reshape(-1)


def is_legal(storage: Ring, window: Window, age: jax.Array, env: jax.Array) -> jax.Array:
    """Return whether the row of each `age` of environment `env` is a legal start."""
    newest, oldest = ring.of_env(window.newest, env), ring.of_env(window.oldest, env)
    legal = (age >= newest) & (age < oldest)
    if window.stride > 1:
        legal &= (age - newest) % window.stride == 0
    if window.fit:
        row = ring.row_of_age(storage, jnp.clip(age, 0, ring.shape(storage)[0] - 1), env)
        legal &= age - episodes.of_rows(storage, row, env).end >= window.fit
    return legal


def is_legal_slot(storage: Ring, window: Window, slots: jax.Array) -> jax.Array:
    """Return which slots hold legal starts."""
    row, env = ring.unravel(storage, slots)
    return is_legal(storage, window, ring.age_of_row(storage, row, env), env)


def count_by_env(storage: Ring, window: Window) -> jax.Array:
    """Count the starts of each environment: `int32[N]`, or one number if all have the same."""
    if window.fit:
        return fits.count_by_env(storage, window)
    return jnp.maximum(-((window.newest - window.oldest) // window.stride), 0)


def count_of_every_env(storage: Ring, window: Window) -> jax.Array:
    """Count the starts of each environment: `int32[N]`."""
    return jnp.broadcast_to(count_by_env(storage, window), ring.shape(storage)[1:])


def count(storage: Ring, window: Window) -> jax.Array:
    """Count all starts."""
    counts = count_by_env(storage, window)
    return jnp.sum(counts, dtype=jnp.int32) if counts.ndim else counts * ring.shape(storage)[1]


def slot_of_number(storage: Ring, window: Window, number: jax.Array) -> jax.Array:
    """Return the slot of start `number`, in `0..count-1`. For other numbers, return any slot of the storage."""
    counts = count_by_env(storage, window)
    if counts.ndim == 0:
        number_in_env, env = ring.unravel(storage, number)
    else:
        number_in_env, env = number_by_env(counts, number)
    return slot_in_env(storage, window, number_in_env, env)


def number_by_env(counts: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Turn a number among the starts of all environments into a number within one environment, and this environment."""
    ends = jnp.cumsum(counts, dtype=jnp.int32)
    env = jnp.minimum(jnp.searchsorted(ends, number, side="right"), counts.shape[0] - 1).astype(jnp.int32)
    return number - (ends - counts)[env], env


def slot_in_env(storage: Ring, window: Window, number: jax.Array, env: jax.Array) -> jax.Array:
    """Return the slot of the start with the given number within its environment."""
    if window.fit:
        age = fits.age_of_number(storage, window, number, env)
    else:
        age = ring.of_env(window.newest, env) + number * window.stride
    age = jnp.clip(age, 0, ring.shape(storage)[0] - 1)
    return ring.slot(storage, ring.row_of_age(storage, age, env), env)
