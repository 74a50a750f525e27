"""The form in which the state of a run is saved, so that any number of devices can go on with it.

A checkpoint holds what a single device would have: the buffer with all environments. Only the sums of metrics are saved
for each device. If the number of devices is unchanged, each device gets its own sums back, and the run keeps its bits.
Otherwise the sums are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.training.metrics import Sums
from algorithms.training.train_state import TrainState
from jaxrl_buffers._saved_leaves import SideBySide
from jaxrl_buffers._shards import OfDevices
from jaxrl_buffers.types import PyTree


class SavedStates(NamedTuple):
    """Packs states for a checkpoint, and unpacks them.

    Args:
        like: shapes of the states of a run, or of one point of a sweep, as programs take them.
        whole: shapes of the same states if one device had everything.
        num_devices: how many devices share each seed.
        axis: the axis of devices; it comes after that of seeds, if there is one.
    """

    like: Any
    whole: Any
    num_devices: int = 1
    axis: int = 0

    @classmethod
    def of_one_device(cls, like: PyTree) -> SavedStates:
        """Return how states are saved that one device has."""
        return cls(like, like)

    def pack(self, state: PyTree) -> Any:
        """Return a state in the form in which it is saved."""
        if self.num_devices == 1 or not jax.tree.leaves(state.buffer):
            return state
        return state._replace(buffer=OfDevices(state.buffer, self.whole.buffer, self.axis))

    def shapes(self, metadata: Mapping[str, Any]) -> Any:
        """Return the shapes of the state in a checkpoint with this metadata."""
        num_saved = metadata.get("settings", {}).get("plan", {}).get("devices", 1)
        if num_saved == self.num_devices:
            return self.pack(self.like)

        added = [num_saved] if num_saved > 1 else []

        def with_sums(state: TrainState, axis: int) -> TrainState:
            """Return a state with sums on the host, of as many devices as there were."""

            def of_saved(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
                return np.zeros((*leaf.shape[:axis], *added, *leaf.shape[axis:]), leaf.dtype)

            sums = self.whole.states[0].sums if isinstance(self.whole, SideBySide) else self.whole.sums
            return state._replace(sums=jax.tree.map(of_saved, sums))

        return self._each(with_sums, self.pack(self.like))

    def unpack(self, state: PyTree) -> Any:
        """Return a state in the form in which programs take it."""

        def of_one(state: TrainState, axis: int) -> TrainState:
            buffer = state.buffer.state if isinstance(state.buffer, OfDevices) else state.buffer
            sums = state.sums
            if isinstance(sums, Sums) and isinstance(sums.totals, np.ndarray):
                has_axis = sums.totals.ndim > axis + 1
                sums = sums.added_up(axis) if has_axis else sums
                sums = sums.dealt_out(axis, self.num_devices) if self.num_devices > 1 else jax.tree.map(jnp.array, sums)
            return state._replace(buffer=buffer, sums=sums)

        return self._each(of_one, state)

    def _each(self, function: Callable[[TrainState, int], TrainState], state: PyTree) -> Any:
        """Apply a function to a state, or to those of all members."""
        if isinstance(state, SideBySide):
            return type(state)(tuple(function(one, 0) for one in state.states))
        return function(state, self.axis)
