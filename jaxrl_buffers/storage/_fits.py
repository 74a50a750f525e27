"""Starts whose samples stay within one episode: how many there are, and where the start of a given number is.

With some views, `fit` rows of the start's own episode must follow a start. Whether they do is known when the last of
these rows is written. So a start is counted at the last row of its sample. `before[row]` is the number of samples whose
last row was written before this row, since the ring was made. The difference of two such counts is the number of starts
between them:

    starts of age a or less = total - before[row of age a - fit]

Here is an example of one environment, with `fit = 2`, `total = 4`, and a bar at the end of an episode:

    row                        0   1   2   3 | 4   5   6   7
    is a start                 *   *           *   *
    is the last row of one             *   *           *   *
    `before`                   0   0   0   1   2   2   2   3

The counts are part of the episode index, and exist only if the view needs them. Cost: counting takes one read for each
environment; finding a start takes `log2(T)` reads.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import Window


class Fit(NamedTuple):
    """Which rows are starts: rows at multiples of `stride`, if `lookahead` rows of their own episode follow them."""

    lookahead: int
    stride: int


class Fits(NamedTuple):
    """Counts of starts; they may overflow, because only their differences are used."""

    before: jax.Array  # int32[T, N]: how many legal starts have samples that end before this row
    total: jax.Array  # int32[N]: how many legal starts have samples that have ended so far


def are_counted(storage: Ring) -> bool:
    """Return whether a ring keeps these counts."""
    return storage.episodes != () and storage.episodes.fits != ()


def init(shape: tuple[int, int]) -> Fits:
    """Return the counts of an empty ring of shape `(T, N)`."""
    return Fits(jnp.zeros(shape, jnp.int32), jnp.zeros(shape[1], jnp.int32))


def record(fits: Fits, fit: Fit, position: jax.Array, length: jax.Array, row: jax.Array, env: jax.Array) -> Fits:
    """Return the counts after rows were written to `(row, env)`; entries outside the ring are left out.

    Args:
        fits: the counts before.
        fit: which rows are starts.
        position: `int32[K, E]`, the position of each row.
        length: `int32[K, E]`, how many rows its episode has up to this one.
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
    """Count the starts of each environment in a window: `int32[N]`."""
    env = jnp.arange(ring.shape(storage)[1], dtype=jnp.int32)
    newest, oldest = (jnp.broadcast_to(age, env.shape) for age in (window.newest, window.oldest))
    return jnp.where(newest < oldest, _count_to(storage, window, oldest - 1, env), 0)


def age_of_number(storage: Ring, window: Window, number: jax.Array, env: jax.Array) -> jax.Array:
    """Return the age of start `number` of its environment, where 0 is the newest start in the window."""
    newest, oldest = (jnp.broadcast_to(ring.of_env(age, env), env.shape) for age in (window.newest, window.oldest))

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low + high) // 2
        is_reached = _count_to(storage, window, middle, env) > number
        return jnp.where(is_reached, low, middle + 1), jnp.where(is_reached, middle, high)

    return lax.fori_loop(0, ring.shape(storage)[0].bit_length(), halve, (newest, oldest - 1))[0]


def _count_to(storage: Ring, window: Window, age: jax.Array, env: jax.Array) -> jax.Array:
    """Count the starts of the window whose age is at most `age`."""
    fits, last = storage.episodes.fits, ring.shape(storage)[0] - 1
    row = ring.row_of_age(storage, jnp.clip(age - window.fit, 0, last), env)
    return fits.total.at[env].get(mode="clip") - fits.before.at[row, env].get(mode="clip")
