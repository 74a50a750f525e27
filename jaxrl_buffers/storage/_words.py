"""`Words`: the layout of rows for GPUs and TPUs, in which the leaves of a row are packed into one vector."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_buffers._fields import with_field
from jaxrl_buffers._xla import compact
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.storage._leaves import write_wrapped
from jaxrl_buffers.storage._packing import Element, Form, form_of, pack, unpack
from jaxrl_buffers.types import PyTree

LARGE = 1024  # words; a leaf of at least this size has its own array, so that programs that do not use it never read it
BLOCK_WORDS = 2**22  # how many words are packed at once when rows are restored from a checkpoint


class Words(Component):
    """One array for all small leaves of a row, and an array of its own for each large leaf."""

    arrays: tuple[jax.Array, ...]  # uint32[T * N, W] each, with its own W
    forms: tuple[Form, ...] = field(static=True)  # how the leaves of each array are packed
    groups: tuple[tuple[int, ...], ...] = field(static=True)  # which leaves of a row each array holds
    treedef: Any = field(static=True)  # the structure of one row
    length: int = field(static=True)  # T

    @staticmethod
    def empty(structure: PyTree, shape: tuple[int, int], rounded: Callable[[int], int] | None = None) -> Words:
        """Return rows of zeros of shape `(T, N)`. `rounded` may give them more words than they need."""
        leaves, treedef = jax.tree.flatten(structure)
        elements = [Element(tuple(leaf.shape), leaf.dtype) for leaf in leaves]
        sizes = [form_of([element]).num_words for element in elements]
        groups: list[tuple[int, ...]] = [(number,) for number, size in enumerate(sizes) if size >= LARGE]
        if small := tuple(number for number, size in enumerate(sizes) if size < LARGE):
            groups.insert(0, small)
        forms = tuple(form_of([elements[number] for number in group], rounded) for group in groups)
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
        """Return the rows at indices of any shape, by one gather for each array."""
        return self.unpack([_gather(words, index) for words in self.arrays])

    def read_steps(self, index: list[jax.Array]) -> list[list[jax.Array]]:
        """Return the words `uint32[B, W]` of each array, for each step, at `index[B]`."""
        arrays = [jnp.split(_gather(words, jnp.concatenate(index)), len(index)) for words in self.arrays]
        return [list(step) for step in zip(*arrays, strict=True)]

    def unpack(self, step: list[jax.Array]) -> PyTree:
        """Return the rows of one step, given their words: `uint32[..., W]` for each array."""
        leaves = [leaf for form, words in zip(self.forms, step, strict=True) for leaf in unpack(form, words)]
        return self._unflatten(leaves)

    def select(self, steps: list[list[jax.Array]], number: jax.Array | int, index: jax.Array) -> PyTree:
        """Return step `number[B]` of each sample: from the words of small arrays, by a gather from large ones."""
        chosen = [
            _gather(words, index) if words.shape[1] >= LARGE else _step(read, number)
            for words, *read in zip(self.arrays, *steps, strict=True)
        ]
        return self.unpack(chosen)

    @property
    def stored_leaves(self) -> PyTree:
        """The leaves for a checkpoint: each is unpacked when its `value()` is called."""
        packed = (PackedLeaf(self, *place) for place in _places(self.forms))
        return self._unflatten(list(packed))

    def with_tree(self, tree: PyTree) -> Words:
        """Return rows in the same layout that hold the given leaves. They are packed in blocks, to save memory."""
        leaves, num_axes = jax.tree.leaves(tree), self.arrays[0].ndim
        arrays = tuple(jnp.zeros(array.shape, jnp.uint32) for array in self.arrays)
        num_rows = max(1, BLOCK_WORDS // max(1, math.prod(self.shape[1:]) * sum(form.num_words for form in self.forms)))
        for begin in range(0, self.length, num_rows):
            block = [leaf[(*[slice(None)] * (num_axes - 2), slice(begin, begin + num_rows))] for leaf in leaves]
            arrays = _write_packed(self.replace(arrays=arrays), block, begin * self.shape[1])
        return self.replace(arrays=arrays)

    def write(self, chunk: PyTree, row: jax.Array | int, length: int) -> Words:
        """Write a chunk `[K, N, ...]`, by at most two slice updates for each array."""
        _, num_envs = self.shape
        num_rows = jax.tree.leaves(chunk)[0].shape[0]
        leaves = [leaf.reshape(num_rows * num_envs, *leaf.shape[2:]) for leaf in jax.tree.leaves(chunk)]
        write = functools.partial(_write_block, row=row, num_rows=num_rows, num_envs=num_envs, length=length)
        arrays = map(write, self.arrays, self.pack(leaves, 1))
        return self.replace(arrays=tuple(compact(words, is_read_by_row=True) for words in arrays))

    def write_at(self, rows: PyTree, row: jax.Array, env: jax.Array) -> Words:
        """Write rows `[K, E, ...]` to distinct places."""
        length, num_envs = self.shape
        is_inside = (row < length) & (env >= 0) & (env < num_envs)
        index = jnp.where(is_inside, row * num_envs + env, length * num_envs).reshape(-1)
        new = (words.reshape(index.shape[0], -1) for words in self.pack(jax.tree.leaves(rows), 2))
        arrays = tuple(words.at[index].set(part, mode="drop") for words, part in zip(self.arrays, new, strict=True))
        return self.replace(arrays=arrays)

    def set_field(self, name: str, values: jax.Array, row: jax.Array, env: jax.Array) -> Words:
        """Change one field of the rows at distinct places `[E]`: the whole rows are read and written again."""
        rows = with_field(self.read(row * self.shape[1] + env), name, values)
        return self.write_at(jax.tree.map(lambda leaf: leaf[None], rows), row[None], env[None])

    def pack(self, leaves: list[jax.Array], num_axes: int) -> list[jax.Array]:
        """Return the words of leaves, one array for each form."""
        return [
            pack(form, [leaves[number] for number in group], num_axes)
            for form, group in zip(self.forms, self.groups, strict=True)
        ]

    def _unflatten(self, leaves: list[Any]) -> PyTree:
        """Return a row, given its leaves in the order of the groups."""
        order = [number for group in self.groups for number in group]
        return jax.tree.unflatten(
            self.treedef, [leaf for _, leaf in sorted(zip(order, leaves, strict=True), key=lambda pair: pair[0])]
        )


class PackedLeaf(NamedTuple):
    """One leaf of all rows, which is unpacked on request."""

    rows: Words
    array: int  # the number of the array that holds the leaf
    number: int  # which leaf of that array it is

    @property
    def shape(self) -> tuple[int, ...]:
        """`[T, N, ...]`, after the axes of a vmapped state, if any."""
        lead = self.rows.arrays[0].shape[:-2]
        return (*lead, *self.rows.shape, *self.rows.forms[self.array].elements[self.number].shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the leaf."""
        return self.rows.forms[self.array].elements[self.number].dtype

    def value(self) -> jax.Array:
        """Unpack the leaf."""
        unpacked = _unpack_one(self.rows.forms[self.array], self.number, self.rows.arrays[self.array])
        return unpacked.reshape(self.shape)


def _places(forms: Sequence[Form]) -> list[tuple[int, int]]:
    """Return `(array, number)` of every leaf, as in `PackedLeaf`, in the order of the groups."""
    return [(array, number) for array, form in enumerate(forms) for number in range(len(form.elements))]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _unpack_one(form: Form, number: int, words: jax.Array) -> jax.Array:
    return unpack(form, words)[number]


@functools.partial(jax.jit, donate_argnums=0)
def _write_packed(rows: Words, block: list[jax.Array], start: int) -> tuple[jax.Array, ...]:
    """Pack leaves `[..., K, N, ...]` and write them from flat index `start` on; return the arrays."""
    num_axes = rows.arrays[0].ndim
    new = (words.reshape(*words.shape[: num_axes - 2], -1, words.shape[-1]) for words in rows.pack(block, num_axes))
    return tuple(
        lax.dynamic_update_slice_in_dim(array, part, start, axis=-2)
        for array, part in zip(rows.arrays, new, strict=True)
    )


def _gather(words: jax.Array, index: jax.Array) -> jax.Array:
    """Return the rows `[..., W]` at indices of any shape."""
    return words.at[jnp.ravel(index)].get(mode="clip").reshape(*index.shape, -1)


def _step(steps: Sequence[jax.Array], number: jax.Array | int) -> jax.Array:
    """Return step `number[B]` of each sample, given the words `[B, W]` of all steps."""
    if isinstance(number, int):
        return steps[number]
    chosen = steps[0]
    for step, words in enumerate(steps[1:], 1):
        chosen = jnp.where((number == step)[:, None], words, chosen)
    return chosen


def _write_block(
    words: jax.Array, new: jax.Array, row: jax.Array | int, num_rows: int, num_envs: int, length: int
) -> jax.Array:
    """Write `new[K * N, W]` to rows `row, row + 1, ...`; after row `length - 1` comes row 0."""
    if num_rows == 1:
        return lax.dynamic_update_slice_in_dim(words, new, row * num_envs, axis=0)
    start = jnp.minimum(row, length - num_rows)
    return write_wrapped(words, new, start * num_envs, (row - start) * num_envs)
