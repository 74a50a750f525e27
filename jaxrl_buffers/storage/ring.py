"""A ring of `T` rows for `N` environments, as pure functions on an immutable state.

Rows are counted by positions. Position `p` is written to row `p mod T`, once; the age of a row is how many rows of its
environment were written after it. With `T = 4` and seven rows written:

    row          0   1   2   3
    position     4   5   6   3
    age          2   1   0   3
                             ^ the head: position 7 goes here

A row is stored if and only if its age is below `size`. Everything else is arithmetic on positions, ages and rows.

In lock-step all environments share one head and are written together, as blocks of rows. Otherwise each environment has
its own head, and a write may add any number of rows to any of them.

Cost: a write touches only the rows that it writes. Indices wrap by adding or subtracting the modulus instead of
dividing, because XLA's CPU backend does not vectorize integer division.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_buffers._xla import in_one_kernel
from jaxrl_buffers.storage import rows as rows_module
from jaxrl_buffers.storage.rows import Rows
from jaxrl_buffers.types import Handle, PyTree

POSITION_LIMIT = 2**30  # positions stay below this, so the sum of two positions fits in int32


class Ring(NamedTuple):
    """The stored rows, where the next one goes, and the states of the layers beside the rows."""

    rows: Rows  # [T, N]
    head: jax.Array  # int32[] in lock-step, else [N]: the position to be written next
    size: jax.Array  # int32[] or [N]: how many of the newest rows are stored
    episodes: PyTree = ()  # an `EpisodeIndex`, or () if it is not needed
    frames: PyTree = ()  # a `FrameStore`, or () if rows hold their observations themselves

    @property
    def data(self) -> PyTree:
        """The rows as leaves `[T, N, ...]`, whichever layout they are stored in."""
        return self.rows.tree


class Chunk(NamedTuple):
    """Rows to be written: the first `lengths[e]` rows of column `e` go to environment `env[e]`."""

    rows: PyTree  # leaves [K, E, ...]
    env: jax.Array  # int32[E]
    lengths: jax.Array  # int32[E]

    @property
    def num_rows(self) -> int:
        """`K`."""
        return jax.tree.leaves(self.rows)[0].shape[0]

    @property
    def newest(self) -> jax.Array:
        """`int32[E]`: which row of each column is the last one to be written; 0 where none is."""
        return jnp.maximum(self.lengths - 1, 0)


def init(structure: PyTree, length: int, num_envs: int, lockstep: bool, platform: str | None = "cpu") -> Ring:
    """Allocate an empty ring for rows of the given shapes and dtypes."""
    cursor_shape = () if lockstep else (num_envs,)
    empty = rows_module.empty(structure, (length, num_envs), platform)
    return Ring(empty, jnp.zeros(cursor_shape, jnp.int32), jnp.zeros(cursor_shape, jnp.int32))


def shape(ring: Ring) -> tuple[int, int]:
    """Return `(T, N)`."""
    return ring.rows.shape


def modulus(ring: Ring) -> int:
    """Return the modulus of positions: the largest multiple of `T` within the limit."""
    length, _ = shape(ring)
    return POSITION_LIMIT // length * length


def is_lockstep(ring: Ring) -> bool:
    """Return whether all environments share one head."""
    return ring.head.ndim == 0


def of_env(cursor: jax.Array, env: jax.Array) -> jax.Array:
    """Return the head or size of each environment in `env`; in lock-step there is one for all."""
    return cursor if cursor.ndim == 0 else cursor.at[env].get(mode="clip")


def wrap(index: jax.Array, period: int) -> jax.Array:
    """Bring an index from `[-period, 2 * period)` into `[0, period)`."""
    index = jnp.where(index < 0, index + period, index)
    return jnp.where(index >= period, index - period, index)


def age_of_position(ring: Ring, position: jax.Array, env: jax.Array) -> jax.Array:
    """Return the age of the row at `position`. The row is stored if and only if its age is below the size."""
    return wrap(of_env(ring.head, env) - 1 - position, modulus(ring))


def position_of_age(ring: Ring, age: jax.Array, env: jax.Array) -> jax.Array:
    """Return the position of the row of the given age."""
    return wrap(of_env(ring.head, env) - 1 - age, modulus(ring))


def row_of_age(ring: Ring, age: jax.Array, env: jax.Array) -> jax.Array:
    """Return the row of the given age, which must be below `T`."""
    length, _ = shape(ring)
    return wrap(of_env(ring.head % length, env) - 1 - age, length)


def age_of_row(ring: Ring, row: jax.Array, env: jax.Array) -> jax.Array:
    """Return the age of the newest data in `row`."""
    length, _ = shape(ring)
    return wrap(of_env(ring.head % length, env) - 1 - row, length)


def slot(ring: Ring, row: jax.Array, env: jax.Array) -> jax.Array:
    """Return the flat index of `(row, env)`, in an order in which slots written together are neighbors."""
    length, num_envs = shape(ring)
    return row * num_envs + env if is_lockstep(ring) else env * length + row


def unravel(ring: Ring, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the `(row, env)` of slots: the inverse of `slot`."""
    length, num_envs = shape(ring)
    inner = num_envs if is_lockstep(ring) else length
    quotient = slots // inner
    remainder = slots - quotient * inner
    return (quotient, remainder) if is_lockstep(ring) else (remainder, quotient)


def handles_of(ring: Ring, slots: jax.Array, valid: jax.Array) -> Handle:
    """Return handles to the rows that are in the slots now. Where `valid` is False, the handle is always stale."""
    row, env = unravel(ring, slots)
    position = position_of_age(ring, age_of_row(ring, row, env), env)
    return Handle(env, jnp.where(valid, position, -1))


def locate(ring: Ring, handle: Handle) -> tuple[jax.Array, jax.Array]:
    """Return the slots of handles and whether their rows are still stored; if not, the slot is `T * N`."""
    length, num_envs = shape(ring)
    env, position = jnp.asarray(handle.env, jnp.int32), jnp.asarray(handle.position, jnp.int32)
    age = age_of_position(ring, position, env)
    known = (env >= 0) & (env < num_envs) & (position >= 0) & (position < modulus(ring))
    live = known & (age < of_env(ring.size, env))
    row = row_of_age(ring, jnp.where(live, age, 0), env)
    return jnp.where(live, slot(ring, row, env), length * num_envs), live


def read(ring: Ring, row: jax.Array, env: jax.Array) -> PyTree:
    """Return the rows at indices of any common shape."""
    return ring.rows.read(row * shape(ring)[1] + env)


def write(ring: Ring, chunk: PyTree) -> Ring:
    """Append a chunk `[K, N, ...]` in lock-step."""
    length, _ = shape(ring)
    num_rows = jax.tree.leaves(chunk)[0].shape[0]
    head = (ring.head + num_rows) % modulus(ring)
    size = in_one_kernel(jnp.minimum(ring.size + num_rows, length), head)
    return ring._replace(rows=ring.rows.write(chunk, ring.head % length, length), head=head, size=size)


def write_at(ring: Ring, chunk: Chunk) -> Ring:
    """Append rows to some environments of a ring that is not in lock-step; unknown environments are left out."""
    length, num_envs = shape(ring)
    place = places(ring, chunk)
    known = (chunk.env >= 0) & (chunk.env < num_envs)
    env = jnp.where(known, chunk.env, num_envs)
    head = ring.head.at[env].add(chunk.lengths, mode="drop") % modulus(ring)
    size = in_one_kernel(jnp.minimum(ring.size.at[env].add(chunk.lengths, mode="drop"), length), head)
    return ring._replace(rows=ring.rows.write_at(chunk.rows, place.row, place.env), head=head, size=size)


class Break(NamedTuple):
    """Open episodes that the user closes, such as after a reset of the environments."""

    where: jax.Array  # bool[N]: the environments whose episodes are closed
    is_cut: jax.Array  # bool[N]: where the newest row becomes truncated by this
    newest: PyTree  # leaves [N, ...]: the newest row of each environment, before the change
    row: jax.Array  # int32[N]: the index of the newest row


class Places(NamedTuple):
    """Where the rows of a chunk go; all fields are `[K, E]`."""

    row: jax.Array  # int32; T where nothing is written
    env: jax.Array  # int32
    position: jax.Array  # int32
    is_written: jax.Array  # bool


def places(ring: Ring, chunk: Chunk) -> Places:
    """Return where the rows of a chunk will go, given the ring before they are written."""
    length, num_envs = shape(ring)
    known = (chunk.env >= 0) & (chunk.env < num_envs)
    offset = jnp.arange(chunk.num_rows, dtype=jnp.int32)[:, None]
    is_written = known[None] & (offset < chunk.lengths[None])
    env = jnp.broadcast_to(chunk.env[None], is_written.shape)
    row = wrap(of_env(ring.head % length, env) + offset, length)
    position = wrap(of_env(ring.head, env) + offset, modulus(ring))
    return Places(jnp.where(is_written, row, length), env, position, is_written)


def begin_of_episodes(ended: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Find where the episodes of a chunk's rows begin, given which rows `[K, E]` end one.

    Returns:
        `int32[K, 1]`, the number of each row within the chunk, and `int32[K, E]`, the number of the first row of its
        episode; -1 where the episode began before the chunk.
    """
    number = jnp.arange(ended.shape[0], dtype=jnp.int32)[:, None]
    is_first = jnp.roll(ended, 1, axis=0) & (number > 0)
    return number, lax.cummax(jnp.where(is_first, number, -1))


def sort_chunk(
    rows: PyTree, priorities: jax.Array | None, env: jax.Array, mask: jax.Array | None
) -> tuple[Chunk, jax.Array | None]:
    """Move the rows that are to be written to the front of each column, and their priorities with them.

    Args:
        rows: leaves `[K, E, ...]`.
        priorities: `[K, E]` or None.
        env: `int32[E]`, the environment of each column.
        mask: `bool[K, E]` or `[E]`, the rows to be written; None for all.
    """
    num_rows = jax.tree.leaves(rows)[0].shape[0]
    if mask is None:
        return Chunk(rows, env, jnp.full(env.shape, num_rows, jnp.int32)), priorities
    mask = jnp.broadcast_to(jnp.asarray(mask, bool), (num_rows, env.shape[0]))
    order = jnp.argsort(~mask, axis=0, stable=True)
    columns = jnp.arange(env.shape[0])[None]
    rows, priorities = jax.tree.map(lambda leaf: leaf[order, columns], (rows, priorities))
    return Chunk(rows, env, jnp.sum(mask, axis=0, dtype=jnp.int32)), priorities
