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
from jax import lax

from jaxrl_buffers._checks import check_fields, named_field, with_field
from jaxrl_buffers.storage import _fits as fits
from jaxrl_buffers.storage import _handles as handles
from jaxrl_buffers.storage import returns, ring
from jaxrl_buffers.storage.returns import EpisodicReturns
from jaxrl_buffers.storage.ring import Ring, Rows
from jaxrl_buffers.types import Handle, PyTree, View

FAR = ring.POSITION_LIMIT  # longer ago than anything that is stored; sums of it and an age fit in int32


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


def init(structure: PyTree, shape: tuple[int, int], recorded: EpisodicReturns | None, view: View) -> EpisodeIndex:
    """Return the index of an empty ring of shape `(T, N)` for rows of the given structure, read by a view."""
    check_fields(structure, "the episode index", ("terminated", "truncated"))

    def zeros(*shape: int) -> jax.Array:
        return jnp.zeros(shape, jnp.int32)

    table = Table(*(zeros(*shape) for _ in Table._fields))
    opened = Open(zeros(shape[1]), zeros(shape[1]), jnp.full(shape[1], FAR, jnp.int32))
    tree = () if recorded is None else recorded.init(structure, shape)
    return EpisodeIndex(zeros(*shape), table, opened, tree, fits.init(shape) if fits.are_needed(view) else ())


def record(before: Ring, written: Ring, rows: Rows, recorded: EpisodicReturns | None, view: View) -> Ring:
    """Return the ring `written` with its index brought up to date, given the ring as it was and the rows written."""
    index = before.episodes
    if not isinstance(index, EpisodeIndex):
        return written
    length, num_envs = ring.shape(before)
    known = (rows.env >= 0) & (rows.env < num_envs) & (rows.lengths > 0)
    offset = jnp.arange(jax.tree.leaves(rows.data)[0].shape[0], dtype=jnp.int32)[:, None]
    is_written = known[None] & (offset < rows.lengths[None])
    steps = returns.steps_of(rows.data, recorded)
    ended = is_written & (steps.terminated | steps.truncated)
    episode = _episodes_of_chunk(jax.tree.map(lambda leaf: leaf.at[rows.env].get(mode="clip")[None], index.open),
                                 ended, is_written & steps.is_zero, length)  # fmt: skip
    env = jnp.broadcast_to(rows.env[None], is_written.shape)
    row = jnp.where(is_written, ring.wrap(ring.of_env(before.head % length, env) + offset, length), length)
    # Of the rows of an episode, the last one in the chunk speaks for it, so no number is written twice.
    speaks = ended | (is_written & (offset == rows.lengths[None] - 1))
    slot = jnp.where(speaks, episode.number, length)
    position = ring.wrap(ring.of_env(before.head, env) + offset, ring.modulus(before))
    zero = ring.wrap(position - jnp.minimum(episode.since_zero, length), ring.modulus(before))
    entry = Table(position, episode.length, jnp.where(episode.since_zero < length, zero, -1))
    table = jax.tree.map(lambda old, new: old.at[slot, env].set(new, mode="drop"), index.table, entry)
    after = _next_episode(episode, ended, length)
    newest = jnp.maximum(rows.lengths - 1, 0)[None]
    column = jnp.where(known, rows.env, num_envs)
    opened = jax.tree.map(
        lambda old, new: old.at[column].set(jnp.take_along_axis(new, newest, axis=0)[0], mode="drop"), index.open, after
    )
    number = index.number.at[row, env].set(episode.number, mode="drop")
    tree = index.returns if recorded is None else recorded.write(index.returns, length, steps, row, env)
    counts = index.fits
    if isinstance(counts, fits.Fits):
        counts = fits.record(counts, view, position, episode.length, row, env)
    return written._replace(episodes=EpisodeIndex(number, table, opened, tree, counts))


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


def returns_of_rows(storage: Ring, recorded: EpisodicReturns, row: jax.Array, env: jax.Array) -> jax.Array:
    """Return the episodic returns of stored rows, for indices of any common shape."""
    span, age = of_rows(storage, row, env), ring.age_of_row(storage, row, env)
    # With bootstrapping, every end settles its episode.
    is_settled = (age >= span.zero) | (span.is_ended & (recorded.bootstrap is not None))
    return recorded.read(storage.episodes.returns, ring.shape(storage)[0], row, env, is_settled)


@jax.jit
def describe(storage: Ring, handle: Handle) -> Episode:
    """Return what is known about the episodes of the rows that handles of any shape name."""
    slots, is_stored = handles.locate(storage, handle)
    row, env = ring.unravel(storage, jnp.where(is_stored, slots, 0))
    span, age = of_rows(storage, row, env), ring.age_of_row(storage, row, env)
    begin, end, zero = (
        ring.position_of_age(storage, jnp.minimum(part, ring.modulus(storage) - 1), env)
        for part in (span.begin, span.end, span.zero)
    )
    zero = jnp.where(span.zero == FAR, -1, zero)
    return Episode(begin, end, age - span.end, zero, span.begin_is_stored, span.is_ended, is_stored)


def mark_break(storage: Ring, recorded: EpisodicReturns | None, where: jax.Array) -> Ring:
    """Close the open episodes of environments: their newest stored rows become truncated, unless they are ends.

    Args:
        storage: the ring.
        recorded: the returns that the index records, if any.
        where: `bool[N]`, the environments concerned.
    """
    length, num_envs = ring.shape(storage)
    env = jnp.arange(num_envs, dtype=jnp.int32)
    row = ring.row_of_age(storage, jnp.zeros_like(env), env)
    is_stored = jnp.broadcast_to(ring.of_env(storage.size, env) > 0, env.shape)
    newest = ring.read(storage, row, env)
    old = named_field(newest, "truncated")
    cut = where & is_stored & ~named_field(newest, "terminated").astype(bool)
    truncated = jnp.where(cut, jnp.ones_like(old), old)
    field = named_field(storage.data, "truncated").at[row, env].set(truncated)
    storage = storage._replace(data=with_field(storage.data, "truncated", field))
    index = storage.episodes
    if not isinstance(index, EpisodeIndex):
        return storage
    opened = _next_episode(index.open, where & (index.open.length > 0), length)
    tree = index.returns
    if recorded is not None:
        value = returns.steps_of(newest, recorded).value
        tree = recorded.cut(tree, length, jnp.where(cut, row, length), env, value)
    return storage._replace(episodes=index._replace(open=opened, returns=tree))
