"""Data sets of arrays under the names that D4RL gave them. They are checked, and read in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from jaxrl_buffers._action_bounds import Bounds
from jaxrl_buffers._checks import row_structure, shown
from jaxrl_buffers.types import PyTree, Transition

NEEDED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("timeouts", "next_observations", "infos", "metadata")
BLOCK_BYTES = 2**22  # how much is read or written at once


@runtime_checkable
class Sliceable(Protocol):
    """A NumPy array, or an array in a file, whose parts can be read by slices."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its entries."""
        ...

    def __getitem__(self, place: Any, /) -> Any:
        """Return a part of it."""
        ...


class ArraySource(NamedTuple):
    """A data set whose arrays fit together."""

    arrays: dict[str, Any]  # leaves [M, ...] that are `Sliceable`
    extras: PyTree  # leaves [M, ...] that are `Sliceable`
    terminated: np.ndarray  # bool[M]
    truncated: np.ndarray  # bool[M]
    is_kept: np.ndarray  # bool[M]: the successor is known, or not needed
    bounds: Bounds | None  # of actions

    @classmethod
    def of(cls, arrays: Mapping[str, Any], infos: Sequence[str], bounds: Bounds | None = None) -> ArraySource:
        """Check arrays, except the values of actions, and find out where their episodes end."""
        given = {name: _nested(value) for name, value in arrays.items()}
        chosen = _known(given)
        extras = {name: _info(given, name) for name in infos} or ()
        num_rows = _check_lengths(chosen | {"infos": extras})
        terminated, truncated = _flags(chosen, num_rows)
        if "next_observations" in chosen:
            return cls(chosen, extras, terminated, truncated, np.ones(num_rows, bool), bounds)
        # The successor of a row is the next row's observation, so a row that is cut off has no known successor. It is
        # left out, and the row before it becomes the one that is cut off.
        is_cut = truncated & ~terminated
        is_cut[-1] = not terminated[-1]
        truncated[:-1] |= is_cut[1:] & ~terminated[:-1]
        return cls(chosen, extras, terminated, truncated, ~is_cut, bounds)

    @property
    def num_kept(self) -> int:
        """How many rows there are to store."""
        return int(self.is_kept.sum())

    @property
    def row(self) -> Transition:
        """The shapes and dtypes of one row as it is stored."""
        obs, action, reward = (jax.tree.map(_form, self.arrays[name]) for name in NEEDED[:3])
        if not np.issubdtype(reward.dtype, np.inexact):
            reward = jax.ShapeDtypeStruct(reward.shape, np.dtype(np.float32))
        flag = jax.ShapeDtypeStruct((), np.dtype(bool))
        return row_structure(Transition(obs, action, reward, flag, flag, obs, jax.tree.map(_form, self.extras)))

    def pieces(self, num_rows: int) -> Iterator[Transition]:
        """Yield the rows that are kept in pieces of at most `num_rows`."""
        for begin in range(0, len(self.is_kept), num_rows):
            end = min(begin + num_rows, len(self.is_kept))
            place = slice(begin, end)
            obs, next_obs = self._observations(begin, end)
            action, reward, extras = _read((self.arrays["actions"], self.arrays["rewards"], self.extras), begin, end)
            self._check_actions(action, begin)
            flags = (self.terminated[place], self.truncated[place])
            piece = Transition(obs, action, reward, *flags, next_obs, extras)
            kept = self.is_kept[place]
            yield piece if kept.all() else jax.tree.map(lambda leaf, kept=kept: leaf[kept], piece)

    def check_actions(self) -> None:
        """Read all actions, and refuse one that does not exist. `pieces` makes the same check while it reads."""
        for begin, end in _places(self.arrays["actions"], len(self.is_kept) if self.bounds is not None else 0):
            self._check_actions(_read(self.arrays["actions"], begin, end), begin)

    def _check_actions(self, actions: PyTree, begin: int) -> None:
        if self.bounds is not None:
            self.bounds.check(actions, lambda row: f"from_arrays(): row {begin + row}")

    def _observations(self, begin: int, end: int) -> tuple[PyTree, PyTree]:
        """Return observations and their successors. A row that needs no successor gets its own observation instead."""
        if "next_observations" in self.arrays:
            return _read((self.arrays["observations"], self.arrays["next_observations"]), begin, end)
        obs = _read(self.arrays["observations"], begin, min(end + 1, len(self.is_kept)))
        number = np.arange(end - begin)
        is_end = (self.terminated | ~self.is_kept)[begin:end]
        after = np.where(is_end, number, number + 1)
        return jax.tree.map(lambda leaf: leaf[: end - begin], obs), jax.tree.map(lambda leaf: leaf[after], obs)


def follows(next_obs: PyTree, obs: PyTree) -> np.ndarray:
    """Return `bool[M]`: the rows in which `next_obs` and `obs` are equal in every leaf. NaN equals NaN."""

    def equal(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return ((one == other) | ((one != one) & (other != other))).reshape(len(one), -1).all(axis=1)

    return np.logical_and.reduce(jax.tree.leaves(jax.tree.map(equal, next_obs, obs)))


def blocks(pieces: Iterable[PyTree], row: PyTree, num_rows: int) -> Iterator[PyTree]:
    """Join pieces of any length, and yield their rows in blocks of `num_rows`, cast to the dtypes of `row`.

    The last block may be shorter. All blocks share the same memory, so finish with a block before asking for the next.
    """
    block, filled = jax.tree.map(lambda leaf: np.empty((num_rows, *leaf.shape), leaf.dtype), row), 0
    for piece in pieces:
        begin, end = 0, len(jax.tree.leaves(piece)[0])
        while begin < end:
            count = min(num_rows - filled, end - begin)
            copy(block, slice(filled, filled + count), jax.tree.map(lambda leaf, at=begin: leaf[at:], piece))
            begin, filled = begin + count, filled + count
            if filled == num_rows:
                yield block
                filled = 0
    if filled:
        yield jax.tree.map(lambda leaf: leaf[:filled], block)


def copy(target: PyTree, place: slice, source: PyTree) -> None:
    """Copy the first rows of one tree of arrays to a place in another."""
    for to, leaf in zip(jax.tree.leaves(target), jax.tree.leaves(source), strict=True):
        to[place] = leaf[: place.stop - place.start]


def _nested(value: object) -> Any:
    """Turn groups of an HDF5 file and other mappings into dicts, and values that cannot be sliced into arrays."""
    if isinstance(value, Mapping):
        return {name: _nested(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_nested, value))
    return value if isinstance(value, Sliceable) else np.asarray(value)


def _known(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays that are used; refuse missing keys, and unknown ones, which may be misspelled."""
    names = ", ".join(map(str, arrays)) or "none"
    for name in NEEDED:
        if name not in arrays:
            raise ValueError(f"from_arrays() needs the key {name!r}; the data set has: {names}.")
    for name in arrays:
        if name not in NEEDED + OPTIONAL and not str(name).startswith(("infos/", "metadata/")):
            raise ValueError(
                f"from_arrays() does not know the key {name!r}; beside {', '.join(NEEDED)} there may be "
                f"{', '.join(OPTIONAL)}. Leave it out."
            )
    return {name: arrays[name] for name in (*NEEDED, *OPTIONAL[:2]) if name in arrays}


def _info(arrays: dict[str, Any], name: str) -> Any:
    group = arrays.get("infos", {})
    flat = {key.removeprefix("infos/"): value for key, value in arrays.items() if key.startswith("infos/")}
    known = {**(group if isinstance(group, dict) else {}), **flat}
    if name not in known:
        raise ValueError(f"from_arrays() found no info {name!r}; there are: {', '.join(known) or 'none'}.")
    return known[name]


def _check_lengths(arrays: dict[str, Any]) -> int:
    """Refuse leaves that do not fit together, by name; return the number of rows."""
    shape = np.shape(arrays["rewards"])
    if not shape or not shape[0]:
        raise ValueError(
            f"from_arrays() got 'rewards' of shape {shape}; one entry per row, and at least one row, is needed."
        )
    for path, leaf in jax.tree.leaves_with_path(arrays):
        name = f"{path[0].key!r}{jax.tree_util.keystr(path[1:])}"
        if not leaf.shape or leaf.shape[0] != shape[0]:
            raise ValueError(
                f"from_arrays() got {name} of shape {leaf.shape}, but 'rewards' has {shape[0]} rows; all arrays need "
                "the same first axis."
            )
        if leaf.dtype.kind in "OSUMm":
            raise ValueError(f"from_arrays() got {name} of dtype {leaf.dtype}; only numbers can be stored.")
    for name in {"terminals", "timeouts"} & {*arrays}:
        if len(arrays[name].shape) != 1:
            raise ValueError(f"from_arrays() got {name!r} of shape {arrays[name].shape}; one flag per row is needed.")
    if "next_observations" in arrays:
        _check_alike(arrays["observations"], arrays["next_observations"])
    return shape[0]


def _check_alike(obs: PyTree, next_obs: PyTree) -> None:
    if jax.tree.structure(obs) != jax.tree.structure(next_obs):
        raise ValueError(
            f"from_arrays() got 'next_observations' of structure {shown(jax.tree.structure(next_obs), str)}, but "
            f"'observations' have {shown(jax.tree.structure(obs), str)}."
        )
    for (path, leaf), other in zip(jax.tree.leaves_with_path(obs), jax.tree.leaves(next_obs), strict=True):
        if leaf.shape != other.shape:
            raise ValueError(
                f"from_arrays() got 'next_observations'{jax.tree_util.keystr(path)} of shape {other.shape}, but "
                f"'observations' have {leaf.shape}."
            )


def _flags(arrays: dict[str, Any], num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows are terminated and truncated."""
    terminated, truncated = np.zeros(num_rows, bool), np.zeros(num_rows, bool)
    for flags, name in ((terminated, "terminals"), (truncated, "timeouts")):
        if name in arrays:
            for begin, end in _places(arrays[name], num_rows):
                flags[begin:end] = _read(arrays[name], begin, end) != 0
    if "next_observations" in arrays and "timeouts" not in arrays:
        for begin, end in _places(arrays["observations"], num_rows - 1):
            after = _read(arrays["observations"], begin + 1, end + 1)
            truncated[begin:end] = ~follows(_read(arrays["next_observations"], begin, end), after)
        truncated &= ~terminated
    return terminated, truncated


def rows_of_bytes(row: PyTree) -> int:
    """Return how many rows of this form are read or written at once."""
    return max(BLOCK_BYTES // max(sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(row)), 1), 1)


def _places(arrays: PyTree, num_rows: int) -> Iterator[tuple[int, int]]:
    """Yield where pieces of arrays begin and end."""
    count = rows_of_bytes(jax.tree.map(_form, arrays))
    for begin in range(0, num_rows, count):
        yield begin, min(begin + count, num_rows)


def _form(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of one row of an array."""
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _read(arrays: PyTree, begin: int, end: int) -> PyTree:
    return jax.tree.map(lambda leaf: np.asarray(leaf[begin:end]), arrays)
