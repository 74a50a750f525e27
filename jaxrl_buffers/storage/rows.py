"""How the rows of a ring lie in memory: leaves apart, or all leaves of a row packed into words.

`Leaves` keeps an array for every leaf of a row, as CPUs like it: what is not asked for is never read. `Words` packs the
leaves of a row into one vector of 32-bit words, as GPUs and TPUs like it: one gather fetches a whole row, and no
compiler converts, pads or copies an array as large as the ring (`_words.py` says how leaves are packed).

The layout changes no result. It is chosen when a buffer is made, from the platform, and a checkpoint made under one can
be restored under the other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from jaxrl_buffers import _struct as struct
from jaxrl_buffers._checks import require_choice
from jaxrl_buffers._fields import named_field, with_field
from jaxrl_buffers.materialized import materialized
from jaxrl_buffers.storage._words import Element, Form, form_of, pack, unpack
from jaxrl_buffers.types import PyTree

PLATFORMS = ("cpu", "gpu", "tpu")
LARGE = 1024  # words; a leaf of so many has an array of its own, so that those who do not ask for it need not read it
TPU_LANES = 128  # rows wider than this, but no multiple of it, cost TPUs a copy of the whole array


class Rows(Protocol):
    """The rows `[T, N]` of a ring. Where one is named by `index`, that is `row * N + env`."""

    @property
    def shape(self) -> tuple[int, int]:
        """`(T, N)`."""
        ...

    @property
    def structure(self) -> PyTree:
        """The shapes and dtypes of one row."""
        ...

    @property
    def tree(self) -> PyTree:
        """All rows: leaves `[T, N, ...]`."""
        ...

    def read(self, index: jax.Array, unknown: jax.Array) -> PyTree:
        """Return the rows at indices of any shape; `unknown` is any number that is known at run time only."""
        ...

    def read_steps(self, index: jax.Array, unknown: jax.Array) -> list[Any]:
        """Return the rows at `index[L, B]` step by step, each in a form that `unpack` and `select` know."""
        ...

    def unpack(self, step: Any) -> PyTree:
        """Return the rows of one step: leaves `[B, ...]`."""
        ...

    def select(self, steps: list[Any], number: jax.Array | int, index: jax.Array, unknown: jax.Array) -> PyTree:
        """Return of each sample the step of `number[B]`, whose row is at `index[B]`: leaves `[B, ...]`."""
        ...

    def write(self, chunk: PyTree, row: jax.Array | int, length: int) -> Rows:
        """Write a chunk `[K, N, ...]` from `row` on, going on at row 0 behind the first `length` rows."""
        ...

    def write_at(self, rows: PyTree, row: jax.Array, env: jax.Array) -> Rows:
        """Write rows `[K, E, ...]` to distinct places `[K, E]`; where `row` is `T`, nothing is written."""
        ...

    def set_field(self, name: str, values: jax.Array, row: jax.Array, env: jax.Array) -> Rows:
        """Change one field of the rows at distinct places `[E]`."""
        ...


def empty(structure: PyTree, shape: tuple[int, int], platform: str | None) -> Rows:
    """Return rows of zeros, laid out for a platform."""
    platform = resolve(platform)
    if platform == "cpu":
        return Leaves(jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape), leaf.dtype), structure))
    leaves, treedef = jax.tree.flatten(structure)
    elements = [Element(tuple(leaf.shape), leaf.dtype) for leaf in leaves]
    multiple = TPU_LANES if platform == "tpu" else 1
    sizes = [form_of([element]).num_words for element in elements]
    groups: list[tuple[int, ...]] = [(number,) for number, size in enumerate(sizes) if size >= LARGE]
    if small := tuple(number for number, size in enumerate(sizes) if size < LARGE):
        groups.insert(0, small)
    forms = tuple(form_of([elements[number] for number in group], multiple) for group in groups)
    arrays = tuple(jnp.zeros((shape[0] * shape[1], form.num_words), jnp.uint32) for form in forms)
    return Words(arrays, forms, tuple(groups), treedef, shape[0])


def resolve(platform: str | None) -> str:
    """Return the platform that is meant: by default the one that JAX uses."""
    if platform is None:
        platform = jax.default_backend()
        return platform if platform in PLATFORMS else "gpu"
    require_choice("ReplayBuffer", "platform", platform, PLATFORMS)
    return platform


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

    def read(self, index: jax.Array, unknown: jax.Array) -> PyTree:
        """Return the rows at indices of any shape."""
        index, shape = materialized(jnp.ravel(index), unknown), index.shape

        def gather(leaf: jax.Array) -> jax.Array:
            entry = leaf.shape[2:]
            flat = leaf.reshape(-1, *([math.prod(entry)] if entry else []))
            return flat.at[index].get(mode="clip").reshape(*shape, *entry)

        return jax.tree.map(gather, self.tree)

    def read_steps(self, index: jax.Array, unknown: jax.Array) -> list[PyTree]:
        """Return the rows at `index[L, B]` step by step."""
        rows = self.read(index, unknown)
        return [jax.tree.map(lambda leaf: leaf[step], rows) for step in range(index.shape[0])]  # noqa: B023

    def unpack(self, step: PyTree) -> PyTree:
        """Return the rows of one step as they are."""
        return step

    def select(self, steps: list[PyTree], number: jax.Array | int, index: jax.Array, unknown: jax.Array) -> PyTree:
        """Read one of the steps of each sample again: then only what is used of it is read at all."""
        return self.read(index, unknown)

    def write(self, chunk: PyTree, row: jax.Array | int, length: int) -> Leaves:
        """Write a chunk `[K, N, ...]`, as at most two contiguous writes a leaf."""
        return Leaves(jax.tree.map(lambda leaf, new: write_rows(leaf, new, row, length), self.tree, chunk))

    def write_at(self, rows: PyTree, row: jax.Array, env: jax.Array) -> Leaves:
        """Write rows `[K, E, ...]` to distinct places."""
        # Not through flat indices: reshaped to and fro, XLA lays some arrays out anew, which copies the whole ring.
        return Leaves(jax.tree.map(lambda leaf, new: leaf.at[row, env].set(new, mode="drop"), self.tree, rows))

    def set_field(self, name: str, values: jax.Array, row: jax.Array, env: jax.Array) -> Leaves:
        """Change one field of the rows at distinct places `[E]`; the arrays of the others are passed on."""
        field = named_field(self.tree, name).at[row, env].set(values, mode="drop")
        return Leaves(with_field(self.tree, name, field))


class Words(struct.PyTreeNode):
    """All leaves of a row side by side in one array, and large leaves in arrays of their own."""

    arrays: tuple[jax.Array, ...]  # uint32[T * N, W] each
    forms: tuple[Form, ...] = struct.field(pytree_node=False)  # what each array holds
    groups: tuple[tuple[int, ...], ...] = struct.field(pytree_node=False)  # the numbers of its leaves
    treedef: Any = struct.field(pytree_node=False)  # of one row
    length: int = struct.field(pytree_node=False)  # T

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

    def read(self, index: jax.Array, unknown: jax.Array) -> PyTree:
        """Return the rows at indices of any shape, all leaves of a row by one gather."""
        return self.unpack([_gather(words, index) for words in self.arrays])

    def read_steps(self, index: jax.Array, unknown: jax.Array) -> list[list[jax.Array]]:
        """Return the rows at `index[L, B]` step by step: `uint32[B, W]` of each array."""
        arrays = [_gather(words, index) for words in self.arrays]
        return [[words[step] for words in arrays] for step in range(index.shape[0])]

    def unpack(self, step: list[jax.Array]) -> PyTree:
        """Return the rows that words `[..., W]` of each array hold."""
        leaves = [leaf for form, words in zip(self.forms, step, strict=True) for leaf in unpack(form, words)]
        return self._unflatten(leaves)

    def select(
        self, steps: list[list[jax.Array]], number: jax.Array | int, index: jax.Array, unknown: jax.Array
    ) -> PyTree:
        """Return one of the steps of each sample: of small arrays out of what was read, of large ones by a gather."""
        chosen = [
            _gather(words, index) if words.shape[1] >= LARGE else _step(read, number)
            for words, *read in zip(self.arrays, *steps, strict=True)
        ]
        return self.unpack(chosen)

    def write(self, chunk: PyTree, row: jax.Array | int, length: int) -> Words:
        """Write a chunk `[K, N, ...]`, as at most two contiguous writes an array."""
        _, num_envs = self.shape
        leaves = jax.tree.leaves(chunk)
        num_rows = leaves[0].shape[0]
        write = functools.partial(_write_block, row=row, num_rows=num_rows, num_envs=num_envs, length=length)
        new = (words.reshape(num_rows * num_envs, -1) for words in self._pack(leaves, 2))
        return self.replace(arrays=tuple(map(write, self.arrays, new)))

    def write_at(self, rows: PyTree, row: jax.Array, env: jax.Array) -> Words:
        """Write rows `[K, E, ...]` to distinct places."""
        length, num_envs = self.shape
        is_inside = (row < length) & (env >= 0) & (env < num_envs)
        index = jnp.where(is_inside, row * num_envs + env, length * num_envs).reshape(-1)
        new = (words.reshape(index.shape[0], -1) for words in self._pack(jax.tree.leaves(rows), 2))
        arrays = tuple(
            _laid_out(words).at[index].set(part, mode="drop") for words, part in zip(self.arrays, new, strict=True)
        )
        return self.replace(arrays=arrays)

    def set_field(self, name: str, values: jax.Array, row: jax.Array, env: jax.Array) -> Words:
        """Change one field of the rows at distinct places `[E]`, by writing these rows anew."""
        rows = with_field(self.read(row * self.shape[1] + env, unknown=row[0]), name, values)
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


def _laid_out(words: jax.Array) -> jax.Array:
    """Return words such that rows lie in one piece.

    In large programs XLA for TPUs (libtpu 0.0.51) may else keep them the other way round for writes, and copy all of
    them for reads.
    """
    return with_layout_constraint(words, Layout(major_to_minor=(0, 1)))


def _write_block(
    words: jax.Array, new: jax.Array, row: jax.Array | int, num_rows: int, num_envs: int, length: int
) -> jax.Array:
    """Write `new[K * N, W]` from a row on, going on at row 0 behind the first `length` rows."""
    words = _laid_out(words)
    if num_rows == 1:
        return lax.dynamic_update_slice_in_dim(words, new, row * num_envs, axis=0)
    start = jnp.minimum(row, length - num_rows)
    return _write_wrapped(words, new, start * num_envs, (row - start) * num_envs)


def write_rows(leaf: jax.Array, new: jax.Array, row: jax.Array | int, length: int) -> jax.Array:
    """Write `new` at `row` of a ring in the first `length` rows, going on at row 0 behind its end."""
    num_rows = new.shape[0]
    if num_rows == 1:
        return write_one(leaf, new, row)
    start = jnp.minimum(row, length - num_rows)
    return _write_wrapped(leaf, new, start, row - start)


def _write_wrapped(array: jax.Array, new: jax.Array, start: jax.Array, overhang: jax.Array) -> jax.Array:
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
