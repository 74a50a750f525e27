"""A ring of `T` rows for `N` environments, as pure functions on an immutable state.

Every row is written once, at `position mod T`; everything else is arithmetic on positions. Lock-step rings have one
cursor for all environments and write contiguously; rings with per-environment cursors accept partial writes.

Cost: a write touches only the rows that it writes. The index arithmetic adds or subtracts the modulus instead of
dividing, because XLA's CPU backend does not vectorize integer division.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_buffers._xla import keep
from jaxrl_buffers.types import PyTree

Change = Callable[[PyTree, jax.Array, jax.Array], PyTree]  # from (rows, row, env) to other rows
POSITION_LIMIT = 2**30  # positions stay below this, so sums of two of them fit in int32


class Ring(NamedTuple):
    """The stored rows and where the next one goes."""

    data: PyTree  # leaves [T, N, ...]
    head: jax.Array  # int32[] (lock-step) or [N]: the position to be written next
    size: jax.Array  # int32[] or [N]: how many of the newest rows are stored
    episodes: PyTree = ()  # the index of their episodes, if some part asks for it
    frames: PyTree = ()  # their observations, if these are kept apart


class Rows(NamedTuple):
    """Rows to be written: the first `lengths[e]` of column `e` go to environment `env[e]`."""

    data: PyTree  # leaves [K, E, ...]
    env: jax.Array  # int32[E]
    lengths: jax.Array  # int32[E]


def init(example: PyTree, length: int, num_envs: int, lockstep: bool) -> Ring:
    """Allocate an empty ring for rows like `example` (one unbatched row, or `ShapeDtypeStruct`s)."""
    cursor_shape = () if lockstep else (num_envs,)
    data = jax.tree.map(lambda leaf: jnp.zeros((length, num_envs, *leaf.shape), leaf.dtype), example)
    return Ring(data, jnp.zeros(cursor_shape, jnp.int32), jnp.zeros(cursor_shape, jnp.int32))


def shape(ring: Ring) -> tuple[int, int]:
    """Return `(T, N)`."""
    length, num_envs = jax.tree.leaves(ring.data)[0].shape[:2]
    return length, num_envs


def row_structure(ring: Ring) -> PyTree:
    """Return the shapes and dtypes of one row."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), ring.data)


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
    length, num_envs = shape(ring)
    index = keep(jnp.ravel(row * num_envs + env))

    def gather(leaf: jax.Array) -> jax.Array:
        rows = leaf.reshape(length * num_envs, *leaf.shape[2:]).at[index].get(mode="clip")
        return rows.reshape(*row.shape, *leaf.shape[2:])

    return jax.tree.map(gather, ring.data)


def write(ring: Ring, chunk: PyTree) -> Ring:
    """Append a chunk `[K, N, ...]` in lock-step, as at most two contiguous writes a leaf."""
    length, _ = shape(ring)
    num_rows = jax.tree.leaves(chunk)[0].shape[0]
    data = jax.tree.map(lambda leaf, new: write_rows(leaf, new, ring.head % length, length), ring.data, chunk)
    head = (ring.head + num_rows) % modulus(ring)
    return ring._replace(data=data, head=head, size=jnp.minimum(ring.size + num_rows, length))


def write_rows(leaf: jax.Array, new: jax.Array, row: jax.Array, length: int) -> jax.Array:
    """Write `new` at `row` of a ring in the first `length` rows, going on at row 0 behind its end.

    `dynamic_update_slice` clamps its start, so a chunk that wraps is rolled by the overhang: its first part then ends
    at the ring's end and its last part stands at the beginning, and each write keeps the other rows as they were.
    """
    num_rows = new.shape[0]
    if num_rows == 1:
        return write_one(leaf, new, row)
    start = jnp.minimum(row, length - num_rows)
    overhang = row - start
    rolled = jnp.roll(new, overhang, axis=0)
    is_tail = (jnp.arange(num_rows) < overhang).reshape(-1, *[1] * (new.ndim - 1))
    kept = lax.dynamic_slice_in_dim(leaf, start, num_rows, axis=0)
    leaf = lax.dynamic_update_slice_in_dim(leaf, jnp.where(is_tail, kept, rolled), start, axis=0)
    first = jnp.where(is_tail, rolled, leaf[:num_rows])
    return lax.dynamic_update_slice_in_dim(leaf, first, 0, axis=0)


def write_one(leaf: jax.Array, new: jax.Array, row: jax.Array | int) -> jax.Array:
    """Write one row, together with a neighbour as it is.

    XLA's CPU backend would fuse a slice of a single row into later gathers, and keep their other reads right by copying
    the whole leaf.
    """
    if leaf.shape[0] == 1:
        return new
    start = jnp.minimum(row, leaf.shape[0] - 2)
    kept = lax.dynamic_slice_in_dim(leaf, start, 2, axis=0)
    is_new = (start + jnp.arange(2) == row).reshape(-1, *[1] * (new.ndim - 1))
    return lax.dynamic_update_slice_in_dim(leaf, jnp.where(is_new, new, kept), start, axis=0)


def rows_of_chunk(
    chunk: PyTree, priorities: jax.Array | None, env: jax.Array, mask: jax.Array | None
) -> tuple[Rows, jax.Array | None]:
    """Bring a partial chunk `[K, E, ...]` and its priorities into the form in which each column's rows come first.

    Args:
        chunk: leaves `[K, E, ...]`.
        priorities: `[K, E]` or None.
        env: `int32[E]`, the environment of each column.
        mask: `bool[K, E]` or `[E]`, the entries that count; None for all.
    """
    num_rows = jax.tree.leaves(chunk)[0].shape[0]
    if mask is None:
        return Rows(chunk, env, jnp.full(env.shape, num_rows, jnp.int32)), priorities
    mask = jnp.broadcast_to(jnp.asarray(mask, bool), (num_rows, env.shape[0]))
    order = jnp.argsort(~mask, axis=0, stable=True)
    columns = jnp.arange(env.shape[0])[None]
    chunk, priorities = jax.tree.map(lambda leaf: leaf[order, columns], (chunk, priorities))
    return Rows(chunk, env, jnp.sum(mask, axis=0, dtype=jnp.int32)), priorities


def write_at(ring: Ring, rows: Rows) -> Ring:
    """Append rows to some environments; needs per-environment cursors. Unknown environments are ignored."""
    length, num_envs = shape(ring)
    num_rows = jax.tree.leaves(rows.data)[0].shape[0]
    known = (rows.env >= 0) & (rows.env < num_envs)
    offset = jnp.arange(num_rows, dtype=jnp.int32)[:, None]
    row = wrap(of_env(ring.head % length, rows.env)[None] + offset, length)
    written = known[None] & (offset < rows.lengths[None])
    row = jnp.where(written, row, length)  # outside: dropped
    env = jnp.broadcast_to(rows.env[None], row.shape)
    # Not through flat indices: reshaped to and fro, XLA lays some arrays out anew, which copies the whole ring.
    data = jax.tree.map(lambda leaf, new: leaf.at[row, env].set(new, mode="drop"), ring.data, rows.data)
    env = jnp.where(known, rows.env, num_envs)
    head = ring.head.at[env].add(rows.lengths, mode="drop") % modulus(ring)
    size = jnp.minimum(ring.size.at[env].add(rows.lengths, mode="drop"), length)
    return ring._replace(data=data, head=head, size=size)


class Reader(NamedTuple):
    """How views read rows, whatever storage they lie in."""

    ring: Ring
    changes: tuple[Change, ...] = ()
    complete: Callable[[jax.Array, jax.Array], jax.Array] | None = None

    def read(self, row: jax.Array, env: jax.Array) -> PyTree:
        """Return the rows at indices of any common shape."""
        rows = read(self.ring, row, env)
        for change in self.changes:
            rows = change(rows, row, env)
        return rows

    def map(self, change: Change) -> Reader:
        """Return a reader of changed rows; the stored ones stay as they are."""
        return self._replace(changes=(*self.changes, change))

    def is_complete(self, row: jax.Array, env: jax.Array) -> jax.Array:
        """Tell which stored rows can still be read whole."""
        return jnp.ones(row.shape, bool) if self.complete is None else self.complete(row, env)

    def oldest(self, start: jax.Array | int, num_rows: int) -> tuple[PyTree, jax.Array]:
        """Return `num_rows` rows of every environment, `start` rows after the oldest one.

        Returns:
            Leaves `[num_rows, N, ...]` in order of time, and `bool[num_rows, N]` telling which are stored whole.
        """
        _, num_envs = shape(self.ring)
        env = jnp.broadcast_to(jnp.arange(num_envs, dtype=jnp.int32)[None], (num_rows, num_envs))
        index = jnp.broadcast_to(start + jnp.arange(num_rows, dtype=jnp.int32)[:, None], env.shape)
        size = of_env(self.ring.size, env)
        stored = (index >= 0) & (index < size)
        row = row_of_age(self.ring, jnp.where(stored, size - 1 - index, 0), env)
        return self.read(row, env), stored & self.is_complete(row, env)

    @property
    def episodes(self) -> PyTree:
        """The episode index; `episodes.of_rows(reader.ring, row, env)` asks it."""
        return self.ring.episodes

    def locate(self, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the `(row, env)` of flat slots."""
        return unravel(self.ring, slots)

    def age(self, row: jax.Array, env: jax.Array) -> jax.Array:
        """Return how many newer rows are stored."""
        return age_of_row(self.ring, row, env)

    def later(self, row: jax.Array, steps: jax.Array | int) -> jax.Array:
        """Return the row `steps` (at most `T`) after `row`."""
        return wrap(row + steps, shape(self.ring)[0])
