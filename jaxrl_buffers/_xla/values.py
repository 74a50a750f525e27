"""Numbers that are computed once, read in order, summed up in order, or kept in a chosen memory layout."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

GPUS = ("cuda", "rocm")  # as JAX names them in programs
MANY = 32  # rows of at least this many numbers are summed with whole vector registers
PARTS = 16  # how many parts of such a row are added in one step


def keep(values: jax.Array, unknown: jax.Array | None = None) -> jax.Array:
    """Return `values` unchanged. On CPU they are computed once and kept for all their uses.

    XLA's CPU backend computes cheap values again for each element that depends on them. For example, for every number
    that is gathered, it computes the index again, with everything that the index depends on. The result of a division
    is computed only once. So the values are divided by one, in a form that hides from XLA that the divisor is one. The
    machine code has no division.

    Seen on: jaxlib 0.10.2, CPU.
    Gains: one of its uses is in `segment_tree.search`. With it, a draw of 256 among 2^20 takes 54 us, not 59.
    Pinned by: `test_what_is_kept_is_not_computed_in_the_gather` and, for reads of a single leaf before it is written,
        `test_batches_of_one_are_in_place`.
    Can go when: these tests pass without it.

    Args:
        values: numbers of any shape and dtype.
        unknown: any scalar that XLA does not know when it compiles and that is cheap to read. The divisor is computed
            from it; by default, from the values themselves. Pass a scalar if several results of a long computation are
            kept.
    """
    unknown = values if unknown is None else unknown
    return lax.platform_dependent(values, unknown, cpu=_divided_by_one, default=_first)


def _divided_by_one(values: jax.Array, unknown: jax.Array) -> jax.Array:
    if values.dtype == jnp.bool_:
        return _divided_by_one(values.astype(jnp.uint8), unknown).astype(jnp.bool_)
    words = _words(values)
    ones = jnp.broadcast_to(_ones(unknown).astype(words.dtype), words.shape)
    return lax.bitcast_convert_type(lax.div(words, ones), values.dtype)


def order_after(mask: jax.Array, read: jax.Array) -> jax.Array:
    """Return `mask` unchanged. On CPU it is computed after `read`, and so is a write that depends on it.

    If a write to an array may run before an earlier read of it, XLA's CPU backend copies the whole array to keep the
    read right. `lax.optimization_barrier` does not help: XLA removes it before it decides about copies.

    Seen on: jaxlib 0.10.2, CPU.
    Gains: saves two copies of all leaves a step, if rows are added and priorities updated before anything is sampled.
    Pinned by: `test_other_orders_are_in_place_too`.
    Can go when: that test passes without it.

    Args:
        mask: bools of any shape.
        read: a scalar that depends on the earlier read, and is never negative or NaN.
    """
    # A comparison costs less than the hidden one of `in_one_kernel`: every kernel that uses the mask computes it again.
    return lax.platform_dependent(mask, read, cpu=lambda mask, read: mask & (read >= 0), default=_first)


def in_one_kernel(values: jax.Array, others: jax.Array) -> jax.Array:
    """Return `values` unchanged. On GPU one kernel computes both `values` and `others`.

    Both must be results of the program. XLA's GPU backend makes a separate kernel for each small number that a step
    passes on to the next step, unless one of the numbers depends on another. So `values` are made to depend on
    `others`, in a form that hides from XLA that `others` do not change them.

    Seen on: jaxlib 0.10.2, GPU.
    Gains: a loop that adds and samples has 9 kernels on an H100, not 10.
    Pinned by: `test_the_main_loops`.
    Can go when: that test passes without it.

    Args:
        values: numbers of any shape.
        others: numbers of the same shape.
    """
    return lax.platform_dependent(values, others, **dict.fromkeys(GPUS, _behind), default=_first)


def _behind(values: jax.Array, others: jax.Array) -> jax.Array:
    return jnp.where(_ones(others) == 1, values, jnp.zeros_like(values))


def stack_bytes(arrays: Sequence[jax.Array]) -> jax.Array:
    """Return arrays of bytes stacked along a new last axis. On CPU, four bytes are joined into a word by shifts.

    XLA's CPU backend uses vector instructions for the shifts, but not for `jnp.stack`.

    Seen on: jaxlib 0.10.2, CPU.
    Gains: stacks of four frames of 84x84 are read in two thirds of the time.
    Pinned by: `test_four_bytes_are_stacked_as_words_on_cpu`.
    Can go when: `jnp.stack` is as fast.
    """
    if len(arrays) != 4 or arrays[0].dtype != jnp.uint8:
        return jnp.stack(arrays, axis=-1)

    def as_words(*arrays: jax.Array) -> jax.Array:
        first, second, third, fourth = (array.astype(jnp.uint32) for array in arrays)
        return lax.bitcast_convert_type(first | second << 8 | third << 16 | fourth << 24, jnp.uint8)

    return lax.platform_dependent(*arrays, cpu=as_words, default=lambda *arrays: jnp.stack(arrays, axis=-1))


def stack_scalars(scalars: Sequence[jax.Array]) -> jax.Array:
    """Return `jnp.stack(scalars)`. On CPU, every element of the vector chooses its scalar by comparing numbers.

    XLA's CPU backend does not fuse a concatenation of many scalars with the code that computes them.

    Seen on: jaxlib 0.10.2, CPU.
    Gains: a training step takes 3 % (DDQN) or 4 % (SAC) less processor time. On a TPU v5e the workaround would make a
        step of DDQN slower: 153k cycles instead of 149k. On an H100 it has 64 kernels in both cases. So these use the
        plain stack.
    Pinned by: `test_scalars_are_chosen_one_by_one_on_cpu_alone`.
    Can go when: the step takes no longer on CPU.

    Args:
        scalars: at least one, all of one dtype.
    """

    def chosen(*scalars: jax.Array) -> jax.Array:
        place, values = jnp.arange(len(scalars)), jnp.zeros(len(scalars), scalars[0].dtype)
        for number, scalar in enumerate(scalars):
            values = jnp.where(place == number, scalar, values)
        return values

    return lax.platform_dependent(*scalars, cpu=chosen, default=lambda *scalars: jnp.stack(scalars))


def sum_in_order(values: jax.Array) -> jax.Array:
    """Sum the last axis in a fixed order: the second half is added to the first half, and so on with the result.

    XLA orders the additions of `jnp.sum` differently from program to program. A tree that is rebuilt from its leaves
    could then differ from the original in the last bit. On TPU, parts of wide rows are added as whole vectors; see
    `_with_last_axis_first`.

    Seen on: jaxlib 0.10.2, all platforms.
    Gains: the same bits in every program.
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
        # Several halvings in one step, if the width allows it: on a TPU each step is a kernel of its own.
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
    """Choose a memory layout in which parts of the last axis are whole vectors.

    Seen on: libtpu 0.0.51, which otherwise adds parts of vectors.
    Gains: for 256 rows of 128 the compiler estimates 4k cycles, not 11k.
    Pinned by: `test_wide_rows_are_laid_out_anew_on_tpu_alone`.
    Can go when: the estimate is the same without it.
    """
    axes = range(values.ndim)
    return with_layout_constraint(values, Layout(major_to_minor=(axes[-1], *axes[:-1])))


def compact(array: jax.Array, is_read_by_row: bool = False) -> jax.Array:
    """Return an array `[M, W]` unchanged. On TPU it has the memory layout that takes the least memory.

    A TPU lays arrays out in tiles of 8x128, so `[M, 23]` takes five times the memory of its transpose. Arrays have the
    smaller layout when they are passed between programs. Inside a program, XLA may choose the larger layout for some
    loops. It then copies the whole array between loops of different layouts. If this function is applied to an array
    that was written, all loops use the smaller layout.

    For reads of whole rows, XLA chooses the smaller layout only if this saves more than half of the memory and more
    than 128 MiB. In other cases this function leaves the layout to XLA. Otherwise XLA would copy the array for every
    read.

    Seen on: libtpu 0.0.51.
    Gains: a training program with a memory and a ring of 2^20 slots takes 3 MB beside its results, not 540 MB.
    Pinned by: `test_off_policy_training[tpu-recurrent]`, `test_each_operation_alone[tpu-add-frames]`, and for arrays
        whose layout is left to XLA by `test_the_main_loops`.
    Can go when: these tests pass without it.

    Args:
        array: what was written.
        is_read_by_row: whether whole rows are read, and not only single numbers.
    """
    num_rows, width = array.shape
    by_rows, by_columns = (
        array.dtype.itemsize * _padded(one, 8) * _padded(other, 128)
        for one, other in ((num_rows, width), (width, num_rows))
    )
    if is_read_by_row and (by_rows <= 2 * by_columns or by_rows - by_columns <= 2**27):
        return array
    layout = Layout(major_to_minor=(1, 0) if by_columns < by_rows else (0, 1))
    return lax.platform_dependent(array, tpu=lambda array: with_layout_constraint(array, layout), default=_first)


def _padded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _first(values: jax.Array, *_: jax.Array) -> jax.Array:
    return values


def _words(values: jax.Array) -> jax.Array:
    """Return the bits of numbers as unsigned integers of the same size."""
    return lax.bitcast_convert_type(values, jnp.dtype(f"uint{8 * values.dtype.itemsize}"))


def _ones(values: jax.Array) -> jax.Array:
    """Return an unsigned one for each number, computed so that XLA does not see that it is one."""
    words = values.astype(jnp.uint8) if values.dtype == jnp.bool_ else _words(values)
    one = words.dtype.type(1)
    return jnp.minimum(words | one, one)
