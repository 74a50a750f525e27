"""Writes of single elements and rows of an array: in place, and in a defined order."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl_buffers._xla.values import GPUS
from jaxrl_buffers.types import PyTree

MOST_PAIRS = 1024  # up to this many writes are compared pair by pair to find duplicates; more are sorted


def set_last_wins(
    array: jax.Array, indices: jax.Array, values: jax.Array, valid: jax.Array, unique: bool = False
) -> jax.Array:
    """Return `array` with `values` set at `indices` where `valid`. If an index occurs twice, the last valid entry wins.

    XLA does not define which entry of a scatter wins. On CPU a loop writes one entry after the other, which costs no
    more than a scatter. Elsewhere duplicates are removed first, unless `unique` promises that there are none.

    Seen on: jaxlib 0.10.2, all platforms.
    Gains: the same winner on all platforms.
    Pinned by: `test_the_last_valid_duplicate_wins`.
    Can go when: XLA defines the order of a scatter's writes.

    Args:
        array: `[T]`.
        indices: `int32[B]`.
        values: `[B]`.
        valid: `bool[B]`, the entries that are written.
        unique: True promises that no valid index occurs twice.
    """
    if indices.size == 0:
        return array
    otherwise = _set_at_once if unique else _set_without_duplicates
    return lax.platform_dependent(array, indices, values, valid, cpu=_set_in_order, default=otherwise)


def without_duplicates(indices: jax.Array, values: PyTree, valid: jax.Array) -> tuple[jax.Array, PyTree, jax.Array]:
    """Return the same entries, perhaps in another order. For each index, only the last valid entry stays valid.

    Use it if several arrays are written at the same indices; for one array there is `set_last_wins`.

    Seen on: jaxlib 0.10.2, all platforms: XLA does not define which entry of a scatter wins.
    Gains: the same winner in all arrays, and on all platforms.
    Pinned by: `test_the_last_valid_duplicate_wins`.
    Can go when: XLA defines the order of a scatter's writes.

    Args:
        indices: `int32[B]`; valid ones are below the largest int32.
        values: leaves `[B]`.
        valid: `bool[B]`, the entries that are to be written.
    """
    count, nowhere = indices.shape[0], jnp.iinfo(indices.dtype).max
    if count <= MOST_PAIRS:
        places = jnp.where(valid, indices, nowhere)
        number = np.arange(count)
        is_later = (places[None] == places[:, None]) & (number[None] > number[:, None])
        return indices, values, valid & ~jnp.any(is_later, axis=1)
    leaves, structure = jax.tree.flatten(values)
    indices, *leaves = lax.sort((jnp.where(valid, indices, nowhere), *leaves), num_keys=1, is_stable=True)
    is_last = jnp.append(indices[1:] != indices[:-1], True)
    return indices, jax.tree.unflatten(structure, leaves), is_last & (indices < nowhere)


def scatter_on_gpu(scatter: Callable[..., Any], slices: Callable[..., Any], *args: PyTree) -> Any:
    """Return `scatter(*args)` on GPU, and `slices(*args)` on other platforms. Both must return the same.

    Both write neighbors: `scatter` writes them one by one, and `slices` writes them by slice updates. A TPU writes a
    slice at once, but the numbers of a scatter one after the other. On a GPU each slice update is a kernel of its own,
    while a scatter is one kernel.

    Seen on: jaxlib 0.10.2 and libtpu 0.0.51.
    Gains: on a GPU, one kernel for a run that may wrap, not two. For the parents of a tree's leaves, a loop with
        priorities has 30 kernels on an H100, not 32.
    Pinned by: `test_runs_are_set_in_one_kernel_on_gpu_alone`, `test_runs_of_leaves_are_scattered_on_gpu_alone`.
    Can go when: XLA makes one kernel of neighboring slice updates.

    Args:
        scatter: writes neighbors one by one.
        slices: writes them by slice updates.
        *args: the arguments of both.
    """
    return lax.platform_dependent(*args, **dict.fromkeys(GPUS, scatter), default=slices)


def set_run(
    array: jax.Array, begin: jax.Array, values: jax.Array, valid: jax.Array, length: int, wraps: bool
) -> jax.Array:
    """Return `array` with `values` set at `begin, begin + 1, ...` where `valid`: by slices, on GPU by a scatter.

    Seen on: jaxlib 0.10.2 and libtpu 0.0.51; see `scatter_on_gpu`.
    Gains: on a GPU, one kernel for a run that may wrap, not two.
    Pinned by: `test_runs_are_set_in_one_kernel_on_gpu_alone`.
    Can go when: `scatter_on_gpu` can go.

    Args:
        array: `[T]`, with a `T` of at least `length`.
        begin: `int32[]`.
        values: `[M]`, at most `length` of them.
        valid: `bool[M]`, the entries that are written.
        length: after element `length - 1` the run continues at element 0.
        wraps: whether the run may go past that element; if not, one slice is written instead of two.
    """
    at_once = functools.partial(_set_run_at_once, length=length)
    slices = functools.partial(_set_slices, length=length, wraps=wraps)
    return scatter_on_gpu(at_once, slices, array, begin, values, valid)


def _set_run_at_once(array: jax.Array, begin: jax.Array, values: jax.Array, valid: jax.Array, length: int) -> jax.Array:
    indices = begin + jnp.arange(values.shape[0], dtype=jnp.int32)
    return _set_at_once(array, jnp.where(indices < length, indices, indices - length), values, valid)


def _set_slices(
    array: jax.Array, begin: jax.Array, values: jax.Array, valid: jax.Array, length: int, wraps: bool
) -> jax.Array:
    """Set a run by one or two slice updates.

    `dynamic_update_slice` clamps its start, so a run that wraps is rolled by the overhang: its first part then ends at
    the end of the array, and its last part is at the front.
    """
    if values.shape[0] == 1 < length:  # for the reason given in `set_at`
        values, valid, wraps = jnp.pad(values, (0, 1)), jnp.pad(valid, (0, 1)), True
    count = values.shape[0]
    if not wraps:
        kept = lax.dynamic_slice_in_dim(array, begin, count)
        return lax.dynamic_update_slice_in_dim(array, jnp.where(valid, values, kept), begin, axis=0)
    start = jnp.minimum(begin, length - count)
    overhang = begin - start
    values, valid, is_tail = jnp.roll(values, overhang), jnp.roll(valid, overhang), jnp.arange(count) < overhang
    kept = lax.dynamic_slice_in_dim(array, start, count)
    array = lax.dynamic_update_slice_in_dim(array, jnp.where(valid & ~is_tail, values, kept), start, axis=0)
    return lax.dynamic_update_slice_in_dim(array, jnp.where(valid & is_tail, values, array[:count]), 0, axis=0)


def set_at(array: jax.Array, index: tuple[Any, ...], values: jax.Array) -> jax.Array:
    """Return `array.at[index].set(values, mode="drop")`. On CPU a single entry is written twice.

    XLA turns a scatter of one entry into a slice update. Its CPU backend fuses the update into later gathers, and then
    copies the whole array to keep other reads right.

    Seen on: jaxlib 0.10.2, CPU.
    Gains: saves two copies of all inner nodes of a tree, for every row that is added alone.
    Pinned by: `test_adding_a_single_row_is_in_place`; inside `set_last_wins` by `test_batches_of_one_are_in_place`.
    Can go when: these tests pass without it.

    Args:
        array: the array to be written to.
        index: for each of the first axes, `int32[B]` or a slice.
        values: `[B, ...]`.
    """
    if values.shape[0] != 1:
        return _set(array, index, values)

    def twice(array: jax.Array, values: jax.Array) -> jax.Array:
        repeated = tuple(part if isinstance(part, slice) else _doubled(part) for part in index)
        return _set(array, repeated, _doubled(values))

    once = functools.partial(_set, index=index)
    return lax.platform_dependent(array, values, cpu=twice, default=lambda array, values: once(array, values=values))


def set_row(array: jax.Array, row: jax.Array, index: jax.Array | int) -> jax.Array:
    """Return `array` with row `index` replaced by `row[1, ...]`. On CPU the row beside it is written too, unchanged.

    XLA's CPU backend fuses a slice update of a single row into later gathers, and then copies the whole array to keep
    other reads right.

    Seen on: jaxlib 0.10.2, CPU.
    Gains: saves a copy of the whole ring, for every row that is added alone. A scatter takes 1.25 times as long.
    Pinned by: `test_adding_a_single_row_is_in_place`.
    Can go when: that test passes without it.
    """
    if array.shape[0] == 1:
        return row

    def with_neighbor(array: jax.Array, row: jax.Array, index: jax.Array) -> jax.Array:
        start = jnp.minimum(index, array.shape[0] - 2)
        kept = lax.dynamic_slice_in_dim(array, start, 2, axis=0)
        is_new = (start + jnp.arange(2) == index).reshape(-1, *[1] * (row.ndim - 1))
        return lax.dynamic_update_slice_in_dim(array, jnp.where(is_new, row, kept), start, axis=0)

    def alone(array: jax.Array, row: jax.Array, index: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice_in_dim(array, row, index, axis=0)

    return lax.platform_dependent(array, row, jnp.asarray(index, jnp.int32), cpu=with_neighbor, default=alone)


def _set(array: jax.Array, index: tuple[Any, ...], values: jax.Array) -> jax.Array:
    return array.at[index].set(values, mode="drop")


def _doubled(values: jax.Array) -> jax.Array:
    return jnp.concatenate([values, values])


def _set_in_order(array: jax.Array, indices: jax.Array, values: jax.Array, valid: jax.Array) -> jax.Array:
    if indices.size == 1:  # for the reason given in `set_at`
        indices, values, valid = map(_doubled, (indices, values, valid))
    count = indices.shape[0]
    # In the place of each invalid entry, the last valid entry is written. This does not change the result, because the
    # last valid entry wins at its index anyway. If no entry is valid, element 0 is set to the value that it has.
    last = jnp.max(jnp.where(valid, jnp.arange(count), -1))
    spare_index = jnp.where(last >= 0, indices[last], 0)
    spare_value = jnp.where(last >= 0, values[last], array[0])
    indices = jnp.where(valid, indices, spare_index)
    values = jnp.where(valid, values, spare_value)

    def set_one(entry: jax.Array, array: jax.Array) -> jax.Array:
        value = lax.dynamic_slice_in_dim(values, entry, 1)
        return lax.dynamic_update_slice_in_dim(array, value, indices[entry], axis=0)

    return lax.fori_loop(0, count, set_one, array)


def _set_without_duplicates(array: jax.Array, indices: jax.Array, values: jax.Array, valid: jax.Array) -> jax.Array:
    return _set_at_once(array, *without_duplicates(indices, values, valid))


def _set_at_once(array: jax.Array, indices: jax.Array, values: jax.Array, valid: jax.Array) -> jax.Array:
    return array.at[jnp.where(valid, indices, array.shape[0])].set(values, mode="drop")
