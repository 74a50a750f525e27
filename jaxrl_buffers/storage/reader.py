"""`Reader`: how views read rows. Views need not know how rows are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import PyTree

Change = Callable[[PyTree, jax.Array, jax.Array], PyTree]  # (rows, row, env) -> changed rows
# (row, env, field) -> whether that field of stored rows can still be read; a field of None means all fields.
Complete = Callable[[jax.Array, jax.Array, str | None], jax.Array]


class Reader(NamedTuple):
    """Reads rows of a ring, and applies `changes` to them, one after the other.

    Layers of the storage use changes to put back what they store themselves, such as observations. Views use changes
    too: `Hindsight` replaces goals.
    """

    ring: Ring
    changes: tuple[Change, ...] = ()
    complete: Complete | None = None  # None: all fields of stored rows can be read

    def read(self, row: jax.Array, env: jax.Array) -> PyTree:
        """Return the rows at indices of any common shape."""
        return self.changed(ring.read(self.ring, row, env), row, env)

    def steps(self, row: jax.Array, env: jax.Array, num_steps: int) -> Steps:
        """Read `num_steps` consecutive rows of each sample, from its first row `row[B]` on."""
        rows = [self.later(row, step) if step else row for step in range(num_steps)]
        index = [one * ring.shape(self.ring)[1] + env for one in rows]
        return Steps(self, rows, env, self.ring.rows.read_steps(index))

    def map(self, change: Change) -> Reader:
        """Return a reader that also applies `change` to rows; what is stored does not change."""
        return self._replace(changes=(*self.changes, change))

    def is_complete(self, row: jax.Array, env: jax.Array, field: str | None = None) -> jax.Array:
        """Return whether stored rows can still be read: one named field, or by default all fields."""
        return jnp.ones(row.shape, bool) if self.complete is None else self.complete(row, env, field)

    def oldest(self, start: jax.Array | int, num_rows: int) -> tuple[PyTree, jax.Array]:
        """Return `num_rows` rows of every environment. The first is `start` rows after the oldest.

        Returns:
            Leaves `[num_rows, N, ...]` in order of time, and `bool[num_rows, N]`: which rows are stored and complete.
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
        """The episode index; `episodes.of_rows(reader.ring, row, env)` finds the episodes of rows."""
        return self.ring.episodes

    def locate(self, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the `(row, env)` of slots."""
        return ring.unravel(self.ring, slots)

    def age(self, row: jax.Array, env: jax.Array) -> jax.Array:
        """Return how many newer rows the environment has."""
        return ring.age_of_row(self.ring, row, env)

    def later(self, row: jax.Array, steps: jax.Array | int) -> jax.Array:
        """Return the row that is `steps` after `row`; `steps` is at most `T`."""
        return ring.wrap(row + steps, ring.shape(self.ring)[0])

    def changed(self, rows: PyTree, row: jax.Array, env: jax.Array) -> PyTree:
        """Apply all changes to rows that were read at these indices."""
        for change in self.changes:
            rows = change(rows, row, env)
        return rows


class Steps(NamedTuple):
    """Consecutive rows of `B` samples, step by step."""

    reader: Reader
    rows: list[jax.Array]  # for each step, int32[B]: where its rows are
    env: jax.Array  # int32[B]
    stored: list[Any]  # for each step, its rows as `Rows.read_steps` returns them

    def each(self) -> list[PyTree]:
        """Return the rows of every step, leaves `[B, ...]`. Use it for fields that are needed from every step."""
        unpack = self.reader.ring.rows.unpack
        return [self.reader.changed(unpack(one), self.rows[step], self.env) for step, one in enumerate(self.stored)]

    def at(self, number: jax.Array | int) -> PyTree:
        """Return step `number[B]` of each sample, or one step for all: leaves `[B, ...]`."""
        storage, row = self.reader.ring, self.row_at(number)
        index = row * ring.shape(storage)[1] + self.env
        rows = storage.rows.select(self.stored, number, index)
        return self.reader.changed(rows, row, self.env)

    def row_at(self, number: jax.Array | int) -> jax.Array:
        """Return where step `number[B]` of each sample is: `int32[B]`."""
        return self.rows[number] if isinstance(number, int) else self.reader.later(self.rows[0], number)
