"""Rows on their way from environments to a buffer."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxrl_buffers.types import PyTree


class Rows:
    """A queue of rows of `N` environments, in order of time.

    Rows are taken out once every environment has enough of them for a chunk. A step that only resets an environment
    adds no row for it. The rows of the other environments then wait until it has as many. The number of waiting rows is
    the difference between the numbers of episodes.

    Args:
        num_envs: `N`.
    """

    def __init__(self, num_envs: int):
        self._counts = np.zeros(num_envs, np.int64)
        self.clear()

    def add(self, row: PyTree, is_row: np.ndarray) -> None:
        """Append a row for the environments in which `is_row` is True.

        Args:
            row: leaves `[N, ...]`, which the caller must not change later.
            is_row: `bool[N]`.
        """
        leaves, self._structure = jax.tree.flatten(row)
        self._steps.append(leaves)
        self._is_left.append(is_row)
        self._counts += is_row
        self._is_even = self._is_even and bool(is_row.all())

    def __len__(self) -> int:
        """Return how many rows every environment has."""
        return len(self._steps) if self._is_even else int(self._counts.min())

    def take(self, num_rows: int) -> PyTree:
        """Remove and return the oldest rows `[K, N, ...]`; their memory is not changed afterwards."""
        if not self._is_even:
            return jax.tree.unflatten(self._structure, self._take_uneven(num_rows))
        taken, self._steps = self._steps[:num_rows], self._steps[num_rows:]
        self._is_left = self._is_left[num_rows:]
        self._counts -= num_rows
        chunk = [leaf[None] for leaf in taken[0]] if num_rows == 1 else map(np.stack, zip(*taken, strict=True))
        return jax.tree.unflatten(self._structure, list(chunk))

    def clear(self) -> None:
        """Forget all rows."""
        self._steps: list[list[np.ndarray]] = []
        self._is_left: list[np.ndarray] = []  # bool[N] each: whether an environment's row is still there
        self._counts[:] = 0
        self._is_even = True  # whether all environments have the same number of rows

    def _take_uneven(self, num_rows: int) -> list[Any]:
        is_left, envs = np.stack(self._is_left), np.arange(len(self._counts))
        is_taken = is_left & (np.cumsum(is_left, axis=0) <= num_rows)
        place = np.stack([np.flatnonzero(is_taken[:, env]) for env in envs], axis=1)  # [K, N]
        chunk = [np.stack(leaves)[place, envs] for leaves in zip(*self._steps, strict=True)]
        self._counts -= num_rows
        kept = [number for number, left in enumerate(is_left & ~is_taken) if left.any()]
        self._steps = [self._steps[number] for number in kept]
        self._is_left = [(is_left & ~is_taken)[number] for number in kept]
        self._is_even = all(left.all() for left in self._is_left)
        return chunk
