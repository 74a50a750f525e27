"""Parents: the `(sum, least, largest)` of rows of nodes, and how they are stored.

There are two layouts, for `R` rows of `F` parents each:

    narrow, F < 32    `[R, 3, F]`    The three numbers of a parent are close together: one slice writes them.
    wide              `[3 R F]`      All sums, then all least, then all largest numbers. A row of 128 is what one gather
                                     of a TPU fetches, nothing is padded, and one scatter writes single numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl_buffers._xla import set_at, sum_in_order

WIDE = 32  # rows of at least this many nodes are wide
NOTHING = tuple(map(np.float32, (0.0, np.inf, 0.0)))  # the sum, least and largest of no leaves


class Summary(NamedTuple):
    """The sum, the least and the largest of some leaves."""

    total: jax.Array  # float32[]: zero if there are no leaves
    least: jax.Array  # float32[]: the smallest non-zero leaf; inf if there is none
    largest: jax.Array  # float32[]: zero if there are no leaves


def summarize(stats: jax.Array) -> Summary:
    """Summarize nodes `[..., 3, M]` over the last axis."""
    total, least, largest = stats[..., 0, :], stats[..., 1, :], stats[..., 2, :]
    if stats.shape[-1] < WIDE:
        return Summary(sum_in_order(total), jnp.min(least, -1), jnp.max(largest, -1))
    least, largest = lax.reduce((least, largest), NOTHING[1:], _extremes, (least.ndim - 1,))  # both by one kernel
    return Summary(sum_in_order(total), least, largest)


def empty(num_rows: int, fan_out: int) -> jax.Array:
    """Return parents of rows without leaves."""
    if fan_out < WIDE:
        return jnp.broadcast_to(jnp.array(NOTHING, jnp.float32)[None, :, None], (num_rows, 3, fan_out))
    return jnp.repeat(jnp.array(NOTHING, jnp.float32), num_rows * fan_out)


def get(parents: jax.Array, rows: jax.Array, fan_out: int) -> jax.Array:
    """Return rows of parents at indices of any shape: `[..., 3, F]`."""
    if fan_out < WIDE:
        return parents.at[rows].get(mode="clip")
    planes = _planes(parents, fan_out, rows[..., None])
    return parents.reshape(-1, fan_out).at[jnp.concatenate(planes, axis=-1)].get(mode="clip")


def get_sums(parents: jax.Array, rows: jax.Array, fan_out: int) -> jax.Array:
    """Return only the sums of rows of parents: `[..., F]`."""
    if fan_out < WIDE:
        return parents.at[rows, 0].get(mode="clip")
    return parents.reshape(-1, fan_out).at[rows].get(mode="clip")


def get_range(parents: jax.Array, begin: int, end: int, fan_out: int) -> jax.Array:
    """Return the rows `begin..end-1`: `[end - begin, 3, F]`."""
    if fan_out < WIDE:
        return lax.slice_in_dim(parents, begin, end)
    planes = parents.reshape(3, -1)[:, begin * fan_out : end * fan_out]
    return jnp.moveaxis(planes.reshape(3, -1, fan_out), 0, 1)


def put(parents: jax.Array, begin: int, nodes: jax.Array, stats: tuple[jax.Array, ...], fan_out: int) -> jax.Array:
    """Write parents, given the sums, least and largest numbers of each, `[B]`.

    A parent may occur several times if all its entries are equal; then the order of writing does not matter.

    Args:
        parents: all parents in the array.
        begin: the row at which the level begins.
        nodes: `int32[B]`, which parents of the level are written.
        stats: three times `float32[B]`.
        fan_out: `F`.
    """
    if fan_out < WIDE:
        rows = begin + nodes // fan_out
        return set_at(parents, (rows, slice(None), nodes % fan_out), jnp.stack(stats, axis=-1))
    planes = _planes(parents, 1, nodes + begin * fan_out)
    return parents.at[jnp.concatenate(planes)].set(jnp.concatenate(stats), mode="drop")


def put_range(parents: jax.Array, begin: int, stats: jax.Array) -> jax.Array:
    """Write rows of parents `[R, 3, F]` from row `begin` on."""
    fan_out = stats.shape[-1]
    if fan_out < WIDE:
        return lax.dynamic_update_slice_in_dim(parents, stats, begin, axis=0)
    for plane, start in enumerate(_planes(parents, 1, begin * fan_out)):
        parents = lax.dynamic_update_slice_in_dim(parents, stats[:, plane].reshape(-1), start, axis=0)
    return parents


def get_run(parents: jax.Array, begin: jax.Array, count: int, fan_out: int) -> jax.Array:
    """Return the rows `begin..begin+count-1` of wide parents, for a traced `begin`: `[count, 3, F]`."""
    size = count * fan_out
    planes = [lax.dynamic_slice_in_dim(parents, start, size) for start in _planes(parents, 1, begin * fan_out)]
    return jnp.stack([plane.reshape(count, fan_out) for plane in planes], axis=1)


def put_run(parents: jax.Array, begin: jax.Array, stats: tuple[jax.Array, ...]) -> jax.Array:
    """Write wide parents from parent `begin` on, given the sums, least and largest numbers of each, `[count]`."""
    for start, plane in zip(_planes(parents, 1, begin), stats, strict=True):
        parents = lax.dynamic_update_slice_in_dim(parents, plane, start, axis=0)
    return parents


def _planes(parents: jax.Array, unit: int, places: jax.Array | int) -> list[jax.Array | int]:
    """Return where the sums, the least and the largest numbers of wide parents are, in units of `unit` numbers."""
    size = parents.size // 3 // unit
    return [places, places + size, places + 2 * size]


def _extremes(one: tuple[jax.Array, ...], other: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    return lax.min(one[0], other[0]), lax.max(one[1], other[1])
