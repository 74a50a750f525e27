"""`Leaves`: the layout of rows for CPUs, in which each leaf of a row has its own array."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_buffers._fields import named_field, with_field
from jaxrl_buffers._xla import keep, set_at, set_row
from jaxrl_buffers.component import Component
from jaxrl_buffers.types import PyTree


class Leaves(Component):
    """One array for each leaf of a row."""

    tree: PyTree  # leaves [T, N, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """`(T, N)`."""
        length, num_envs = jax.tree.leaves(self.tree)[0].shape[:2]
        return length, num_envs

    @property
    def structure(self) -> PyTree:
        """The shapes and dtypes of one row."""
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), self.tree)

    def read(self, index: jax.Array) -> PyTree:
        """Return the rows at indices of any shape."""
        index, shape = keep(jnp.ravel(index)), index.shape

        def gather(leaf: jax.Array) -> jax.Array:
            entry = leaf.shape[2:]
            flat = leaf.reshape(-1, *([math.prod(entry)] if entry else []))
            return flat.at[index].get(mode="clip").reshape(*shape, *entry)

        return jax.tree.map(gather, self.tree)

    def read_steps(self, index: list[jax.Array]) -> list[PyTree]:
        """Return the rows at `index[B]` of each step."""
        rows = self.read(jnp.stack(index))
        return [jax.tree.map(lambda leaf: leaf[step], rows) for step in range(len(index))]  # noqa: B023

    def unpack(self, step: PyTree) -> PyTree:
        """Return the rows of one step unchanged, because they are leaves already."""
        return step

    def select(self, steps: list[PyTree], number: jax.Array | int, index: jax.Array) -> PyTree:
        """Read step `number[B]` of each sample again. The compiler removes reads of leaves that are not used."""
        return self.read(index)

    @property
    def stored_leaves(self) -> PyTree:
        """The leaves for a checkpoint."""
        return self.tree

    def with_tree(self, tree: PyTree) -> Leaves:
        """Return rows in the same layout that hold the given leaves."""
        return Leaves(tree)

    def write(self, chunk: PyTree, row: jax.Array | int, length: int) -> Leaves:
        """Write a chunk `[K, N, ...]`, by at most two slice updates for each leaf."""
        return Leaves(jax.tree.map(lambda leaf, new: write_rows(leaf, new, row, length), self.tree, chunk))

    def write_at(self, rows: PyTree, row: jax.Array, env: jax.Array) -> Leaves:
        """Write rows `[K, E, ...]` to distinct places."""
        # There are two indices, because with a flat index XLA would copy some arrays into another layout.
        index = row.reshape(-1), env.reshape(-1)

        def write(leaf: jax.Array, new: jax.Array) -> jax.Array:
            return set_at(leaf, index, new.reshape(-1, *new.shape[2:]))

        return Leaves(jax.tree.map(write, self.tree, rows))

    def set_field(self, name: str, values: jax.Array, row: jax.Array, env: jax.Array) -> Leaves:
        """Change one field of the rows at distinct places `[E]`; the arrays of other fields stay as they are."""
        field = named_field(self.tree, name).at[row, env].set(values, mode="drop")
        return Leaves(with_field(self.tree, name, field))


def write_rows(leaf: jax.Array, new: jax.Array, row: jax.Array | int, length: int) -> jax.Array:
    """Write `new` to rows `row, row + 1, ...` of an array; after row `length - 1` comes row 0."""
    num_rows = new.shape[0]
    if num_rows == 1:
        return set_row(leaf, new, row)
    start = jnp.minimum(row, length - num_rows)
    return write_wrapped(leaf, new, start, row - start)


def write_wrapped(array: jax.Array, new: jax.Array, start: jax.Array, overhang: jax.Array) -> jax.Array:
    """Write `new` from `start + overhang` on; its last `overhang` entries go to the front of the array.

    `dynamic_update_slice` clamps its start. So a chunk that wraps is rolled by the overhang, and written twice. At the
    end of the ring, its last `overhang` entries are masked out. At the front, only these are written. In this example
    of six rows, `a b c` is written from row 5 on, so `start` is 3 and `overhang` is 2:

        rolled             b c a
        at row 3     . . . . . a
        at row 0     b c . . . a
    """
    size = new.shape[0]
    rolled = jnp.roll(new, overhang, axis=0)
    is_tail = (jnp.arange(size) < overhang).reshape(-1, *[1] * (new.ndim - 1))
    kept = lax.dynamic_slice_in_dim(array, start, size, axis=0)
    array = lax.dynamic_update_slice_in_dim(array, jnp.where(is_tail, kept, rolled), start, axis=0)
    first = jnp.where(is_tail, rolled, array[:size])
    return lax.dynamic_update_slice_in_dim(array, first, 0, axis=0)
