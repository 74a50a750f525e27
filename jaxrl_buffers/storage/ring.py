"""A ring of `T` rows for `N` environments, as pure functions on an immutable state.

Every row is written once, at `position mod T`; everything else is arithmetic on positions. Lock-step rings have one
cursor for all environments and write contiguously; rings with per-environment cursors accept partial writes.

Cost: a write touches only the rows that it writes. The index arithmetic adds or subtracts the modulus instead of
dividing, because XLA's CPU backend does not vectorize integer division.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_buffers.storage import rows as rows_module
from jaxrl_buffers.storage.rows import Rows
from jaxrl_buffers.types import PyTree

POSITION_LIMIT = 2**30  # positions stay below this, so sums of two of them fit in int32


class Ring(NamedTuple):
    """The stored rows and where the next one goes."""

    rows: Rows  # [T, N]
    head: jax.Array  # int32[] (lock-step) or [N]: the position to be written next
    size: jax.Array  # int32[] or [N]: how many of the newest rows are stored
    episodes: PyTree = ()  # the index of their episodes, if some part asks for it
    frames: PyTree = ()  # their observations, if these are kept apart

    @property
    def data(self) -> PyTree:
        """What the rows hold: leaves `[T, N, ...]`, however they lie in memory."""
        return self.rows.tree


class Chunk(NamedTuple):
    """Rows to be written: the first `lengths[e]` of column `e` go to environment `env[e]`."""

    rows: PyTree  # leaves [K, E, ...]
    env: jax.Array  # int32[E]
    lengths: jax.Array  # int32[E]

    @property
    def num_rows(self) -> int:
        """`K`."""
        return jax.tree.leaves(self.rows)[0].shape[0]


def init(structure: PyTree, length: int, num_envs: int, lockstep: bool, platform: str | None = "cpu") -> Ring:
    """Allocate an empty ring for rows of the given shapes and dtypes."""
    cursor_shape = () if lockstep else (num_envs,)
    empty = rows_module.empty(structure, (length, num_envs), platform)
    return Ring(empty, jnp.zeros(cursor_shape, jnp.int32), jnp.zeros(cursor_shape, jnp.int32))


def shape(ring: Ring) -> tuple[int, int]:
    """Return `(T, N)`."""
    return ring.rows.shape


def modulus(ring: Ring) -> int:
    """Return what positions are counted modulo: the largest multiple of `T` within the limit."""
    length, _ = shape(ring)
    return POSITION_LIMIT // length * length


def is_lockstep(ring: Ring) -> bool:
    """Tell whether all environments share one cursor."""
    return ring.head.ndim == 0


def of_env(cursor: jax.Array, env: jax.Array) -> jax.Array:
    """Return the cursor of each environment in `env`: the common one in lock-step."""
    return cursor if cursor.ndim == 0 else cursor.at[env].get(mode="clip")


def wrap(index: jax.Array, period: int) -> jax.Array:
    """Bring an index from `[-period, 2 * period)` into `[0, period)`."""
    index = jnp.where(index < 0, index + period, index)
    return jnp.where(index >= period, index - period, index)


def age_of_position(ring: Ring, position: jax.Array, env: jax.Array) -> jax.Array:
    """Return how many rows were written after `position`; the row is stored iff this is below the size."""
    return wrap(of_env(ring.head, env) - 1 - position, modulus(ring))


def position_of_age(ring: Ring, age: jax.Array, env: jax.Array) -> jax.Array:
    """Return the position of the row of the given age."""
    return wrap(of_env(ring.head, env) - 1 - age, modulus(ring))


def row_of_age(ring: Ring, age: jax.Array, env: jax.Array) -> jax.Array:
    """Return the row of the given age; meaningful for ages below `T`."""
    length, _ = shape(ring)
    return wrap(of_env(ring.head % length, env) - 1 - age, length)


def age_of_row(ring: Ring, row: jax.Array, env: jax.Array) -> jax.Array:
    """Return the age of what was last written to `row`."""
    length, _ = shape(ring)
    return wrap(of_env(ring.head % length, env) - 1 - row, length)


def slot(ring: Ring, row: jax.Array, env: jax.Array) -> jax.Array:
    """Return the flat index of `(row, env)`: rows that are written together lie side by side."""
    length, num_envs = shape(ring)
    return row * num_envs + env if is_lockstep(ring) else env * length + row


def unravel(ring: Ring, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the `(row, env)` of flat slots."""
    length, num_envs = shape(ring)
    inner = num_envs if is_lockstep(ring) else length
    quotient = slots // inner
    remainder = slots - quotient * inner
    return (quotient, remainder) if is_lockstep(ring) else (remainder, quotient)


def read(ring: Ring, row: jax.Array, env: jax.Array) -> PyTree:
    """Gather rows at indices of any common shape."""
    return ring.rows.read(row * shape(ring)[1] + env)


def write(ring: Ring, chunk: PyTree) -> Ring:
    """Append a chunk `[K, N, ...]` in lock-step."""
    length, _ = shape(ring)
    num_rows = jax.tree.leaves(chunk)[0].shape[0]
    head = (ring.head + num_rows) % modulus(ring)
    size = jnp.minimum(ring.size + num_rows, length)
    return ring._replace(rows=ring.rows.write(chunk, ring.head % length, length), head=head, size=size)


def write_at(ring: Ring, chunk: Chunk) -> Ring:
    """Append rows to some environments; needs per-environment cursors. Unknown environments are ignored."""
    length, num_envs = shape(ring)
    place = places(ring, chunk)
    known = (chunk.env >= 0) & (chunk.env < num_envs)
    env = jnp.where(known, chunk.env, num_envs)
    head = ring.head.at[env].add(chunk.lengths, mode="drop") % modulus(ring)
    size = jnp.minimum(ring.size.at[env].add(chunk.lengths, mode="drop"), length)
    return ring._replace(rows=ring.rows.write_at(chunk.rows, place.row, place.env), head=head, size=size)


class Break(NamedTuple):
    """Episodes that are closed from outside."""

    where: jax.Array  # bool[N]: in which environments
    is_cut: jax.Array  # bool[N]: where the newest row becomes truncated by it
    newest: PyTree  # leaves [N, ...]: the newest rows as the ring held them
    row: jax.Array  # int32[N]: of these


class Places(NamedTuple):
    """Where the rows of a chunk go, each `[K, E]`."""

    row: jax.Array  # int32; T where nothing is written
    env: jax.Array  # int32
    position: jax.Array  # int32
    is_written: jax.Array  # bool


def places(ring: Ring, chunk: Chunk) -> Places:
    """Return where the rows of a chunk go in the ring as it is before they are written."""
    length, num_envs = shape(ring)
    known = (chunk.env >= 0) & (chunk.env < num_envs)
    offset = jnp.arange(chunk.num_rows, dtype=jnp.int32)[:, None]
    is_written = known[None] & (offset < chunk.lengths[None])
    env = jnp.broadcast_to(chunk.env[None], is_written.shape)
    row = wrap(of_env(ring.head % length, env) + offset, length)
    position = wrap(of_env(ring.head, env) + offset, modulus(ring))
    return Places(jnp.where(is_written, row, length), env, position, is_written)


def sort_chunk(
    rows: PyTree, priorities: jax.Array | None, env: jax.Array, mask: jax.Array | None
) -> tuple[Chunk, jax.Array | None]:
    """Bring partial rows `[K, E, ...]` and their priorities into the form in which each column's rows come first.

    Args:
        rows: leaves `[K, E, ...]`.
        priorities: `[K, E]` or None.
        env: `int32[E]`, the environment of each column.
        mask: `bool[K, E]` or `[E]`, the entries that count; None for all.
    """
    num_rows = jax.tree.leaves(rows)[0].shape[0]
    if mask is None:
        return Chunk(rows, env, jnp.full(env.shape, num_rows, jnp.int32)), priorities
    mask = jnp.broadcast_to(jnp.asarray(mask, bool), (num_rows, env.shape[0]))
    order = jnp.argsort(~mask, axis=0, stable=True)
    columns = jnp.arange(env.shape[0])[None]
    rows, priorities = jax.tree.map(lambda leaf: leaf[order, columns], (rows, priorities))
    return Chunk(rows, env, jnp.sum(mask, axis=0, dtype=jnp.int32)), priorities
