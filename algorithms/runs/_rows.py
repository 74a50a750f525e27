"""Rows on their way from environments to a buffer."""

from __future__ import annotations

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
        self._counts, self._capacity = np.zeros(num_envs, np.int64), 0
        self._leaves: list[np.ndarray] = []  # [capacity, N, ...]

    def add(self, row: PyTree, is_row: np.ndarray) -> None:
        """Append a row, leaves `[N, ...]`, where `is_row` `bool[N]`."""
        leaves, self._structure = jax.tree.flatten(row)
        if self._counts.max() >= self._capacity:
            self._grow(leaves)
        if is_row.all() and (self._counts == self._counts[0]).all():
            place, env = self._counts[0], slice(None)
        else:
            env = np.flatnonzero(is_row)
            place = self._counts[env]
        for kept, leaf in zip(self._leaves, leaves, strict=True):
            kept[place, env] = leaf[env]
        self._counts += is_row

    def __len__(self) -> int:
        """How many rows there are of every environment."""
        return int(self._counts.min())

    def take(self, num_rows: int) -> PyTree:
        """Take away and return the oldest rows `[K, N, ...]`, in memory of their own."""
        chunk = [leaf[:num_rows].copy() for leaf in self._leaves]
        self._counts -= num_rows
        for leaf in self._leaves:
            rest = self._counts.max()
            leaf[:rest] = leaf[num_rows : num_rows + rest].copy()
        return jax.tree.unflatten(self._structure, chunk)

    def clear(self) -> None:
        """Forget all rows."""
        self._counts[:] = 0

    def _grow(self, leaves: list[np.ndarray]) -> None:
        before, self._capacity = self._leaves, max(2 * self._capacity, 8)
        self._leaves = [np.empty((self._capacity, *leaf.shape), leaf.dtype) for leaf in leaves]
        for kept, old in zip(self._leaves, before, strict=False):
            kept[: len(old)] = old
