"""Rows on their way from environments to a buffer."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxrl_buffers.types import PyTree


class Rows:
    """Rows of `N` environments in order of time, until there are enough of every one for a chunk.

    An environment whose step was a mere reset adds none. The rows of the others then wait in line for its next one, so
    that chunks are whole. As many wait as the numbers of episodes differ.

    Args:
        num_envs: `N`.
    """

    def __init__(self, num_envs: int):
        self._counts = np.zeros(num_envs, np.int64)
        self.clear()

    def add(self, row: PyTree, is_row: np.ndarray) -> None:
        """Append a row, leaves `[N, ...]` in memory that nobody changes any more, where `is_row` `bool[N]`."""
        leaves, self._structure = jax.tree.flatten(row)
        self._steps.append(leaves)
        self._is_left.append(is_row)
        self._counts += is_row
        self._is_even = self._is_even and bool(is_row.all())

    def __len__(self) -> int:
        """How many rows there are of every environment."""
        return len(self._steps) if self._is_even else int(self._counts.min())

    def take(self, num_rows: int) -> PyTree:
        """Take away and return the oldest rows `[K, N, ...]`, in memory that nobody changes."""
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
        self._is_even = True  # whether all environments have as many

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
