"""The episode index: where the episode of any stored row begins and ends, in constant time.

Rows are numbered by the episode that they belong to, and a table by episode number holds what is known of each one:

    begin age = last age + length - 1,   end age = last age

Numbers count modulo `T`: the stored episodes have consecutive numbers and at least one row each, so no two of them
share one. A write touches only the rows and the episodes of its chunk; forgetting rows touches nothing, because every
answer is an age, and what is too old is not stored. No step is ever looked at again when an episode ends.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from jaxrl_buffers._fields import check_fields
from jaxrl_buffers.storage import _fits as fits
from jaxrl_buffers.storage import _handles as handles
from jaxrl_buffers.storage import returns, ring
from jaxrl_buffers.storage.reader import Reader
from jaxrl_buffers.storage.returns import EpisodicReturns
from jaxrl_buffers.storage.ring import Break, Chunk, Ring
from jaxrl_buffers.types import Handle, PyTree

FAR = ring.POSITION_LIMIT  # longer ago than anything that is stored; sums of it and an age fit in int32


def index_of(storage: Ring) -> EpisodeIndex:
    """Return the episode index of a ring; refuse one that has none."""
    if not isinstance(storage.episodes, EpisodeIndex):
        raise ValueError("this state has no index of episodes; make its buffer anew and pass `keep_episodes=True`.")
    return storage.episodes


class Table(NamedTuple):
    """What is known of each episode, by its number."""

    last: jax.Array  # int32[T, N]: the position of its newest row
    length: jax.Array  # int32[T, N]: how many rows it has had, at most FAR
    zero: jax.Array  # int32[T, N]: the position of its last zero-discount row, -1 if none is stored


class Open(NamedTuple):
    """The episode that the next row of each environment belongs to."""

    number: jax.Array  # int32[N]
    length: jax.Array  # int32[N]: how many rows it has had; zero iff the newest row ended its episode
    since_zero: jax.Array  # int32[N]: how many rows followed its last zero-discount row, FAR if there is none


class EpisodeIndex(NamedTuple):
    """Everything that is remembered of episodes."""

    number: jax.Array  # int32[T, N]: of the episode of each row
    table: Table
    open: Open
    returns: PyTree  # of the steps, if they are recorded
    fits: PyTree = ()  # the starts of samples that lie in one episode, if the view asks for them


class Span(NamedTuple):
    """Where episodes lie, by age."""

    begin: jax.Array  # of the first row, stored or not
    end: jax.Array  # of the newest row
    zero: jax.Array  # of the last zero-discount row, FAR if none is stored
    is_ended: jax.Array  # bool
    begin_is_stored: jax.Array  # bool


class Episode(NamedTuple):
    """What the index knows about the episodes of stored rows; positions as in `Handle`."""

    begin: jax.Array  # the position of the first row, stored or not
    end: jax.Array  # the position of the last row, of the newest one while the episode goes on
    steps_to_end: jax.Array
    last_zero: jax.Array  # the position of the last zero-discount row, -1 if none is stored
    begin_is_stored: jax.Array  # bool
    is_ended: jax.Array  # bool
    is_stored: jax.Array  # bool: whether the row that was asked about is stored; else the rest is meaningless


class Episodes(struct.PyTreeNode):
    """The layer that keeps the index.

    Args:
        returns: record the returns of episodes' steps.
        fit: which starts count as fitting into one episode.
        is_wanted: whether some part asks for the index.
        counts_fits: whether the starts that fit are counted.
    """

    returns: EpisodicReturns | None
    fit: fits.Fit = struct.field(pytree_node=False)
    is_wanted: bool = struct.field(pytree_node=False)
    counts_fits: bool = struct.field(pytree_node=False)

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
        return EpisodeIndex(zeros(*shape), table, opened, tree, fits.init(shape) if self.counts_fits else ())

    def kept(self, rows: PyTree) -> PyTree:
        """Return rows as they are."""
        return rows

    def added(self, storage: Ring, structure: PyTree) -> PyTree:
        """Return the structure as it is."""
        return structure

    def record(self, before: Ring, chunk: Chunk) -> EpisodeIndex:
        """Return the index after a chunk, given the ring as it was."""
        index, (length, num_envs) = before.episodes, ring.shape(before)
        row, env, position, is_written = ring.places(before, chunk)
        steps = returns.steps_of(chunk.rows, self.returns)
        ended = is_written & (steps.terminated | steps.truncated)
        opened = jax.tree.map(lambda leaf: leaf.at[chunk.env].get(mode="clip")[None], index.open)
        episode = _episodes_of_chunk(opened, ended, is_written & steps.is_zero, length)
        # Of the rows of an episode, the last one in the chunk speaks for it, so no number is written twice.
        is_newest = jnp.arange(chunk.num_rows, dtype=jnp.int32)[:, None] == chunk.lengths[None] - 1
        slot = jnp.where(ended | (is_written & is_newest), episode.number, length)
        zero = ring.wrap(position - jnp.minimum(episode.since_zero, length), ring.modulus(before))
        entry = Table(position, episode.length, jnp.where(episode.since_zero < length, zero, -1))
        table = jax.tree.map(lambda old, new: old.at[slot, env].set(new, mode="drop"), index.table, entry)
        after = _next_episode(episode, ended, length)
        newest = jnp.maximum(chunk.lengths - 1, 0)[None]
        column = jnp.where(jnp.any(is_written, axis=0), chunk.env, num_envs)
        opened = jax.tree.map(
            lambda old, new: old.at[column].set(jnp.take_along_axis(new, newest, axis=0)[0], mode="drop"),
            index.open,
            after,
        )
        number = index.number.at[row, env].set(episode.number, mode="drop")
        tree = index.returns if self.returns is None else self.returns.write(index.returns, length, steps, row, env)
        counts = index.fits
        if isinstance(counts, fits.Fits):
            counts = fits.record(counts, self.fit, position, episode.length, row, env)
        return EpisodeIndex(number, table, opened, tree, counts)

    def reader(self, storage: Ring, reader: Reader, as_added: bool) -> Reader:
        """Return a reader of rows with their returns, if these are recorded."""
        recorded = self.returns
        if recorded is None or as_added:
            return reader
        return reader.map(lambda rows, row, env: recorded.attach(rows, _returns_of_rows(storage, recorded, row, env)))

    def mark_break(self, storage: Ring, broken: Break) -> EpisodeIndex:
        """Close open episodes; their returns go on with the stored value of what follows, if there is one."""
        index, (length, num_envs) = storage.episodes, ring.shape(storage)
        opened = _next_episode(index.open, broken.where & (index.open.length > 0), length)
        tree = index.returns
        if self.returns is not None:
            value = returns.steps_of(broken.newest, self.returns).value
            row, env = jnp.where(broken.is_cut, broken.row, length), jnp.arange(num_envs, dtype=jnp.int32)
            tree = self.returns.cut(tree, length, row, env, value)
        return index._replace(open=opened, returns=tree)

    def describe(self, storage: Ring) -> dict[str, jax.Array]:
        """Count the stored episodes."""
        return {"episodes": jnp.sum(count(storage), dtype=jnp.int32)}


def _episodes_of_chunk(opened: Open, ended: jax.Array, is_zero: jax.Array, num_rows: int) -> Open:
    """Return the number, length so far and rows since the last zero discount of each row's episode, `[K, E]`."""
    offset = jnp.arange(ended.shape[0], dtype=jnp.int32)[:, None]
    # The offset of the first row of each row's episode; -1 where it began before the chunk.
    begin = lax.cummax(jnp.where(jnp.roll(ended, 1, axis=0) & (offset > 0), offset, -1))
    last_zero = lax.cummax(jnp.where(is_zero, offset, -1))
    length = offset + 1 + jnp.where(begin < 0, opened.length, -begin)
    since_before = jnp.where(begin < 0, opened.since_zero + offset + 1, FAR)
    since_zero = jnp.where(last_zero >= jnp.maximum(begin, 0), offset - last_zero, since_before)
    number = opened.number + jnp.cumsum(ended, axis=0, dtype=jnp.int32) - ended
    return Open(ring.wrap(number, num_rows), jnp.minimum(length, FAR), jnp.minimum(since_zero, FAR))


def _next_episode(episode: Open, ended: jax.Array, num_rows: int) -> Open:
    """Return the episode of a row that would follow."""
    return Open(
        ring.wrap(episode.number + ended, num_rows),
        jnp.where(ended, 0, episode.length),
        jnp.where(ended, FAR, episode.since_zero),
    )


def between(storage: Ring, newest: jax.Array, oldest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the number of the oldest episode that has rows of ages `newest..oldest-1`, and how many have: `[N]`."""
    length, num_envs = ring.shape(storage)
    env = jnp.arange(num_envs, dtype=jnp.int32)
    rows = (ring.row_of_age(storage, jnp.clip(age, 0, length - 1), env) for age in (oldest - 1, newest))
    first, last = (storage.episodes.number.at[row, env].get(mode="clip") for row in rows)
    return first, jnp.where(newest < oldest, ring.wrap(last - first, length) + 1, 0)


def count(storage: Ring) -> jax.Array:
    """Count the stored episodes of each environment, whole or not: `int32[N]`."""
    return between(storage, jnp.zeros_like(storage.size), storage.size)[1]


def of_number(storage: Ring, number: jax.Array, env: jax.Array) -> Span:
    """Return where the episodes of the given numbers lie; meaningless for numbers of which no row is stored."""
    last, length, zero = (leaf.at[number, env].get(mode="clip") for leaf in storage.episodes.table)
    end = ring.age_of_position(storage, last, env)
    begin = end + length - 1
    zero = jnp.where(zero < 0, FAR, ring.age_of_position(storage, jnp.maximum(zero, 0), env))
    is_ended = (end > 0) | (storage.episodes.open.length.at[env].get(mode="clip") == 0)
    size = ring.of_env(storage.size, env)
    return Span(begin, end, jnp.where(zero < size, zero, FAR), is_ended, begin < size)


def of_rows(storage: Ring, row: jax.Array, env: jax.Array) -> Span:
    """Return where the episodes of stored rows lie, for indices of any common shape."""
    return of_number(storage, storage.episodes.number.at[row, env].get(mode="clip"), env)


def _returns_of_rows(storage: Ring, recorded: EpisodicReturns, row: jax.Array, env: jax.Array) -> jax.Array:
    """Return the episodic returns of stored rows, for indices of any common shape."""
    span, age = of_rows(storage, row, env), ring.age_of_row(storage, row, env)
    # With bootstrapping, every end settles its episode.
    is_settled = (age >= span.zero) | (span.is_ended & (recorded.bootstrap is not None))
    return recorded.read(storage.episodes.returns, ring.shape(storage)[0], row, env, is_settled)


@jax.jit
def describe(storage: Ring, handle: Handle) -> Episode:
    """Return what is known about the episodes of the rows that handles of any shape name."""
    index_of(storage)
    slots, is_stored = handles.locate(storage, handle)
    row, env = ring.unravel(storage, jnp.where(is_stored, slots, 0))
    span, age = of_rows(storage, row, env), ring.age_of_row(storage, row, env)
    begin, end, zero = (
        ring.position_of_age(storage, jnp.minimum(part, ring.modulus(storage) - 1), env)
        for part in (span.begin, span.end, span.zero)
    )
    zero = jnp.where(span.zero == FAR, -1, zero)
    return Episode(begin, end, age - span.end, zero, span.begin_is_stored, span.is_ended, is_stored)
