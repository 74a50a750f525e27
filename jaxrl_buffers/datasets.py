"""Data sets into states, and states into data sets.

    from_file                 a file or folder of any kind below; the kind is found from the path
    from_arrays, to_arrays    NumPy arrays under the names that D4RL gave them; also open HDF5 files of that form
    from_minari, to_minari    data sets of Minari, which is imported when it is asked for: the extra `data`

A data set is one long column of rows, so the buffer must have `num_envs=1`. To train on it and on new data together,
make a `Mixture` of its buffer and another one, which may have any number of environments. Rows are read and written
block by block: beside the state, memory holds one block and, from Minari, one episode.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
from numpy.typing import ArrayLike

from jaxrl_buffers import _data_files as data_files
from jaxrl_buffers import _episode_files as episode_files
from jaxrl_buffers import _filling as filling
from jaxrl_buffers import _rows_as_arrays as rows_as_arrays
from jaxrl_buffers._action_bounds import Bounds
from jaxrl_buffers._array_files import ArraySource, rows_of_bytes
from jaxrl_buffers._checks import require_choice, row_structure
from jaxrl_buffers.replay import ReplayBuffer, ReplayState
from jaxrl_buffers.types import PyTree, Transition

if TYPE_CHECKING:
    from gymnasium import Space
    from minari import MinariDataset

    from jaxrl_buffers._episode_files import AnyEnv

Keep = Literal["all", "newest"]
Encode = Callable[[Transition], Transition]


def from_file(
    buffer: ReplayBuffer,
    path: str | os.PathLike[str],
    *,
    infos: Sequence[str] = (),
    keep: Keep = "all",
    like: Transition | None = None,
    num_actions: int | None = None,
    low: ArrayLike | None = None,
    high: ArrayLike | None = None,
    encode: Encode | None = None,
    extras: Mapping[str, PyTree] | None = None,
) -> ReplayState:
    """Return a state that holds the rows of a data set.

    Args:
        buffer: a buffer with `num_envs=1`. To hold all rows it needs a `length` of at least `describe(path).num_rows`.
        path: a file of arrays under D4RL's keys (`.npz`; or `.hdf5` or `.h5`, which need the extra `data`), or the
            folder or the name of a Minari data set.
        infos, keep, like, num_actions, low, high, encode, extras: as in `from_arrays`.
    """
    options: Any = {"infos": infos, "keep": keep, "like": like, "encode": encode, "extras": extras}
    options |= {"num_actions": num_actions, "low": low, "high": high}
    if data_files.is_of_arrays(path):
        with data_files.opened(path) as arrays:
            return from_arrays(buffer, arrays, **options)
    return from_minari(buffer, path, **options)


class Description(NamedTuple):
    """What is known of a data set before it is stored."""

    num_rows: int  # how many rows `from_file` would store
    row: Transition  # the shapes and dtypes of one row, without infos


def describe(path: str | os.PathLike[str], num_actions: int | None = None) -> Description:
    """Return the number of rows of a data set and the form of one row, to make a buffer for it.

    Args:
        path: as in `from_file`.
        num_actions: as in `from_arrays`. If it is given, all actions are read and checked.
    """
    bounds = Bounds.of(num_actions, None, None)
    if data_files.is_of_arrays(path):
        with data_files.opened(path) as arrays:
            source = ArraySource.of(arrays, (), bounds)
            source.check_actions()
            return Description(source.num_kept, source.row)
    dataset = episode_files.opened(path)
    if bounds is not None:
        episode_files.check_actions(dataset, bounds)
    return Description(episode_files.count_steps(dataset), _of_episodes(dataset, (), None, None)[0])


def check(
    path: str | os.PathLike[str],
    *,
    like: Transition | None = None,
    num_actions: int | None = None,
    low: ArrayLike | None = None,
    high: ArrayLike | None = None,
    encode: Encode | None = None,
) -> None:
    """Read a whole data set, and refuse what `from_file` would refuse. Nothing is stored.

    Args:
        path: as in `from_file`.
        like, num_actions, low, high, encode: as in `from_arrays`.
    """
    bounds = Bounds.of(num_actions, low, high)
    if data_files.is_of_arrays(path):
        with data_files.opened(path) as arrays:
            source = ArraySource.of(arrays, (), bounds)
            filling.check(*_encoded(source, rows_of_bytes(source.row), encode), like)
        return
    filling.check(*_of_episodes(episode_files.opened(path), (), bounds, encode), like)


def from_arrays(
    buffer: ReplayBuffer,
    arrays: Mapping[str, Any],
    *,
    infos: Sequence[str] = (),
    keep: Keep = "all",
    like: Transition | None = None,
    num_actions: int | None = None,
    low: ArrayLike | None = None,
    high: ArrayLike | None = None,
    encode: Encode | None = None,
    extras: Mapping[str, PyTree] | None = None,
) -> ReplayState:
    """Return a state that holds the rows of a data set, oldest first; its last episode is closed.

    `arrays` has the keys of D4RL, each with leaves `[M, ...]`; `observations` and `actions` may be nested dicts:

    * `observations`, `actions`, `rewards`;
    * `terminals`: the task ended with this row. `timeouts`: the episode was cut off after it;
    * `next_observations`: the true successors. Without them, the successor of a row is the next row's observation.
      Then the successor of a row that is cut off is not known. This row is left out, and the row before it counts as
      cut off;
    * `infos`: a dict, or keys such as `"infos/qpos"`. What `infos` names becomes a dict in `extras`.

    A data set in which an observation, an action or a reward is not finite is refused, with the number of such rows.

    Without `timeouts`, `terminals` end episodes. If there are `next_observations`, an episode also ends where a row's
    successor is not the next row's observation. Flags become bools. Numbers of 64 bits become numbers of 32 bits,
    unless JAX is set to use 64 bits.

    Args:
        buffer: with `num_envs=1`.
        arrays: anything that has a shape and can be sliced will do, such as `np.memmap` or an open `h5py.File`.
        infos: the names of the infos to keep.
        keep: `"all"` refuses a data set with more rows than the ring holds; `"newest"` keeps its newest rows.
        like: the shapes and dtypes that a row must have, such as `env.transition()`. Numbers of another size are cast.
            A data set of another structure or other shapes is refused.
        num_actions: the number of discrete actions. A row whose action is not one of 0 to `num_actions - 1` is refused.
        low, high: the smallest and the largest action, for actions that do not begin with 0 or are not discrete. A row
            with an action outside of them is refused. Rounding is allowed for.
        encode: called with rows as they are in the data set, leaves `[K, ...]`; returns the rows to store. For data in
            Gymnasium's terms it is `env.encode_rows`.
        extras: what else to store in `extras`, the same unbatched values in every row.

    Example:
        >>> import jaxrl_buffers as jb, numpy as np
        >>> arrays = {
        ...     "observations": np.arange(5.0)[:, None],
        ...     "actions": np.zeros(5, np.int32),
        ...     "rewards": np.ones(5),
        ...     "terminals": np.array([0, 1, 0, 0, 0]),
        ...     "timeouts": np.array([0, 0, 0, 0, 1]),
        ... }
        >>> buffer = jb.uniform(10)
        >>> state = from_arrays(buffer, arrays)
        >>> back = to_arrays(buffer, state)
        >>> print(back["observations"][:, 0], back["next_observations"][:, 0], back["timeouts"])
        [0. 1. 2. 3.] [1. 1. 3. 4.] [False False False  True]
    """
    filling.require_one_column("from_arrays", buffer)
    require_choice("from_arrays", "keep", keep, ("all", "newest"))
    source = ArraySource.of(arrays, infos, Bounds.of(num_actions, low, high))
    filling.require_room("from_arrays", buffer, source.num_kept, keep)
    row, pieces = _encoded(source, filling.rows_of_block(buffer, source.row, source.num_kept), encode)
    row = row if like is None else data_files.fitted(row, like, "from_arrays")
    return filling.filled(buffer, row, pieces, source.num_kept, extras)


def from_minari(
    buffer: ReplayBuffer,
    source: str | os.PathLike[str] | MinariDataset,
    *,
    infos: Sequence[str] = (),
    keep: Keep = "all",
    like: Transition | None = None,
    num_actions: int | None = None,
    low: ArrayLike | None = None,
    high: ArrayLike | None = None,
    encode: Encode | None = None,
    extras: Mapping[str, PyTree] | None = None,
) -> ReplayState:
    """Return a state that holds the steps of a Minari data set, episode by episode.

    Minari keeps `T + 1` observations of `T` steps, so every row has its true successor. An episode that neither
    terminated nor was truncated was cut off while it was recorded; its last row counts as truncated. Numbers that are
    not finite are refused, as in `from_arrays`.

    Args:
        buffer: with `num_envs=1`.
        source: a folder, the name of a data set in Minari's own folder, or a `MinariDataset`, such as a filtered one.
        infos: the names of the infos to keep, as a dict in `extras`. Row `t` gets the info that came with observation
            `t`.
        keep: `"all"` refuses a data set with more rows than the ring holds; `"newest"` keeps its newest rows.
        like, num_actions, low, high, encode, extras: as in `from_arrays`.
    """
    filling.require_one_column("from_minari", buffer)
    require_choice("from_minari", "keep", keep, ("all", "newest"))
    dataset = episode_files.opened(source)
    num_rows = episode_files.count_steps(dataset)
    filling.require_room("from_minari", buffer, num_rows, keep)
    row, pieces = _of_episodes(dataset, infos, Bounds.of(num_actions, low, high), encode)
    row = row if like is None else data_files.fitted(row, like, "from_minari")
    return filling.filled(buffer, row, pieces, num_rows, extras)


def to_arrays(buffer: ReplayBuffer, state: ReplayState) -> dict[str, Any]:
    """Return all stored rows as arrays `[M, ...]` under D4RL's keys, one environment after the other.

    Two kinds of rows count as cut off: the last row of an environment, and a row whose next row is not whole any more
    (see `Frames`). Their `timeouts` is True, unless they ended their episode. `extras` become `infos`.
    """
    return rows_as_arrays.of_state(buffer, state)


def to_minari(
    buffer: ReplayBuffer,
    state: ReplayState,
    target: str | os.PathLike[str],
    *,
    env: AnyEnv = None,
    observation_space: Space[Any] | None = None,
    action_space: Space[Any] | None = None,
    **metadata: Any,
) -> MinariDataset:
    """Write all stored rows as a Minari data set, without loss, and return the data set.

    Minari stores a row's successor and the next row's observation as one. So an episode also ends where the two differ.

    Args:
        buffer: of transitions, with any number of environments.
        state: its state.
        target: a name such as `"me/pendulum-v0"` in Minari's own folder; or a `pathlib.Path` of a new folder.
        env: the Gymnasium environment, its name or its spec. It defines the spaces, and its spec is stored with the
            data.
        observation_space: by default that of `env`. Without `env`, boxes without bounds in the shapes that are stored.
        action_space: as `observation_space`.
        **metadata: for Minari, such as `algorithm_name`, `author`, `description`.
    """
    arrays = to_arrays(buffer, state)
    spaces = {"observation_space": observation_space, "action_space": action_space}
    return episode_files.written(arrays, target, env, spaces, metadata)


def _encoded(source: ArraySource, num_rows: int, encode: Encode | None) -> tuple[Transition, Iterator[Transition]]:
    """Return the form of one row, and the rows in pieces of at most `num_rows`."""
    pieces = source.pieces(num_rows)
    if encode is None:
        return source.row, pieces
    pieces = (encode(piece) for piece in pieces if len(piece.reward))
    first = next(pieces, None)
    return (source.row, pieces) if first is None else (_row(first), itertools.chain([first], pieces))


def _of_episodes(
    dataset: MinariDataset, infos: Sequence[str], bounds: Bounds | None, encode: Encode | None
) -> tuple[Transition, Iterator[Transition]]:
    """Return the form of one row, and the transitions of each episode."""
    pieces = episode_files.transitions(dataset, infos, bounds)
    pieces = pieces if encode is None else map(encode, pieces)
    first = next(pieces, None)
    if first is None:
        raise ValueError(f"from_minari() found no episode in {str(dataset.storage.data_path)!r}; is it whole?")
    return _row(first), itertools.chain([first], pieces)


def _row(rows: Transition) -> Transition:
    return row_structure(jax.tree.map(lambda leaf: leaf[0], rows))
