"""Sums of scalars over a training run, read out as means between chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from algorithms.environments import Finished
from algorithms.types import Metrics

# What updates that leave the policy as it is know nothing of: agents with such updates tell which by `moves_policy`.
OF_POLICY = ("loss_pi", "grad_norm_pi")


class EpisodeSums(NamedTuple):
    """Statistics of finished episodes."""

    num_episodes: jax.Array  # float32[]
    total_return: jax.Array  # float32[]
    total_length: jax.Array  # float32[]


class Scalars(struct.PyTreeNode):
    """Metrics as one vector: a compiled loop then moves and adds once, not once for every name."""

    names: tuple[str, ...] = struct.field(pytree_node=False)
    values: jax.Array  # float32[..., M]

    @classmethod
    def of(cls, metrics: Metrics) -> Scalars:
        """Return scalars by name as a vector, in the order of the names."""
        names = tuple(sorted(metrics))
        return cls(names, jnp.stack([jnp.asarray(metrics[name], jnp.float32) for name in names]))


class Sums(struct.PyTreeNode):
    """What has been summed up since the last reading."""

    names: tuple[str, ...] = struct.field(pytree_node=False)
    updates: jax.Array  # float32[M], sums over updates
    num_updates: jax.Array  # float32[]
    episodes: jax.Array  # float32[3], an EpisodeSums

    @classmethod
    def zero(cls, names: Sequence[str]) -> Sums:
        """Return empty sums."""
        zeros = jnp.zeros(len(names), jnp.float32)
        return cls(tuple(names), zeros, jnp.zeros((), jnp.float32), jnp.zeros(3, jnp.float32))

    def add(self, updates: Scalars, finished: Finished) -> Sums:
        """Add metrics of `U` updates, and episodes `[K, N]` that may have ended."""
        episodes = jnp.stack([jnp.sum(leaf, dtype=jnp.float32) for leaf in finished])
        return self.replace(
            updates=self.updates + jnp.sum(updates.values, axis=0),
            num_updates=self.num_updates + updates.values.shape[0],
            episodes=self.episodes + episodes,
        )

    def means(self) -> Metrics:
        """Return every mean by name; NaN where nothing was summed up."""
        sums = dict(zip(self.names, self.updates, strict=True))
        policy_updates = sums.get("moves_policy", self.num_updates)
        means = {
            name: total / (policy_updates if name in OF_POLICY else self.num_updates) for name, total in sums.items()
        }
        episodes = EpisodeSums(*self.episodes)
        return {
            **means,
            "episodes": episodes.num_episodes,
            "episode_return": episodes.total_return / episodes.num_episodes,
            "episode_length": episodes.total_length / episodes.num_episodes,
        }
