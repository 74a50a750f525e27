"""The protocols of what a sampler, its state or a view may have beside `Sampler` and `View`; `types` has them too."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import jax

PyTree = Any


@runtime_checkable
class MarksRows(Protocol):
    """An optional part of a sampler: a faster `mark` of rows that were written together in lock-step."""

    def mark_rows(
        self,
        state: PyTree,
        begin: jax.Array,
        slots: jax.Array,
        legal: jax.Array,
        priorities: jax.Array | None = None,
    ) -> PyTree:
        """Do what `mark` does for slots `[K, N]`. Those inside the storage are `begin, begin + 1, ...` in order.

        After the last slot of the storage comes slot 0. This happens only between two rows, never within a row.
        """
        ...


@runtime_checkable
class PerSlot(Protocol):
    """An optional part of a sampler's state: all its arrays and segment trees have one entry for each slot.

    The entries are in the order of `ring.slot`. A checkpoint needs to know this to split the state over another number
    of devices.
    """

    @property
    def is_per_slot(self) -> bool:
        """Always True."""
        ...


@runtime_checkable
class NeedsEpisodes(Protocol):
    """An optional part of a sampler: it declares whether the sampler reads the episode index, `storage.episodes`."""

    @property
    def needs_episodes(self) -> bool:
        """Whether the episode index must be kept."""
        ...


@runtime_checkable
class NeedsEveryEnv(Protocol):
    """An optional part of a sampler: it declares whether every environment must hold a start."""

    @property
    def needs_every_env(self) -> bool:
        """Whether a batch holds draws from every environment."""
        ...


@runtime_checkable
class StaysWithinEpisode(Protocol):
    """An optional part of a view: it declares whether samples stay in one episode. This needs the episode index."""

    @property
    def within_episode(self) -> bool:
        """Whether all rows of a sample must be in one episode."""
        ...
