"""Statistics of what a buffer holds and what is drawn from it.

They are exact. All slots are sorted, in `O(T N log(T N))`, so compute them between chunks of training and not in every
step.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_buffers import _mesh as mesh
from jaxrl_buffers import starts
from jaxrl_buffers._mesh import Axis
from jaxrl_buffers.storage import ring
from jaxrl_buffers.types import Scalar

if TYPE_CHECKING:
    from jaxrl_buffers.replay import ReplayBuffer, ReplayState

QUANTILES = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1.0}


class Starts(NamedTuple):
    """What is known of every slot as the start of a sample."""

    age: jax.Array  # int32[T * N], in rows
    is_legal: jax.Array  # bool[T * N]
    mass: jax.Array  # float32[T * N]: its unnormalized probability of being drawn


@jax.jit
def measure(buffer: ReplayBuffer, state: ReplayState, progress: Scalar = 0.0) -> Starts:
    """Return how old every slot is, whether a sample may start there, and how likely it is drawn."""
    storage, window = state.storage, buffer.window(state)
    length, num_envs = ring.shape(storage)
    slots = jnp.arange(length * num_envs, dtype=jnp.int32)
    row, env = ring.unravel(storage, slots)
    age = ring.age_of_row(storage, row, env)
    mass = buffer.sampler.measure(state.sampler, storage, slots, window, progress).mass
    return Starts(age, starts.is_legal(storage, window, age, env), mass)


@jax.jit
def summarize(buffer: ReplayBuffer, state: ReplayState, progress: Scalar = 0.0) -> dict[str, jax.Array]:
    """Return a flat dict of scalars; see `ReplayBuffer.stats`."""
    length, num_envs = ring.shape(state.storage)
    age, is_legal, mass = measure(buffer, state, progress)
    legal, size = is_legal.astype(jnp.int32), buffer.size(state)
    counts = {
        "size": size,
        "fill": size.astype(jnp.float32) / (length * num_envs),
        "num_starts": buffer.num_valid(state),
    }
    counts |= buffer.storage.describe(state.storage)
    ages, drawn_ages = _quantiles("age", age, legal), _quantiles("drawn_age", age, mass)
    return counts | ages | drawn_ages | _quantiles("priority", mass, legal)


@functools.partial(jax.jit, static_argnames="axis")
def summarize_across(
    buffer: ReplayBuffer, state: ReplayState, progress: Scalar = 0.0, *, axis: Axis
) -> dict[str, jax.Array]:
    """Return the statistics of a buffer that is split over the devices along an axis of a mesh; see `Sharded.stats`."""
    length, num_envs = ring.shape(state.storage)
    age, is_legal, mass = measure(buffer, state, progress)
    legal, weights = is_legal.astype(jnp.float32), jnp.where(is_legal, mass, 0)
    counts = {"size": buffer.size(state), "num_starts": buffer.num_valid(state)}
    counts = mesh.total(counts | buffer.storage.describe(state.storage), axis)
    fill = counts["size"].astype(jnp.float32) / (length * num_envs * mesh.num_devices(axis))
    ages = age.astype(jnp.float32)
    of_all = [("age", ages, legal), ("drawn_age", ages, weights), ("priority", mass, legal)]
    quantiles = [_quantiles_across(name, values, of_values, axis) for name, values, of_values in of_all]
    return functools.reduce(operator.or_, quantiles, counts | {"fill": fill})


def _quantiles_across(name: str, values: jax.Array, weights: jax.Array, axis: Axis) -> dict[str, jax.Array]:
    """Do what `_quantiles` does with values of all devices, which are not negative. No array leaves its device.

    The smallest value up to which the weights reach each share is found by bisection over the bits of float32. For
    numbers that are not negative, the bits have the same order as the numbers.
    """
    bits = jax.lax.bitcast_convert_type(values, jnp.int32)

    def reached(limit: jax.Array) -> jax.Array:
        """Return the sum of the weights of all values up to each limit."""
        sums = jnp.sum(jnp.where(bits[None] <= limit[:, None], weights[None], 0), axis=1)
        return mesh.total(sums, axis)

    most = jax.lax.bitcast_convert_type(jnp.full(len(QUANTILES), jnp.inf, jnp.float32), jnp.int32)
    total = reached(most)
    thresholds = jnp.array([*QUANTILES.values()], jnp.float32) * total

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        sums = reached(middle)
        is_enough = (sums >= thresholds) & (sums > 0)
        return jnp.where(is_enough, low, middle + 1), jnp.where(is_enough, middle, high)

    _, high = jax.lax.fori_loop(0, 32, halve, mesh.vary_like((jnp.zeros_like(most), most), total))
    found = jnp.where(total > 0, jax.lax.bitcast_convert_type(high, jnp.float32), jnp.nan)
    return {f"{name}_{label}": value for label, value in zip(QUANTILES, found, strict=True)}


def _quantiles(name: str, values: jax.Array, weights: jax.Array) -> dict[str, jax.Array]:
    """Return weighted quantiles: the values at which the sum of weights, in order of values, reaches each share."""
    order = jnp.argsort(jnp.where(weights > 0, values.astype(jnp.float32), jnp.inf))
    reached = jnp.cumsum(weights[order]).astype(jnp.float32)
    last = jnp.count_nonzero(weights) - 1
    thresholds = jnp.array([*QUANTILES.values()], jnp.float32) * reached[-1]
    # Rounding may keep the sum from being reached. Then the last value with a weight is the quantile.
    index = jnp.clip(jnp.searchsorted(reached, thresholds), 0, last)
    found = jnp.where(last >= 0, values[order][index].astype(jnp.float32), jnp.nan)
    return {f"{name}_{label}": value for label, value in zip(QUANTILES, found, strict=True)}
