"""Starts whose samples fit into one episode: how many there are, and where the one of a given number is.

A start fits if the rows that its sample needs belong to its own episode. That is known when the last of them is
written; there the starts are counted, so that the difference of two counts is the number of starts in between:

    starts from the row of age a on = total - before[row of age a - fit]

where `fit` is how many rows must follow a start. Part of the episode index, kept only if the view asks for it. Cost: a
count is one read an environment, to find a start takes `log2(T)` reads.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_buffers._parts import any_says
from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import View, Window


class Fit(NamedTuple):
    """Which starts count: every `stride`-th row, if `lookahead` rows of its own episode follow it."""

    lookahead: int
    stride: int


class Fits(NamedTuple):
    """Counts of starts that fit; they may overflow, for only differences matter."""

    before: jax.Array  # int32[T, N]: of samples that end before each row
    total: jax.Array  # int32[N]: of samples that end at any row


def are_needed(view: View) -> bool:
    """Tell whether samples of a view must lie in one episode."""
    return any_says("within_episode", view)


def are_counted(storage: Ring) -> bool:
    """Tell whether a ring counts the starts that fit."""
    return isinstance(getattr(storage.episodes, "fits", ()), Fits)


def init(shape: tuple[int, int]) -> Fits:
    """Return the counts of an empty ring of shape `(T, N)`."""
    return Fits(jnp.zeros(shape, jnp.int32), jnp.zeros(shape[1], jnp.int32))


def record(fits: Fits, fit: Fit, position: jax.Array, length: jax.Array, row: jax.Array, env: jax.Array) -> Fits:
    """Count the starts whose samples end at rows written to `(row, env)`; outside the ring nothing is written.

    Args:
        fits: the counts before.
        fit: which starts count.
        position: `int32[K, E]`, of each row.
        length: `int32[K, E]`: how many rows its episode has had up to it.
        row: `int32[K, E]`.
        env: `int32[K, E]`.
    """
    num_rows, num_envs = fits.before.shape
    is_written = (row < num_rows) & (env >= 0) & (env < num_envs)
    is_end = is_written & (length > fit.lookahead) & ((position - fit.lookahead) % fit.stride == 0)
    count = jnp.cumsum(is_end, axis=0, dtype=jnp.int32)
    before = fits.total.at[env].get(mode="clip") + count - is_end
    column = jnp.where(is_written[0], env[0], num_envs)
    return Fits(fits.before.at[row, env].set(before, mode="drop"), fits.total.at[column].add(count[-1], mode="drop"))


def count_by_env(storage: Ring, window: Window) -> jax.Array:
    """Count the starts of each environment inside a window: `int32[N]`."""
    env = jnp.arange(ring.shape(storage)[1], dtype=jnp.int32)
    newest, oldest = (jnp.broadcast_to(age, env.shape) for age in (window.newest, window.oldest))
    return jnp.where(newest < oldest, _count_to(storage, window, oldest - 1, env), 0)


def age_of_number(storage: Ring, window: Window, number: jax.Array, env: jax.Array) -> jax.Array:
    """Return the age of the start with the given number, newest first, within its environment."""
    newest, oldest = (jnp.broadcast_to(ring.of_env(age, env), env.shape) for age in (window.newest, window.oldest))

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low + high) // 2
        is_reached = _count_to(storage, window, middle, env) > number
        return jnp.where(is_reached, low, middle + 1), jnp.where(is_reached, middle, high)

    return lax.fori_loop(0, ring.shape(storage)[0].bit_length(), halve, (newest, oldest - 1))[0]


def _count_to(storage: Ring, window: Window, age: jax.Array, env: jax.Array) -> jax.Array:
    """Count the starts from the newest one to that of the given age."""
    fits, last = storage.episodes.fits, ring.shape(storage)[0] - 1
    row = ring.row_of_age(storage, jnp.clip(age - window.fit, 0, last), env)
    return fits.total.at[env].get(mode="clip") - fits.before.at[row, env].get(mode="clip")
