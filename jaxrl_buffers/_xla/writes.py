"""Writes of single elements and rows of an array, in place and in order."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl_buffers.types import PyTree

MOST_PAIRS = 1024  # so many writes are compared with each other; more of them are sorted


def set_last_wins(
    array: jax.Array, indices: jax.Array, values: jax.Array, valid: jax.Array, unique: bool = False
) -> jax.Array:
    """Return `array` with `values` set at `indices` where `valid`; of duplicates the last valid one wins.

    XLA leaves the winner among duplicates of a scatter open. A loop fixes it and costs no more on a CPU; elsewhere
    duplicates are sorted out first, unless it is promised that there are none, `unique`.

    Seen on: jaxlib 0.10.2, all platforms.
    Gains: one winner, the same everywhere.
    Pinned by: `test_the_last_valid_duplicate_wins`.
    Can go when: XLA promises the order of a scatter's writes.
    """
    if indices.size == 0:
        return array
    otherwise = _set_at_once if unique else _set_without_duplicates
    return lax.platform_dependent(array, indices, values, valid, cpu=_set_in_order, default=otherwise)


def without_duplicates(indices: jax.Array, values: PyTree, valid: jax.Array) -> tuple[jax.Array, PyTree, jax.Array]:
    """Return the same writes, maybe in another order, valid only if no later valid one has the same index.

    For whom several arrays are written at the same places; see `set_last_wins`.

    Args:
        indices: `int32[B]`; where valid, less than the largest number there is.
        values: leaves `[B]`.
        valid: `bool[B]`.
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


def set_run(
    array: jax.Array, begin: jax.Array, values: jax.Array, valid: jax.Array, length: int, wraps: bool
) -> jax.Array:
    """Return `array` with `values` set at `begin, begin + 1, ...` where `valid`: in slices, or on GPU one by one.

    TPUs write slices at once, and single numbers one after the other. On a GPU every slice is a kernel, of which single
    numbers need one.

    Seen on: jaxlib 0.10.2 and libtpu 0.0.51.
    Gains: on a GPU, one kernel for a run that may wrap, not two.
    Pinned by: `test_runs_are_set_in_one_kernel_on_gpu_alone`.
    Can go when: XLA makes one kernel of neighboring slice updates.

    Args:
        array: any number of elements.
        begin: `int32[]`.
        values: `[M]`, at most `length`.
        valid: `bool[M]`.
        length: behind so many elements the run goes on at the first one.
        wraps: whether it may; if not, one slice less is written.
    """
    at_once = functools.partial(_set_run_at_once, length=length)
    slices = functools.partial(_set_slices, length=length, wraps=wraps)
    return lax.platform_dependent(array, begin, values, valid, cuda=at_once, rocm=at_once, default=slices)


def _set_run_at_once(array: jax.Array, begin: jax.Array, values: jax.Array, valid: jax.Array, length: int) -> jax.Array:
    indices = begin + jnp.arange(values.shape[0], dtype=jnp.int32)
    return _set_at_once(array, jnp.where(indices < length, indices, indices - length), values, valid)


def _set_slices(
    array: jax.Array, begin: jax.Array, values: jax.Array, valid: jax.Array, length: int, wraps: bool
) -> jax.Array:
    """Set a run as one or two slices.

    `dynamic_update_slice` clamps its start, so a run that wraps is rolled by the overhang: its first part then ends at
    the end, and its last part stands at the beginning.
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
    """Return `array.at[index].set(values, mode="drop")`. On CPU a single write is made twice.

    XLA turns a scatter of one entry into a slice update. Its CPU backend fuses that into later gathers, and keeps their
    other reads right by copying the whole array.

    Seen on: jaxlib 0.10.2, CPU.
    Gains: two copies of all inner nodes of a tree for every row that is added alone.
    Pinned by: `test_adding_a_single_row_is_in_place`; inside `set_last_wins` by `test_batches_of_one_are_in_place`.
    Can go when: these tests pass without it.

    Args:
        array: what is written to.
        index: one entry for each of the first axes: `int32[B]`, or a slice.
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
    """Return an array in which one row is replaced by `row[1, ...]`. On CPU a neighbor is written along, as it is.

    XLA's CPU backend fuses a slice update of a single row into later gathers, and keeps their other reads right by
    copying the whole array.

    Seen on: jaxlib 0.10.2, CPU.
    Gains: a copy of the whole ring for every row that is added alone; against a scatter, four fifths of the time.
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
    # An invalid entry repeats the last valid one, which is written again after any other and so changes nothing;
    # with no valid entry at all, leaf 0 is set to what it is.
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
