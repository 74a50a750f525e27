"""The actions that an environment has, for data sets whose actions must be among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from jaxrl_buffers.types import PyTree

TOLERANCE = 1e-4  # by how much of the distance of the bounds an action may be outside of them, due to rounding


class Bounds(NamedTuple):
    """The smallest and the largest action; whole numbers for discrete actions."""

    low: np.ndarray  # [A]
    high: np.ndarray  # [A]

    @classmethod
    def of(cls, num_actions: int | None, low: ArrayLike | None, high: ArrayLike | None) -> Bounds | None:
        """Return the bounds; None if there are none.

        Args:
            num_actions: how many discrete actions there are, beginning with 0.
            low: the smallest action, instead of `num_actions`.
            high: the largest action; needed with `low`.
        """
        if num_actions is not None:
            low, high = 0, num_actions - 1
        if low is None and high is None:
            return None
        if low is None or high is None or np.shape(low) != np.shape(high):
            raise ValueError(f"the bounds of actions are low={low} and high={high}; give two of the same shape.")
        return cls(np.ravel(low), np.ravel(high))

    def check(self, actions: PyTree, name_of: Callable[[int], str]) -> None:
        """Refuse actions outside of the bounds. The error names the first row that has one.

        Args:
            actions: the actions of some rows. Those of another size are left to other checks.
            name_of: returns the name of a row for the error, given its number among these rows.
        """
        for leaf in jax.tree.leaves(actions):
            values = leaf.reshape(len(leaf), -1)
            if values.shape[1] == len(self.low) and (wrong := self._is_outside(values)).any():
                row, part = np.argwhere(wrong)[0]
                low, high = self.low[part], self.high[part]
                where = f" in component {part}" if len(self.low) > 1 else ""
                between = f"{low} to {high}" if self._is_discrete else f"between {low:g} and {high:g}"
                raise ValueError(
                    f"{name_of(row)} has the action {values[row, part]}{where}, but the actions are {between}; is it a "
                    "data set of another environment?"
                )

    @property
    def _is_discrete(self) -> bool:
        return np.issubdtype(self.low.dtype, np.integer)

    def _is_outside(self, values: np.ndarray) -> np.ndarray:
        if self._is_discrete:
            return ~((values >= self.low) & (values <= self.high))
        slack = TOLERANCE * (self.high - self.low)
        return np.isfinite(values) & ((values < self.low - slack) | (values > self.high + slack))
