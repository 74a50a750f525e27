"""Numbers that are computed once, read in order, or summed up in order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

MANY = 32  # numbers of a row that are worth the lanes of a vector register
PARTS = 16  # of such a row that are added up in one go


def keep(values: jax.Array, unknown: jax.Array | None = None) -> jax.Array:
    """Return numbers as they are. On CPU they are computed once and kept for all who use them.

    XLA's CPU backend computes cheap values anew for each element that depends on them: an index, with all that it comes
    from, for every number that is gathered through it. It does not repeat divisions, so these values stand behind one:
    by a one that XLA does not know to be constant. The machine code has no division.

    Seen on: jaxlib 0.10.2, CPU.
    Gains: by one of its uses, in `segment_tree.search`, a draw of 256 among 2^20 takes 54 us, not 59.
    Pinned by: `test_what_is_kept_is_not_computed_in_the_gather` and, for reads of a single leaf before it is written,
        `test_batches_of_one_are_in_place`.
    Can go when: these tests pass without it.

    Args:
        values: numbers of any shape and dtype.
        unknown: any scalar that is known at run time only and costs nothing. By default the values themselves are made
            ones of, which does as well unless several results of one long computation are kept: then one for all of
            them is better.
    """
    unknown = values if unknown is None else unknown
    return lax.platform_dependent(values, unknown, cpu=_divided_by_one, default=_first)


def _divided_by_one(values: jax.Array, unknown: jax.Array) -> jax.Array:
    if values.dtype == jnp.bool_:
        return _divided_by_one(values.astype(jnp.uint8), unknown).astype(jnp.bool_)
    words = _words(values)
    ones = jnp.broadcast_to(_ones(unknown).astype(words.dtype), words.shape)
    return lax.bitcast_convert_type(lax.div(words, ones), values.dtype)


def order_after(values: jax.Array, read: jax.Array) -> jax.Array:
    """Return numbers as they are. On CPU they are computed after `read`, and so is a write that depends on them.

    Where a write of an array is not ordered behind earlier reads of it, XLA's CPU backend keeps these reads right by
    copying the whole array. `lax.optimization_barrier` does not help: it is gone before that is decided.

    Seen on: jaxlib 0.10.2, CPU.
    Gains: two copies of all leaves a step, if rows are added and priorities updated before anything is sampled.
    Pinned by: `test_other_orders_are_in_place_too`.
    Can go when: that test passes without it.

    Args:
        values: numbers of any shape.
        read: a scalar that was computed from what was read.
    """
    return lax.platform_dependent(values, read, cpu=_behind, default=_first)


def _behind(values: jax.Array, read: jax.Array) -> jax.Array:
    return jnp.where(_ones(read) == 1, values, jnp.zeros_like(values))


def stack_bytes(arrays: Sequence[jax.Array]) -> jax.Array:
    """Return arrays of bytes stacked along a new last axis. On CPU four of them are put together as words.

    XLA's CPU backend uses vector instructions for that, but not for the stack.

    Seen on: jaxlib 0.10.2, CPU.
    Gains: stacks of four frames of 84x84 are read in two thirds of the time.
    Pinned by: `test_four_bytes_are_stacked_as_words_on_cpu`.
    Can go when: the stack is as fast.
    """
    if len(arrays) != 4 or arrays[0].dtype != jnp.uint8:
        return jnp.stack(arrays, axis=-1)

    def as_words(*arrays: jax.Array) -> jax.Array:
        first, second, third, fourth = (array.astype(jnp.uint32) for array in arrays)
        return lax.bitcast_convert_type(first | second << 8 | third << 16 | fourth << 24, jnp.uint8)

    return lax.platform_dependent(*arrays, cpu=as_words, default=lambda *arrays: jnp.stack(arrays, axis=-1))


def sum_in_order(values: jax.Array) -> jax.Array:
    """Sum the last axis in a fixed order: its second half is added to its first, and so on.

    XLA orders the additions of `jnp.sum` differently from program to program. A tree rebuilt from its leaves would then
    differ from the written one in the last bit. Parts of rows are added up as whole vectors on TPU; see
    `_with_last_axis_first`.

    Seen on: jaxlib 0.10.2, all platforms.
    Gains: equal bits, whatever program computed them.
    Pinned by: `test_sums_are_made_in_the_same_order_at_any_width`, and for whole trees by
        `test_a_million_heavy_tailed_updates_leave_no_trace_of_drift`.
    Can go when: XLA promises an order.

    Args:
        values: `[..., M]` with an `M` of at least 1.
    """
    is_wide = values.shape[-1] >= MANY
    if is_wide:
        values = lax.platform_dependent(values, tpu=_with_last_axis_first, default=_first)
    while (width := values.shape[-1]) > 1:
        # Several halvings at once where that is possible: a TPU takes a kernel for each one that builds on another.
        num_parts = max(math.gcd(width, PARTS), 2) if is_wide else 2
        size = width // num_parts
        parts = [values[..., part * size : (part + 1) * size] for part in range(num_parts)]
        rest = values[..., num_parts * size :]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [one + two for one, two in zip(parts[:half], parts[half:], strict=True)]
        values = jnp.concatenate([parts[0], rest], axis=-1) if rest.shape[-1] else parts[0]
    return values[..., 0]


def _with_last_axis_first(values: jax.Array) -> jax.Array:
    """Lay values out such that parts of the last axis are whole vectors.

    Seen on: libtpu 0.0.51, which would else add up parts of vectors.
    Gains: 4k cycles by its own estimate for 256 rows of 128, not 11k.
    Pinned by: `test_wide_rows_are_laid_out_anew_on_tpu_alone`.
    Can go when: the estimate is the same without it.
    """
    axes = range(values.ndim)
    return with_layout_constraint(values, Layout(major_to_minor=(axes[-1], *axes[:-1])))


def _first(values: jax.Array, *_: jax.Array) -> jax.Array:
    return values


def _words(values: jax.Array) -> jax.Array:
    """Return the bits of numbers as unsigned integers of the same size."""
    return lax.bitcast_convert_type(values, jnp.dtype(f"uint{8 * values.dtype.itemsize}"))


def _ones(values: jax.Array) -> jax.Array:
    """Return an unsigned one for each of some numbers; XLA does not know that it is always one."""
    words = values.astype(jnp.uint8) if values.dtype == jnp.bool_ else _words(values)
    one = words.dtype.type(1)
    return jnp.minimum(words | one, one)
