"""How the nodes above the leaves lie in memory: the `(sum, least, largest)` of `R` rows of `F` nodes each.

Narrow rows are `[R, 3, F]`: what is known of a node lies close together, and one slice of three numbers writes it.
Wide rows are flat, `[3 R F]`, all sums first. A row of 128 is then what one gather of a TPU fetches, nothing is padded,
and single numbers are written by one scatter.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl_buffers._xla import set_at

WIDE = 32  # rows of so many nodes or more are wide
NOTHING = tuple(map(np.float32, (0.0, np.inf, 0.0)))  # the sum, least and largest of no leaves


def empty(num_rows: int, fan_out: int) -> jax.Array:
    """Return rows of nodes without any leaves."""
    if fan_out < WIDE:
        return jnp.broadcast_to(jnp.array(NOTHING, jnp.float32)[None, :, None], (num_rows, 3, fan_out))
    return jnp.repeat(jnp.array(NOTHING, jnp.float32), num_rows * fan_out)


def get(parents: jax.Array, rows: jax.Array, fan_out: int) -> jax.Array:
    """Return the rows at indices of any shape: `[..., 3, F]`."""
    if fan_out < WIDE:
        return parents.at[rows].get(mode="clip")
    planes = _planes(parents, fan_out, rows[..., None])
    return parents.reshape(-1, fan_out).at[jnp.concatenate(planes, axis=-1)].get(mode="clip")


def get_sums(parents: jax.Array, rows: jax.Array, fan_out: int) -> jax.Array:
    """Return only the sums of rows: `[..., F]`."""
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
    """Write the sums, least and largest, `[B]` each, of nodes counted from row `begin` on.

    Nodes that occur several times must be equal, so that the order of writing does not matter.
    """
    if fan_out < WIDE:
        rows = begin + nodes // fan_out
        return set_at(parents, (rows, slice(None), nodes % fan_out), jnp.stack(stats, axis=-1))
    planes = _planes(parents, 1, nodes + begin * fan_out)
    return parents.at[jnp.concatenate(planes)].set(jnp.concatenate(stats), mode="drop")


def put_range(parents: jax.Array, begin: int, stats: jax.Array) -> jax.Array:
    """Write the rows `[R, 3, F]` from `begin` on."""
    fan_out = stats.shape[-1]
    if fan_out < WIDE:
        return lax.dynamic_update_slice_in_dim(parents, stats, begin, axis=0)
    for plane, start in enumerate(_planes(parents, 1, begin * fan_out)):
        parents = lax.dynamic_update_slice_in_dim(parents, stats[:, plane].reshape(-1), start, axis=0)
    return parents


def get_run(parents: jax.Array, begin: jax.Array, count: int, fan_out: int) -> jax.Array:
    """Return the rows `begin..begin+count-1` of wide parents: `[count, 3, F]`."""
    size = count * fan_out
    planes = [lax.dynamic_slice_in_dim(parents, start, size) for start in _planes(parents, 1, begin * fan_out)]
    return jnp.stack([plane.reshape(count, fan_out) for plane in planes], axis=1)


def put_run(parents: jax.Array, begin: jax.Array, stats: tuple[jax.Array, ...]) -> jax.Array:
    """Write the sums, least and largest, `[count]` each, of the nodes of wide parents from node `begin` on."""
    for start, plane in zip(_planes(parents, 1, begin), stats, strict=True):
        parents = lax.dynamic_update_slice_in_dim(parents, plane, start, axis=0)
    return parents


def _planes(parents: jax.Array, unit: int, places: jax.Array | int) -> list[jax.Array | int]:
    """Return where the sums, least and largest of wide parents stand, counted in `unit` numbers."""
    size = parents.size // 3 // unit
    return [places, places + size, places + 2 * size]
