"""Fills the state of a buffer with rows that come in pieces."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping

import jax
import numpy as np

from jaxrl_buffers._array_files import blocks, rows_of_bytes
from jaxrl_buffers._checks import row_structure
from jaxrl_buffers._data_files import fitted
from jaxrl_buffers.replay import ReplayBuffer, ReplayState
from jaxrl_buffers.types import PyTree, Transition

FIELDS = {"obs": "observations", "action": "actions", "reward": "rewards", "next_obs": "next_observations"}


def require_one_column(caller: str, buffer: ReplayBuffer) -> None:
    """Refuse a buffer of several environments."""
    if buffer.num_envs != 1:
        raise ValueError(
            f"{caller}() got a buffer with num_envs={buffer.num_envs}, but a data set is one column of rows; use "
            "num_envs=1, and a Mixture to draw from this and from other buffers."
        )


def require_room(caller: str, buffer: ReplayBuffer, num_rows: int, keep: str) -> None:
    """Refuse a data set without rows. Refuse more rows than the ring holds, unless only the newest are kept."""
    if num_rows == 0:
        raise ValueError(f"{caller}() found no row with a known successor, so there is nothing to store.")
    if keep == "all" and num_rows > buffer.length:
        raise ValueError(
            f"{caller}() found {num_rows} rows, but the ring holds {buffer.length}; make the buffer with "
            f'length={num_rows} or more, or pass keep="newest".'
        )


def rows_of_block(buffer: ReplayBuffer, row: PyTree, num_rows: int) -> int:
    """Return how many of `num_rows` rows are written at once.

    If all blocks can have the same size, the program that writes them is compiled only once.
    """
    most = min(rows_of_bytes(row), buffer.length)
    return next((size for size in range(most, most // 2, -1) if num_rows % size == 0), most)


def filled(
    buffer: ReplayBuffer,
    row: Transition,
    pieces: Iterable[Transition],
    num_rows: int,
    extras: Mapping[str, PyTree] | None = None,
) -> ReplayState:
    """Return a state of rows that come in pieces of any length; its last episode is closed.

    Args:
        buffer: the buffer.
        row: shapes and dtypes of one row, without `extras`.
        pieces: the rows.
        num_rows: how many there are.
        extras: further extras that are the same in every row, unbatched.
    """
    if extras:
        row = row._replace(extras={**(row.extras or {}), **row_structure(dict(extras))})
        pieces = (_with_extras(piece, extras) for piece in pieces)
    state = buffer.init(row)
    for block in finite(blocks(pieces, row, rows_of_block(buffer, row, num_rows))):
        # Wait, because the next block has the same memory.
        state = jax.block_until_ready(_add(buffer, state, jax.tree.map(lambda leaf: leaf[:, None], block)))
    return _mark_break(buffer, state)


def check(row: Transition, pieces: Iterable[Transition], like: Transition | None) -> None:
    """Read all pieces, and refuse what cannot be stored; `row` and `like` are as in `_data_files.fitted`."""
    row = row if like is None else fitted(row, like, "from_file")
    for _ in finite(blocks(pieces, row, rows_of_bytes(row))):
        pass


def finite(pieces: Iterable[Transition]) -> Iterator[Transition]:
    """Yield pieces as they are. After the last one, raise an error if there were numbers that are not finite.

    An update that draws such a row would make the agent's parameters not finite. Extras may be anything. The error
    names the fields with such numbers.
    """
    num_rows, num_bad = 0, dict.fromkeys(FIELDS, 0)
    for piece in pieces:
        num_rows += len(piece.reward)
        for field in FIELDS:
            num_bad[field] += int(_is_bad(getattr(piece, field), len(piece.reward)).sum())
        yield piece
    found = [f"{count} rows in {FIELDS[field]!r}" for field, count in num_bad.items() if count]
    if found:
        raise ValueError(
            f"the data set has numbers that are not finite: {' and '.join(found)}, of {num_rows} rows; correct these "
            "rows, or leave them out."
        )


def _is_bad(values: PyTree, num_rows: int) -> np.ndarray:
    """Return `bool[M]`: the rows in which some number is not finite."""
    is_bad = np.zeros(num_rows, bool)
    for leaf in jax.tree.leaves(values):
        if jax.numpy.issubdtype(leaf.dtype, np.inexact):
            is_bad |= ~np.isfinite(leaf).reshape(num_rows, -1).all(axis=1)
    return is_bad


def _with_extras(piece: Transition, extras: Mapping[str, PyTree]) -> Transition:
    num_rows = len(piece.reward)
    same = jax.tree.map(lambda value: np.broadcast_to(value, (num_rows, *np.shape(value))), dict(extras))
    return piece._replace(extras={**(piece.extras or {}), **same})


@functools.partial(jax.jit, donate_argnums=1)
def _add(buffer: ReplayBuffer, state: ReplayState, chunk: PyTree) -> ReplayState:
    return buffer.add(state, chunk)


@functools.partial(jax.jit, donate_argnums=1)
def _mark_break(buffer: ReplayBuffer, state: ReplayState) -> ReplayState:
    return buffer.mark_break(state)
