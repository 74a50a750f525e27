"""Rows in the layout for GPUs and TPUs: the leaves of a row packed into one vector of words."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from jaxrl_buffers._fields import with_field
from jaxrl_buffers.storage._leaves import write_wrapped
from jaxrl_buffers.storage._packing import Element, Form, form_of, pack, unpack
from jaxrl_buffers.types import PyTree

LARGE = 1024  # words; a leaf of so many has an array of its own, so that those who do not ask for it need not read it
BLOCK_WORDS = 2**22  # so many are packed at once when rows come from a checkpoint


class Words(struct.PyTreeNode):
    """All leaves of a row side by side in one array, and large leaves in arrays of their own."""

    arrays: tuple[jax.Array, ...]  # uint32[T * N, W] each
    forms: tuple[Form, ...] = struct.field(pytree_node=False)  # what each array holds
    groups: tuple[tuple[int, ...], ...] = struct.field(pytree_node=False)  # the numbers of its leaves
    treedef: Any = struct.field(pytree_node=False)  # of one row
    length: int = struct.field(pytree_node=False)  # T

    @staticmethod
    def empty(structure: PyTree, shape: tuple[int, int], multiple: int) -> Words:
        """Return rows of zeros; the width of an array is rounded up to a multiple if it exceeds one."""
        leaves, treedef = jax.tree.flatten(structure)
        elements = [Element(tuple(leaf.shape), leaf.dtype) for leaf in leaves]
        sizes = [form_of([element]).num_words for element in elements]
        groups: list[tuple[int, ...]] = [(number,) for number, size in enumerate(sizes) if size >= LARGE]
        if small := tuple(number for number, size in enumerate(sizes) if size < LARGE):
            groups.insert(0, small)
        forms = tuple(form_of([elements[number] for number in group], multiple) for group in groups)
        arrays = tuple(jnp.zeros((shape[0] * shape[1], form.num_words), jnp.uint32) for form in forms)
        return Words(arrays, forms, tuple(groups), treedef, shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        """`(T, N)`."""
        return self.length, self.arrays[0].shape[-2] // self.length

    @property
    def structure(self) -> PyTree:
        """The shapes and dtypes of one row."""
        elements = (element for form in self.forms for element in form.elements)
        return self._unflatten([jax.ShapeDtypeStruct(*element) for element in elements])

    @property
    def tree(self) -> PyTree:
        """All rows: leaves `[T, N, ...]`."""
        shaped = (array.reshape(*array.shape[:-2], *self.shape, -1) for array in self.arrays)
        return self.unpack(list(shaped))

    def read(self, index: jax.Array) -> PyTree:
        """Return the rows at indices of any shape, all leaves of a row by one gather."""
        return self.unpack([_gather(words, index) for words in self.arrays])

    def read_steps(self, index: list[jax.Array]) -> list[list[jax.Array]]:
        """Return the rows at `index[B]` of each step: `uint32[B, W]` of each array."""
        arrays = [jnp.split(_gather(words, jnp.concatenate(index)), len(index)) for words in self.arrays]
        return [list(step) for step in zip(*arrays, strict=True)]

    def unpack(self, step: list[jax.Array]) -> PyTree:
        """Return the rows that words `[..., W]` of each array hold."""
        leaves = [leaf for form, words in zip(self.forms, step, strict=True) for leaf in unpack(form, words)]
        return self._unflatten(leaves)

    def select(self, steps: list[list[jax.Array]], number: jax.Array | int, index: jax.Array) -> PyTree:
        """Return one of the steps of each sample: of small arrays out of what was read, of large ones by a gather."""
        chosen = [
            _gather(words, index) if words.shape[1] >= LARGE else _step(read, number)
            for words, *read in zip(self.arrays, *steps, strict=True)
        ]
        return self.unpack(chosen)

    @property
    def stored_leaves(self) -> PyTree:
        """The leaves `[T, N, ...]`, for a checkpoint: each one is unpacked only when its value is asked for."""
        packed = (PackedLeaf(self, *place) for place in _places(self.forms))
        return self._unflatten(list(packed))

    def with_tree(self, tree: PyTree) -> Words:
        """Return other rows in the same layout, packed in blocks, so that little more memory is needed."""
        leaves, num_axes = jax.tree.leaves(tree), self.arrays[0].ndim
        arrays = tuple(jnp.zeros(array.shape, jnp.uint32) for array in self.arrays)
        num_rows = max(1, BLOCK_WORDS // max(1, math.prod(self.shape[1:]) * sum(form.num_words for form in self.forms)))
        for begin in range(0, self.length, num_rows):
            block = [leaf[(*[slice(None)] * (num_axes - 2), slice(begin, begin + num_rows))] for leaf in leaves]
            arrays = _write_packed(self.replace(arrays=arrays), block, begin * self.shape[1])
        return self.replace(arrays=arrays)

    def write(self, chunk: PyTree, row: jax.Array | int, length: int) -> Words:
        """Write a chunk `[K, N, ...]`, as at most two contiguous writes an array."""
        _, num_envs = self.shape
        num_rows = jax.tree.leaves(chunk)[0].shape[0]
        leaves = [leaf.reshape(num_rows * num_envs, *leaf.shape[2:]) for leaf in jax.tree.leaves(chunk)]
        write = functools.partial(_write_block, row=row, num_rows=num_rows, num_envs=num_envs, length=length)
        return self.replace(arrays=tuple(map(write, self.arrays, self._pack(leaves, 1))))

    def write_at(self, rows: PyTree, row: jax.Array, env: jax.Array) -> Words:
        """Write rows `[K, E, ...]` to distinct places."""
        length, num_envs = self.shape
        is_inside = (row < length) & (env >= 0) & (env < num_envs)
        index = jnp.where(is_inside, row * num_envs + env, length * num_envs).reshape(-1)
        new = (words.reshape(index.shape[0], -1) for words in self._pack(jax.tree.leaves(rows), 2))
        arrays = tuple(words.at[index].set(part, mode="drop") for words, part in zip(self.arrays, new, strict=True))
        return self.replace(arrays=arrays)

    def set_field(self, name: str, values: jax.Array, row: jax.Array, env: jax.Array) -> Words:
        """Change one field of the rows at distinct places `[E]`, by writing these rows anew."""
        rows = with_field(self.read(row * self.shape[1] + env), name, values)
        return self.write_at(jax.tree.map(lambda leaf: leaf[None], rows), row[None], env[None])

    def _pack(self, leaves: list[jax.Array], num_axes: int) -> list[jax.Array]:
        return [
            pack(form, [leaves[number] for number in group], num_axes)
            for form, group in zip(self.forms, self.groups, strict=True)
        ]

    def _unflatten(self, leaves: list[Any]) -> PyTree:
        """Return a row of leaves, which come in the order of the groups."""
        order = [number for group in self.groups for number in group]
        return jax.tree.unflatten(
            self.treedef, [leaf for _, leaf in sorted(zip(order, leaves, strict=True), key=lambda pair: pair[0])]
        )


class PackedLeaf(NamedTuple):
    """One leaf of packed rows."""

    rows: Words
    array: int  # the number of the array that holds it
    number: int  # among the leaves of that array

    @property
    def shape(self) -> tuple[int, ...]:
        """That of all rows: `[T, N, ...]`, with axes of vmapped states in front."""
        lead = self.rows.arrays[0].shape[:-2]
        return (*lead, *self.rows.shape, *self.rows.forms[self.array].elements[self.number].shape)

    @property
    def dtype(self) -> Any:
        """That of the leaf."""
        return self.rows.forms[self.array].elements[self.number].dtype

    def value(self) -> jax.Array:
        """Return the leaf of all rows."""
        unpacked = _unpack_one(self.rows.forms[self.array], self.number, self.rows.arrays[self.array])
        return unpacked.reshape(self.shape)


def _places(forms: Sequence[Form]) -> list[tuple[int, int]]:
    """Return the array and the number in it of every leaf, in the order of the groups."""
    return [(array, number) for array, form in enumerate(forms) for number in range(len(form.elements))]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _unpack_one(form: Form, number: int, words: jax.Array) -> jax.Array:
    return unpack(form, words)[number]


@functools.partial(jax.jit, donate_argnums=0)
def _write_packed(rows: Words, block: list[jax.Array], start: int) -> tuple[jax.Array, ...]:
    """Write leaves `[..., K, N, ...]` from the flat index `start` on; return the arrays."""
    num_axes = rows.arrays[0].ndim
    new = (words.reshape(*words.shape[: num_axes - 2], -1, words.shape[-1]) for words in rows._pack(block, num_axes))
    return tuple(
        lax.dynamic_update_slice_in_dim(array, part, start, axis=-2)
        for array, part in zip(rows.arrays, new, strict=True)
    )


def _gather(words: jax.Array, index: jax.Array) -> jax.Array:
    """Return the rows `[..., W]` at indices of any shape."""
    return words.at[jnp.ravel(index)].get(mode="clip").reshape(*index.shape, -1)


def _step(steps: Sequence[jax.Array], number: jax.Array | int) -> jax.Array:
    """Return the rows `[B, W]` of the given numbers out of several steps."""
    if isinstance(number, int):
        return steps[number]
    chosen = steps[0]
    for step, words in enumerate(steps[1:], 1):
        chosen = jnp.where((number == step)[:, None], words, chosen)
    return chosen


def _write_block(
    words: jax.Array, new: jax.Array, row: jax.Array | int, num_rows: int, num_envs: int, length: int
) -> jax.Array:
    """Write `new[K * N, W]` from a row on, going on at row 0 behind the first `length` rows."""
    if num_rows == 1:
        return lax.dynamic_update_slice_in_dim(words, new, row * num_envs, axis=0)
    start = jnp.minimum(row, length - num_rows)
    return write_wrapped(words, new, start * num_envs, (row - start) * num_envs)
