"""Numbers that tell a person what a buffer holds and what is drawn from it.

They are exact, by sorting all slots, in `O(T N log(T N))`: meant for between chunks of training, not for every step.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_buffers import starts
from jaxrl_buffers.storage import episodes, frames, ring
from jaxrl_buffers.storage.episodes import EpisodeIndex
from jaxrl_buffers.storage.frames import FrameStore
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import PyTree, Sampler, Scalar, View

QUANTILES = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1.0}


class Starts(NamedTuple):
    """Every slot as a start."""

    age: jax.Array  # int32[T * N], in rows
    is_legal: jax.Array  # bool[T * N]
    mass: jax.Array  # float32[T * N]: in proportion to which it is drawn


@jax.jit
def measure(sampler: Sampler, view: View, sampler_state: PyTree, storage: Ring, progress: Scalar = 0.0) -> Starts:
    """Return how old every slot is, whether a sample may start there, and how likely it is to."""
    length, num_envs = ring.shape(storage)
    window = starts.legal_window(storage, view)
    slots = jnp.arange(length * num_envs, dtype=jnp.int32)
    row, env = ring.unravel(storage, slots)
    age = ring.age_of_row(storage, row, env)
    mass = sampler.measure(sampler_state, storage, slots, window, progress).mass
    return Starts(age, starts.is_legal(storage, window, age, env), mass)


@jax.jit
def summarize(
    sampler: Sampler, view: View, sampler_state: PyTree, storage: Ring, progress: Scalar = 0.0
) -> dict[str, jax.Array]:
    """Return a flat dict of scalars.

    * `size`: stored slots; `fill`: their part of the capacity; `num_starts`: legal starts.
    * `episodes`: stored episodes, whole or not, if the buffer keeps an index of them.
    * `lost_finals`: stored rows whose final observation is not kept any more, if the buffer has `frames`.
    * `age_<quantile>`: age in rows of the legal starts; `drawn_age_<quantile>`: of what the sampler draws.
    * `priority_<quantile>`: the masses in proportion to which legal starts are drawn, such as
      `(priority + epsilon)^alpha`; zero outside the window of a sampler that leaves old rows out.

    Quantiles `min`, `q25`, `median`, `q75` and `max` are values that occur; NaN while there is nothing.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = jb.ReplayBuffer(view=jb.Sequence(1), length=8)
        >>> state = buffer.add(buffer.init(jnp.float32(0)), jnp.zeros((6, 1)))
        >>> stats = buffer.stats(state)
        >>> print(stats["fill"], stats["age_median"], stats["priority_max"])
        0.75 2.0 1.0
    """
    length, num_envs = ring.shape(storage)
    age, is_legal, mass = measure(sampler, view, sampler_state, storage, progress)
    legal = is_legal.astype(jnp.int32)
    size = jnp.sum(jnp.broadcast_to(storage.size, (num_envs,)), dtype=jnp.int32)
    counts = {
        "size": size,
        "fill": size.astype(jnp.float32) / (length * num_envs),
        "num_starts": starts.count(storage, starts.legal_window(storage, view)),
    }
    if isinstance(storage.episodes, EpisodeIndex):
        counts["episodes"] = jnp.sum(episodes.count(storage), dtype=jnp.int32)
    if isinstance(storage.frames, FrameStore):
        row, env = ring.unravel(storage, jnp.arange(length * num_envs, dtype=jnp.int32))
        is_lost = frames.is_lost(storage, row, env) & (age < ring.of_env(storage.size, env))
        counts["lost_finals"] = jnp.sum(is_lost, dtype=jnp.int32)
    ages, drawn_ages = _quantiles("age", age, legal), _quantiles("drawn_age", age, mass)
    return counts | ages | drawn_ages | _quantiles("priority", mass, legal)


def _quantiles(name: str, values: jax.Array, weights: jax.Array) -> dict[str, jax.Array]:
    """Return the values at which their weights, summed up in order, reach each part of the sum."""
    order = jnp.argsort(jnp.where(weights > 0, values.astype(jnp.float32), jnp.inf))
    reached = jnp.cumsum(weights[order]).astype(jnp.float32)
    last = jnp.count_nonzero(weights) - 1
    thresholds = jnp.array([*QUANTILES.values()], jnp.float32) * reached[-1]
    # Rounding may keep the sum from being reached: then the last value that counts is meant.
    index = jnp.clip(jnp.searchsorted(reached, thresholds), 0, last)
    found = jnp.where(last >= 0, values[order][index].astype(jnp.float32), jnp.nan)
    return {f"{name}_{label}": value for label, value in zip(QUANTILES, found, strict=True)}
