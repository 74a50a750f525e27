"""Sums of scalars over a training run, read out as means and counts between chunks."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from algorithms.environments import Finished
from algorithms.training import faults
from algorithms.types import Metrics
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.types import Transition

# What updates that leave the policy as it is know nothing of: agents with such updates tell which by `moves_policy`.
OF_POLICY = ("loss_pi", "grad_norm_pi")
# What is summed up besides what updates report.
_BEFORE = ("num_updates", "episodes", "episode_return", "episode_length", *faults.OF_ROWS)


class Scalars(Component):
    """Metrics as one vector: a compiled loop then moves and adds once, not once for every name."""

    names: tuple[str, ...] = field(static=True)
    values: jax.Array  # float32[..., M]

    @classmethod
    def of(cls, metrics: Metrics) -> Scalars:
        """Return scalars by name as a vector, in the order of the names."""
        names = tuple(sorted(metrics))
        # Not stacked: a concatenation of many scalars is not fused with what they are made of.
        place, values = jnp.arange(len(names)), jnp.zeros(len(names), jnp.float32)
        for index, name in enumerate(names):
            values = jnp.where(place == index, jnp.asarray(metrics[name], jnp.float32), values)
        return cls(names, values)


class Sums(Component):
    """What has been summed up since the last reading."""

    names: tuple[str, ...] = field(static=True)  # of what updates report
    totals: jax.Array  # float32[8 + M], of _BEFORE and of the names
    first_steps: jax.Array  # int32[7], at which each of faults.NAMES was first seen; 0 if it was not

    @classmethod
    def zero(cls, names: Sequence[str]) -> Sums:
        """Return empty sums."""
        zeros = jnp.zeros(len(_BEFORE) + len(names), jnp.float32)
        return cls(tuple(names), zeros, jnp.zeros(len(faults.NAMES), jnp.int32))

    def add(
        self,
        step: jax.Array,
        chunk: Transition | None,
        finished: Finished | None = None,
        updates: Scalars | None = None,
    ) -> Sums:
        """Add what happened up to a step.

        Args:
            step: the number of steps.
            chunk: rows `[K, N, ...]`, in which faults are counted; None if there are none.
            finished: episodes `[K, N]` that may have ended; None if they do not count.
            updates: metrics of `U` updates; None if there were none.
        """
        values = jnp.zeros((0, len(self.names)), jnp.float32) if updates is None else updates.values
        num_updates = jnp.full(1, values.shape[0], jnp.float32)
        added = jnp.concatenate([num_updates, _of_rows(chunk, finished), jnp.sum(values, axis=0)])
        counts = self._by_name(added)
        found = jnp.stack([counts.get(name, jnp.zeros((), jnp.float32)) for name in faults.NAMES])
        is_first = (found > 0) & (self.first_steps == 0)
        return Sums(self.names, self.totals + added, jnp.where(is_first, step, self.first_steps))

    def with_names(self, names: Sequence[str]) -> Sums:
        """Return the same sums, and empty ones for what updates report by these names."""
        zeros = jnp.zeros(len(names), jnp.float32)
        return Sums(tuple(names), jnp.concatenate([self.totals[: len(_BEFORE)], zeros]), self.first_steps)

    def read(self) -> Metrics:
        """Return by name every mean, NaN where nothing was summed up, and every count."""
        totals = self._by_name(self.totals)
        counts = {name: totals[name] for name in ("episodes", *faults.NAMES) if name in totals}
        policy_updates = totals.get("moves_policy", totals["num_updates"])
        means = {
            name: totals[name] / (policy_updates if name in OF_POLICY else totals["num_updates"]) for name in self.names
        }
        return {
            **means,
            **counts,
            "episode_return": totals["episode_return"] / totals["episodes"],
            "episode_length": totals["episode_length"] / totals["episodes"],
        }

    def total(self, name: str) -> jax.Array:
        """Return a count `[...]`, also of the sums of many seeds."""
        return self.totals[..., (*_BEFORE, *self.names).index(name)]

    def _by_name(self, totals: jax.Array) -> Metrics:
        return dict(zip((*_BEFORE, *self.names), totals, strict=True))


def _of_rows(chunk: Transition | None, finished: Finished | None) -> jax.Array:
    """Return the sums of what `_BEFORE` names behind the number of updates, over rows `[K, N, ...]`."""
    if chunk is None:
        return jnp.zeros(len(_BEFORE) - 1, jnp.float32)
    episodes = [jnp.zeros_like(chunk.reward)] * 3 if finished is None else finished
    rows = jnp.stack([leaf.astype(jnp.float32) for leaf in (*episodes, *faults.of_rows(chunk))])
    return jnp.sum(rows, axis=(1, 2))
