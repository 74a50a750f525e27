"""The episode index: where the episode of any stored row begins and ends, in constant time.

Every row has the number of its episode. A table holds, for each number, where that episode is. Here is an example of
one environment and a ring of `T = 7` rows, which holds the positions 2 to 8. A bar marks the end of an episode:

    position          2   3   4 | 5   6 | 7   8
    `number`          0   0   0   1   1   2   2

    `table`           of episode 0       1       2
    `last`                       4       6       8      the position of its newest row
    `length`                     4       2       2      its rows so far, overwritten ones included
    `zero`                       4      -1      -1      the position of its last row with a discount of zero

The age of a row is the number of rows written after it. Where an episode begins and ends follows from ages:

    end age = age of `last`,   begin age = end age + `length` - 1

In the example, episode 0 begins at age 4 + 4 - 1 = 7. Seven rows are stored, with the ages 0 to 6. So the first row of
episode 0, at position 1, has been overwritten.

Numbers count modulo `T`. The stored episodes have consecutive numbers and at least one stored row each, so there are at
most `T` of them, and no two share a number.

Cost: a write changes the entries of its own rows and of their episodes. The end of an episode does not change the rows
before it. Overwritten and dropped rows need no change either, because their ages show that they are not stored.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_buffers._fields import check_fields
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.storage import _fits as fits
from jaxrl_buffers.storage import returns, ring
from jaxrl_buffers.storage.reader import Reader
from jaxrl_buffers.storage.returns import EpisodicReturns
from jaxrl_buffers.storage.ring import Break, Chunk, Ring
from jaxrl_buffers.types import Handle, PyTree

FAR = ring.POSITION_LIMIT  # an age above that of any stored row; FAR plus an age still fits in int32


def index_of(storage: Ring) -> EpisodeIndex:
    """Return the episode index of a ring, or raise an error if the ring has none."""
    if not isinstance(storage.episodes, EpisodeIndex):
        raise ValueError("this state has no episode index; make a new buffer and state, and pass `keep_episodes=True`.")
    return storage.episodes


class Table(NamedTuple):
    """Where each episode is, indexed by its number."""

    last: jax.Array  # int32[T, N]: the position of its newest row
    length: jax.Array  # int32[T, N]: its rows so far, overwritten ones included; at most FAR
    zero: jax.Array  # int32[T, N]: the position of its last row with a discount of zero, -1 if none is stored


class Open(NamedTuple):
    """The episode of each environment to which the next row will belong."""

    number: jax.Array  # int32[N]
    length: jax.Array  # int32[N]: its rows so far; 0 if the newest row ended an episode
    since_zero: jax.Array  # int32[N]: its rows after its last row with a discount of zero, FAR if there is none


class EpisodeIndex(NamedTuple):
    """The state of the index."""

    number: jax.Array  # int32[T, N]: the number of each row's episode
    table: Table  # where the stored episodes are
    open: Open  # the episodes that have not ended
    returns: PyTree  # the `Affine` maps of `EpisodicReturns`; () if returns are not recorded
    fits: PyTree = ()  # the `Fits` of samples that must stay in one episode; () if the view has no such condition


class Span(NamedTuple):
    """The ages at which episodes begin and end."""

    begin: jax.Array  # the age of the first row, stored or not
    end: jax.Array  # the age of the newest row
    zero: jax.Array  # the age of the last row with a discount of zero, FAR if none is stored
    is_ended: jax.Array  # bool
    begin_is_stored: jax.Array  # bool


class Episode(NamedTuple):
    """Where the episodes of rows are. Positions are those of `Handle`."""

    begin: jax.Array  # the position of the first row, stored or not
    end: jax.Array  # the position of the last row, or of the newest row if the episode has not ended
    steps_to_end: jax.Array  # how many rows of the episode follow
    last_zero: jax.Array  # the position of the last row with a discount of zero, -1 if none is stored
    begin_is_stored: jax.Array  # bool
    is_ended: jax.Array  # bool
    is_stored: jax.Array  # bool: whether the row itself is stored; if not, all other fields are meaningless


class Episodes(Component):
    """The layer of a storage that keeps the episode index.

    Args:
        returns: how returns are recorded; None records none.
        fit: which starts have samples that stay within one episode.
        is_wanted: whether the buffer or one of its parts needs the index.
        count_fits: count the starts that `fit` describes.
    """

    returns: EpisodicReturns | None
    fit: fits.Fit = field(static=True)
    is_wanted: bool = field(static=True)
    count_fits: bool = field(static=True)

    place = "episodes"
    lookback = 0

    def init(self, structure: PyTree, shape: tuple[int, int], platform: str | None) -> EpisodeIndex:
        """Return the index of an empty ring of shape `(T, N)` for rows of the given structure."""
        check_fields(structure, "the episode index", ("terminated", "truncated"))

        def zeros(*shape: int) -> jax.Array:
            return jnp.zeros(shape, jnp.int32)

        table = Table(*(zeros(*shape) for _ in Table._fields))
        opened = Open(zeros(shape[1]), zeros(shape[1]), jnp.full(shape[1], FAR, jnp.int32))
        tree = () if self.returns is None else self.returns.init(structure, shape)
        return EpisodeIndex(zeros(*shape), table, opened, tree, fits.init(shape) if self.count_fits else ())

    def kept(self, rows: PyTree) -> PyTree:
        """Return rows unchanged."""
        return rows

    def added(self, storage: Ring, structure: PyTree) -> PyTree:
        """Return the structure unchanged."""
        return structure

    def record(self, before: Ring, chunk: Chunk) -> EpisodeIndex:
        """Return the index after a chunk was added, given the ring before the chunk."""
        index, (length, num_envs) = before.episodes, ring.shape(before)
        row, env, position, is_written = ring.places(before, chunk)
        steps = returns.outcomes_of(chunk.rows, self.returns)
        ended = is_written & (steps.terminated | steps.truncated)
        opened = jax.tree.map(lambda leaf: leaf.at[chunk.env].get(mode="clip")[None], index.open)
        episode = _episodes_of_chunk(opened, ended, is_written & steps.is_zero, length)
        # Only the last row of each episode in the chunk writes to the table, so no number is written twice. All other
        # rows write to entry `T`, which does not exist.
        is_newest = jnp.arange(chunk.num_rows, dtype=jnp.int32)[:, None] == chunk.lengths[None] - 1
        place = jnp.where(ended | (is_written & is_newest), episode.number, length)
        zero = ring.wrap(position - jnp.minimum(episode.since_zero, length), ring.modulus(before))
        entry = Table(position, episode.length, jnp.where(episode.since_zero < length, zero, -1))
        table = jax.tree.map(lambda old, new: old.at[place, env].set(new, mode="drop"), index.table, entry)
        after = _next_episode(episode, ended, length)
        column = jnp.where(jnp.any(is_written, axis=0), chunk.env, num_envs)
        opened = jax.tree.map(
            lambda old, new: old.at[column].set(jnp.take_along_axis(new, chunk.newest[None], axis=0)[0], mode="drop"),
            index.open,
            after,
        )
        number = index.number.at[row, env].set(episode.number, mode="drop")
        tree = index.returns if self.returns is None else self.returns.write(index.returns, length, steps, row, env)
        counts = index.fits
        if counts != ():
            counts = fits.record(counts, self.fit, position, episode.length, row, env)
        return EpisodeIndex(number, table, opened, tree, counts)

    def reader(self, storage: Ring, reader: Reader, as_added: bool) -> Reader:
        """Return a reader of rows that adds their returns, if these are recorded."""
        recorded = self.returns
        if recorded is None or as_added:
            return reader
        return reader.map(lambda rows, row, env: recorded.attach(rows, _returns_of_rows(storage, recorded, row, env)))

    def mark_break(self, storage: Ring, broken: Break) -> EpisodeIndex:
        """Return the index after open episodes were closed.

        If rows store a value for bootstrapping, it becomes part of the returns of a closed episode.
        """
        index, (length, num_envs) = storage.episodes, ring.shape(storage)
        opened = _next_episode(index.open, broken.where & (index.open.length > 0), length)
        tree = index.returns
        if self.returns is not None:
            value = returns.outcomes_of(broken.newest, self.returns).value
            row, env = jnp.where(broken.is_cut, broken.row, length), jnp.arange(num_envs, dtype=jnp.int32)
            tree = self.returns.cut(tree, length, row, env, value)
        return index._replace(open=opened, returns=tree)

    def describe(self, storage: Ring) -> dict[str, jax.Array]:
        """Count the stored episodes."""
        return {"episodes": jnp.sum(count(storage), dtype=jnp.int32)}


def _episodes_of_chunk(opened: Open, ended: jax.Array, is_zero: jax.Array, num_rows: int) -> Open:
    """Return the state of the episode after each row `[K, E]` of a chunk, before the end of an episode is applied.

    Args:
        opened: `[1, E]`, the open episodes before the chunk.
        ended: `bool[K, E]`, the rows that end an episode.
        is_zero: `bool[K, E]`, the rows with a discount of zero.
        num_rows: `T`.
    """
    offset, begin = ring.begin_of_episodes(ended)
    last_zero = lax.cummax(jnp.where(is_zero, offset, -1))
    length = offset + 1 + jnp.where(begin < 0, opened.length, -begin)
    since_before = jnp.where(begin < 0, opened.since_zero + offset + 1, FAR)
    since_zero = jnp.where(last_zero >= jnp.maximum(begin, 0), offset - last_zero, since_before)
    number = opened.number + jnp.cumsum(ended, axis=0, dtype=jnp.int32) - ended
    return Open(ring.wrap(number, num_rows), jnp.minimum(length, FAR), jnp.minimum(since_zero, FAR))


def _next_episode(episode: Open, ended: jax.Array, num_rows: int) -> Open:
    """Return the episode to which the next row belongs: a new episode if this one has ended."""
    return Open(
        ring.wrap(episode.number + ended, num_rows),
        jnp.where(ended, 0, episode.length),
        jnp.where(ended, FAR, episode.since_zero),
    )


def between(storage: Ring, newest: jax.Array, oldest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Find the episodes that have rows of the ages `newest..oldest-1`.

    Returns:
        `int32[N]`, the number of the oldest such episode, and `int32[N]`, how many there are.
    """
    length, num_envs = ring.shape(storage)
    env = jnp.arange(num_envs, dtype=jnp.int32)
    rows = (ring.row_of_age(storage, jnp.clip(age, 0, length - 1), env) for age in (oldest - 1, newest))
    first, last = (storage.episodes.number.at[row, env].get(mode="clip") for row in rows)
    return first, jnp.where(newest < oldest, ring.wrap(last - first, length) + 1, 0)


def count(storage: Ring) -> jax.Array:
    """Count the episodes of each environment that have stored rows: `int32[N]`."""
    return between(storage, jnp.zeros_like(storage.size), storage.size)[1]


def of_number(storage: Ring, number: jax.Array, env: jax.Array) -> Span:
    """Return where the episodes of the given numbers are. The result is meaningless if no row of them is stored."""
    last, length, zero = (leaf.at[number, env].get(mode="clip") for leaf in storage.episodes.table)
    end = ring.age_of_position(storage, last, env)
    begin = end + length - 1
    zero = jnp.where(zero < 0, FAR, ring.age_of_position(storage, jnp.maximum(zero, 0), env))
    is_ended = (end > 0) | (storage.episodes.open.length.at[env].get(mode="clip") == 0)
    size = ring.of_env(storage.size, env)
    return Span(begin, end, jnp.where(zero < size, zero, FAR), is_ended, begin < size)


def of_rows(storage: Ring, row: jax.Array, env: jax.Array) -> Span:
    """Return where the episodes of stored rows are, for indices of any common shape."""
    return of_number(storage, storage.episodes.number.at[row, env].get(mode="clip"), env)


def _returns_of_rows(storage: Ring, recorded: EpisodicReturns, row: jax.Array, env: jax.Array) -> jax.Array:
    """Return the episodic returns of stored rows, for indices of any common shape."""
    span, age = of_rows(storage, row, env), ring.age_of_row(storage, row, env)
    # A return is known once its row or a later row of the episode has a discount of zero. With bootstrapping, it is
    # also known once the episode has ended.
    is_settled = (age >= span.zero) | (span.is_ended & (recorded.bootstrap is not None))
    return recorded.read(storage.episodes.returns, ring.shape(storage)[0], row, env, is_settled)


@jax.jit
def describe(storage: Ring, handle: Handle) -> Episode:
    """Return where the episodes of rows are, given handles of any shape."""
    index_of(storage)
    slots, is_stored = ring.locate(storage, handle)
    row, env = ring.unravel(storage, jnp.where(is_stored, slots, 0))
    span, age = of_rows(storage, row, env), ring.age_of_row(storage, row, env)
    begin, end, zero = (
        ring.position_of_age(storage, jnp.minimum(part, ring.modulus(storage) - 1), env)
        for part in (span.begin, span.end, span.zero)
    )
    zero = jnp.where(span.zero == FAR, -1, zero)
    return Episode(begin, end, age - span.end, zero, span.begin_is_stored, span.is_ended, is_stored)
