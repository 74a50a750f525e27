"""How views read rows, whatever storage they lie in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import PyTree

Change = Callable[[PyTree, jax.Array, jax.Array], PyTree]  # from (rows, row, env) to other rows
# Tells of stored rows (row, env) whether one of their fields, or all of them (None), can still be read.
Complete = Callable[[jax.Array, jax.Array, str | None], jax.Array]


class Reader(NamedTuple):
    """Reads rows of a ring, as they were added and with all that is known of them."""

    ring: Ring
    changes: tuple[Change, ...] = ()
    complete: Complete | None = None

    def read(self, row: jax.Array, env: jax.Array) -> PyTree:
        """Return the rows at indices of any common shape."""
        return self._changed(ring.read(self.ring, row, env), row, env)

    def steps(self, row: jax.Array, env: jax.Array, num_steps: int) -> Steps:
        """Return what follows from each of the rows `[B]` on, that one included."""
        rows = [self.later(row, step) if step else row for step in range(num_steps)]
        index = [one * ring.shape(self.ring)[1] + env for one in rows]
        return Steps(self, rows, env, self.ring.rows.read_steps(index))

    def map(self, change: Change) -> Reader:
        """Return a reader of changed rows; the stored ones stay as they are."""
        return self._replace(changes=(*self.changes, change))

    def is_complete(self, row: jax.Array, env: jax.Array, field: str | None = None) -> jax.Array:
        """Tell which stored rows can still be read whole, or of which one named field can."""
        return jnp.ones(row.shape, bool) if self.complete is None else self.complete(row, env, field)

    def oldest(self, start: jax.Array | int, num_rows: int) -> tuple[PyTree, jax.Array]:
        """Return `num_rows` rows of every environment, `start` rows after the oldest one.

        Returns:
            Leaves `[num_rows, N, ...]` in order of time, and `bool[num_rows, N]` telling which are stored whole.
        """
        _, num_envs = ring.shape(self.ring)
        env = jnp.broadcast_to(jnp.arange(num_envs, dtype=jnp.int32)[None], (num_rows, num_envs))
        index = jnp.broadcast_to(start + jnp.arange(num_rows, dtype=jnp.int32)[:, None], env.shape)
        size = ring.of_env(self.ring.size, env)
        stored = (index >= 0) & (index < size)
        row = ring.row_of_age(self.ring, jnp.where(stored, size - 1 - index, 0), env)
        return self.read(row, env), stored & self.is_complete(row, env)

    @property
    def episodes(self) -> PyTree:
        """The episode index; `episodes.of_rows(reader.ring, row, env)` asks it."""
        return self.ring.episodes

    def locate(self, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the `(row, env)` of flat slots."""
        return ring.unravel(self.ring, slots)

    def age(self, row: jax.Array, env: jax.Array) -> jax.Array:
        """Return how many newer rows are stored."""
        return ring.age_of_row(self.ring, row, env)

    def later(self, row: jax.Array, steps: jax.Array | int) -> jax.Array:
        """Return the row `steps` (at most `T`) after `row`."""
        return ring.wrap(row + steps, ring.shape(self.ring)[0])

    def _changed(self, rows: PyTree, row: jax.Array, env: jax.Array) -> PyTree:
        for change in self.changes:
            rows = change(rows, row, env)
        return rows


class Steps(NamedTuple):
    """The next rows of each of `B` samples, step by step."""

    reader: Reader
    rows: list[jax.Array]  # int32[B], of every step
    env: jax.Array  # int32[B]
    stored: list[Any]  # of every step, as `Rows.read_steps` returns them

    def each(self) -> list[PyTree]:
        """Return all steps in order, leaves `[B, ...]`; for fields that are used of all of them."""
        unpack = self.reader.ring.rows.unpack
        return [self.reader._changed(unpack(one), self.rows[step], self.env) for step, one in enumerate(self.stored)]

    def at(self, number: jax.Array | int) -> PyTree:
        """Return one step of each sample, the same or `number[B]`: leaves `[B, ...]`."""
        storage, row = self.reader.ring, self.row_at(number)
        index = row * ring.shape(storage)[1] + self.env
        rows = storage.rows.select(self.stored, number, index)
        return self.reader._changed(rows, row, self.env)

    def row_at(self, number: jax.Array | int) -> jax.Array:
        """Return the rows `[B]` of the steps with the given numbers."""
        return self.rows[number] if isinstance(number, int) else self.reader.later(self.rows[0], number)
