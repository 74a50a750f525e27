"""What rows of nodes amount to: their sum in a fixed order, their least and their largest."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from jaxrl_buffers.segment_tree._parents import NOTHING, WIDE

PARTS = 16  # of a row that are added up in one go


class Summary(NamedTuple):
    """What a range of leaves amounts to."""

    total: jax.Array  # float32[], zero for an empty range
    least: jax.Array  # float32[], the smallest non-zero leaf; inf when there is none
    largest: jax.Array  # float32[], zero when there is none


def summarize(stats: jax.Array) -> Summary:
    """Summarize nodes `[..., 3, M]` over the last axis."""
    total, least, largest = stats[..., 0, :], stats[..., 1, :], stats[..., 2, :]
    if stats.shape[-1] < WIDE:
        return Summary(_ordered_sum(total), jnp.min(least, -1), jnp.max(largest, -1))
    least, largest = lax.reduce((least, largest), NOTHING[1:], _extremes, (least.ndim - 1,))  # in one kernel
    return Summary(_ordered_sum(total), least, largest)


def _extremes(one: tuple[jax.Array, ...], other: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    return lax.min(one[0], other[0]), lax.max(one[1], other[1])


def _ordered_sum(values: jax.Array) -> jax.Array:
    """Sum the last axis in a fixed order: its second half is added to its first, and so on.

    XLA orders the additions of `jnp.sum` differently from program to program; a tree rebuilt from its leaves would then
    differ from the written one in the last bit.
    """
    is_wide = values.shape[-1] >= WIDE
    if is_wide:
        values = lax.platform_dependent(values, tpu=_with_last_axis_first, default=lambda values: values)
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

    XLA for TPUs (libtpu 0.0.51) would add up parts of vectors: 11k cycles by its own estimate for 256 rows, not 4k.
    """
    axes = range(values.ndim)
    return with_layout_constraint(values, Layout(major_to_minor=(axes[-1], *axes[:-1])))
