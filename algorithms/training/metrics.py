"""Metrics. The compiled program sums them up. They are read as means and counts between calls of the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.environments import Finished
from algorithms.training import faults
from algorithms.types import Metrics
from jaxrl_buffers import _mesh as mesh
from jaxrl_buffers._mesh import Axis
from jaxrl_buffers._xla import stack_scalars
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.types import Transition

# Means of these metrics are over the updates that move the policy. An agent reports the metric `moves_policy` if some
# of its updates do not move the policy.
OF_POLICY = ("loss_pi", "grad_norm_pi")
# The mean of a metric NAME is over as many values as the metric NAME + COUNT sums up to, if there is one.
COUNT = ":count"
# The names of all other sums, which come before the metrics of updates.
_BEFORE = ("num_updates", "episodes", "episode_return", "episode_length", *faults.OF_ROWS)


class Scalars(Component):
    """Metrics as one vector, so that a compiled loop adds one array instead of one scalar for every name."""

    names: tuple[str, ...] = field(static=True)
    values: jax.Array  # float32[..., M]

    @classmethod
    def of(cls, metrics: Metrics) -> Scalars:
        """Return metrics as a vector, sorted by name."""
        names = tuple(sorted(metrics))
        values = [jnp.asarray(metrics[name], jnp.float32).reshape(()) for name in names]
        return cls(names, stack_scalars(values) if values else jnp.zeros(0, jnp.float32))


class Sums(Component):
    """The sums since metrics were last read."""

    names: tuple[str, ...] = field(static=True)  # the metrics of updates
    totals: jax.Array  # float32[8 + M], the sums for the names in _BEFORE and then for `names`
    # The step at which each of faults.NAMES first occurred, or -n if that was offline update n; 0 if it did not occur
    first_steps: jax.Array  # int32[7]

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
        """Return the sums with new rows, episodes and updates added.

        Args:
            step: the number of steps so far; before any step, minus the number of offline updates so far.
            chunk: the new rows `[K, N, ...]`, in which faults are counted; None if there are none.
            finished: the episodes `[K, N]` that ended in these rows; None to leave them out.
            updates: the metrics `[U, M]` of `U` updates; None if there were none. The last names may be missing:
                offline updates have no new rows.
        """
        values = jnp.zeros((0, len(self.names)), jnp.float32) if updates is None else updates.values
        if missing := len(self.names) - values.shape[1]:
            values = jnp.pad(values, ((0, 0), (0, missing)))
        num_updates = jnp.full(1, values.shape[0], jnp.float32)
        added = jnp.concatenate([num_updates, _of_rows(chunk, finished), jnp.sum(values, axis=0)])
        counts = self._by_name(added)
        found = jnp.stack([counts.get(name, jnp.zeros((), jnp.float32)) for name in faults.NAMES])
        is_first = (found > 0) & (self.first_steps == 0)
        return Sums(self.names, self.totals + added, jnp.where(is_first, step, self.first_steps))

    def across(self, axis: Axis) -> Sums:
        """Return the sums of all devices along an axis of a mesh, of which each has its own.

        Rows and episodes of the devices are added up. Updates are made by all devices together, so their metrics are
        means over the devices.
        """
        if axis is None:
            return self
        count, rows, updates = jnp.split(self.totals, [1, len(_BEFORE)])
        share = 1 / mesh.num_devices(axis)
        totals = mesh.total(jnp.concatenate([count * share, rows, updates * share]), axis)
        none = jnp.iinfo(jnp.int32).max
        first = mesh.smallest(jnp.where(self.first_steps == 0, none, self.first_steps), axis)
        return Sums(self.names, totals, jnp.where(first == none, 0, first))

    def added_up(self, axis: int) -> Sums:
        """Return the sums of all devices, given NumPy arrays with an axis of devices. This is `across` on the host."""
        num_devices = self.totals.shape[axis]
        count, rows, updates = np.split(self.totals.sum(axis, dtype=np.float32), [1, len(_BEFORE)], axis=-1)
        totals: Any = np.concatenate([count / num_devices, rows, updates / num_devices], axis=-1, dtype=np.float32)
        none = np.iinfo(np.int32).max
        first: Any = np.where(self.first_steps == 0, none, self.first_steps).min(axis)
        first[first == none] = 0
        return Sums(self.names, totals, first)

    def dealt_out(self, axis: int, num_devices: int) -> Sums:
        """Split the sums over `num_devices` devices, along a new axis.

        `across` of the result gives these sums again.
        """
        both: Any = (self.totals, self.first_steps)
        totals, first = (np.repeat(np.expand_dims(leaf, axis), num_devices, axis) for leaf in both)
        # Every device has all updates. Rows are counted by one of them.
        totals[(*[slice(None)] * axis, slice(1, None), ..., slice(1, len(_BEFORE)))] = 0
        found: Any = (totals, first)
        return Sums(self.names, *found)

    def with_names(self, names: Sequence[str]) -> Sums:
        """Return the same sums, with zeros for metrics of updates with these names."""
        zeros = jnp.zeros(len(names), jnp.float32)
        return Sums(tuple(names), jnp.concatenate([self.totals[: len(_BEFORE)], zeros]), self.first_steps)

    def read(self) -> Metrics:
        """Return all means and counts by name. A mean over no updates, or over no episodes, is NaN."""
        totals = self._by_name(self.totals)
        counts = {name: totals[name] for name in ("episodes", *faults.NAMES) if name in totals}
        policy_updates = totals.get("moves_policy", totals["num_updates"])
        means = {
            name: totals[name]
            / totals.get(name + COUNT, policy_updates if name in OF_POLICY else totals["num_updates"])
            for name in self.names
            if not name.endswith(COUNT)
        }
        return {
            **means,
            **counts,
            "episode_return": totals["episode_return"] / totals["episodes"],
            "episode_length": totals["episode_length"] / totals["episodes"],
        }

    def total(self, name: str) -> jax.Array:
        """Return the sum with this name. Leading axes of the sums, such as an axis of seeds, are kept."""
        return self.totals[..., (*_BEFORE, *self.names).index(name)]

    def _by_name(self, totals: jax.Array) -> Metrics:
        return dict(zip((*_BEFORE, *self.names), totals, strict=True))


def _of_rows(chunk: Transition | None, finished: Finished | None) -> jax.Array:
    """Return the sums over rows `[K, N, ...]` for all names in `_BEFORE` except `num_updates`."""
    if chunk is None:
        return jnp.zeros(len(_BEFORE) - 1, jnp.float32)
    episodes = [jnp.zeros_like(chunk.reward)] * 3 if finished is None else finished
    rows = jnp.stack([leaf.astype(jnp.float32) for leaf in (*episodes, *faults.of_rows(chunk))])
    return jnp.sum(rows, axis=(1, 2))
