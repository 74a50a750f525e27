"""Writing single elements of an array where the last of several writes to one place counts."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl_buffers.types import PyTree

MOST_PAIRS = (
    1024  # writes that are compared with each other: cheaper on a TPU than to sort them, as long as they are few
)


def set_last_wins(
    array: jax.Array, indices: jax.Array, values: jax.Array, valid: jax.Array, unique: bool = False
) -> jax.Array:
    """Return `array` with `values` set at `indices` where `valid`; of duplicates the last valid one wins.

    XLA leaves the winner among duplicates of a scatter open. A loop fixes it and costs no more on a CPU; elsewhere
    duplicates are sorted out first, unless it is promised that there are none, `unique`.
    """
    if indices.size == 0:
        return array
    if indices.size == 1:  # XLA fuses a single slice update into later gathers, and copies the whole array
        indices, values, valid = (jnp.concatenate([part, part]) for part in (indices, values, valid))
    otherwise = _set_at_once if unique else _set_without_duplicates
    return lax.platform_dependent(array, indices, values, valid, cpu=_set_in_order, default=otherwise)


def set_run(
    array: jax.Array, begin: jax.Array, values: jax.Array, valid: jax.Array, length: int, wraps: bool
) -> jax.Array:
    """Return `array` with `values` set at `begin, begin + 1, ...` where `valid`.

    Args:
        array: any number of elements.
        begin: `int32[]`.
        values: `[M]`, at most `length`.
        valid: `bool[M]`.
        length: behind so many elements the run goes on at the first one.
        wraps: whether it may; if not, one slice less is written.
    """
    if values.shape[0] == 1 < length:  # XLA fuses a single slice update into later gathers, and copies the whole array
        values, valid, wraps = jnp.pad(values, (0, 1)), jnp.pad(valid, (0, 1)), True
    set_slices = functools.partial(_set_slices, length=length, wraps=wraps)
    set_at_once = functools.partial(_set_run_at_once, length=length)
    return lax.platform_dependent(array, begin, values, valid, cuda=set_at_once, rocm=set_at_once, default=set_slices)


def _set_run_at_once(array: jax.Array, begin: jax.Array, values: jax.Array, valid: jax.Array, length: int) -> jax.Array:
    """Set it in one kernel, whether it wraps or not."""
    indices = begin + jnp.arange(values.shape[0], dtype=jnp.int32)
    return _set_at_once(array, jnp.where(indices < length, indices, indices - length), values, valid)


def _set_slices(
    array: jax.Array, begin: jax.Array, values: jax.Array, valid: jax.Array, length: int, wraps: bool
) -> jax.Array:
    """Set it in one or two slices, which no platform has to take apart.

    `dynamic_update_slice` clamps its start, so a run that wraps is rolled by the overhang: its first part then ends
    at the end, and its last part stands at the beginning.
    """
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


def without_duplicates(indices: jax.Array, values: PyTree, valid: jax.Array) -> tuple[jax.Array, PyTree, jax.Array]:
    """Return the same writes, maybe in another order, valid only if no later valid one has the same index.

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


def _set_in_order(array: jax.Array, indices: jax.Array, values: jax.Array, valid: jax.Array) -> jax.Array:
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
