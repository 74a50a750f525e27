"""Rows in the layout for CPUs: an array for every leaf."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from jaxrl_buffers._fields import named_field, with_field
from jaxrl_buffers._xla import keep, set_at, set_row
from jaxrl_buffers.types import PyTree


class Leaves(struct.PyTreeNode):
    """An array for every leaf of a row."""

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
        """Return the rows of one step as they are."""
        return step

    def select(self, steps: list[PyTree], number: jax.Array | int, index: jax.Array) -> PyTree:
        """Read one of the steps of each sample again: then only what is used of it is read at all."""
        return self.read(index)

    @property
    def stored_leaves(self) -> PyTree:
        """The leaves `[T, N, ...]`, for a checkpoint."""
        return self.tree

    def with_tree(self, tree: PyTree) -> Leaves:
        """Return other rows in the same layout."""
        return Leaves(tree)

    def write(self, chunk: PyTree, row: jax.Array | int, length: int) -> Leaves:
        """Write a chunk `[K, N, ...]`, as at most two contiguous writes a leaf."""
        return Leaves(jax.tree.map(lambda leaf, new: write_rows(leaf, new, row, length), self.tree, chunk))

    def write_at(self, rows: PyTree, row: jax.Array, env: jax.Array) -> Leaves:
        """Write rows `[K, E, ...]` to distinct places."""
        index = row.reshape(-1), env.reshape(-1)  # not one flat index: for that, XLA would lay some arrays out anew

        def write(leaf: jax.Array, new: jax.Array) -> jax.Array:
            return set_at(leaf, index, new.reshape(-1, *new.shape[2:]))

        return Leaves(jax.tree.map(write, self.tree, rows))

    def set_field(self, name: str, values: jax.Array, row: jax.Array, env: jax.Array) -> Leaves:
        """Change one field of the rows at distinct places `[E]`; the arrays of the others are passed on."""
        field = named_field(self.tree, name).at[row, env].set(values, mode="drop")
        return Leaves(with_field(self.tree, name, field))


def write_rows(leaf: jax.Array, new: jax.Array, row: jax.Array | int, length: int) -> jax.Array:
    """Write `new` at `row` of a ring in the first `length` rows, going on at row 0 behind its end."""
    num_rows = new.shape[0]
    if num_rows == 1:
        return set_row(leaf, new, row)
    start = jnp.minimum(row, length - num_rows)
    return write_wrapped(leaf, new, start, row - start)


def write_wrapped(array: jax.Array, new: jax.Array, start: jax.Array, overhang: jax.Array) -> jax.Array:
    """Write `new` from `start + overhang` on, of which the last `overhang` entries go to the begin of the array.

    `dynamic_update_slice` clamps its start, so a chunk that wraps is rolled by the overhang: its first part then ends
    at the ring's end and its last part stands at the beginning, and each write keeps the other entries as they were.
    """
    size = new.shape[0]
    rolled = jnp.roll(new, overhang, axis=0)
    is_tail = (jnp.arange(size) < overhang).reshape(-1, *[1] * (new.ndim - 1))
    kept = lax.dynamic_slice_in_dim(array, start, size, axis=0)
    array = lax.dynamic_update_slice_in_dim(array, jnp.where(is_tail, kept, rolled), start, axis=0)
    first = jnp.where(is_tail, rolled, array[:size])
    return lax.dynamic_update_slice_in_dim(array, first, 0, axis=0)
