"""What rows of nodes amount to: their sum in a fixed order, their least and their largest."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_buffers._xla import sum_in_order
from jaxrl_buffers.segment_tree._parents import NOTHING, WIDE


class Summary(NamedTuple):
    """What a range of leaves amounts to."""

    total: jax.Array  # float32[], zero for an empty range
    least: jax.Array  # float32[], the smallest non-zero leaf; inf when there is none
    largest: jax.Array  # float32[], zero when there is none


def summarize(stats: jax.Array) -> Summary:
    """Summarize nodes `[..., 3, M]` over the last axis."""
    total, least, largest = stats[..., 0, :], stats[..., 1, :], stats[..., 2, :]
    if stats.shape[-1] < WIDE:
        return Summary(sum_in_order(total), jnp.min(least, -1), jnp.max(largest, -1))
    least, largest = lax.reduce((least, largest), NOTHING[1:], _extremes, (least.ndim - 1,))  # in one kernel
    return Summary(sum_in_order(total), least, largest)


def _extremes(one: tuple[jax.Array, ...], other: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    return lax.min(one[0], other[0]), lax.max(one[1], other[1])
