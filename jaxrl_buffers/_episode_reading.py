"""Episodes of a Minari data set, read from its HDF5 file.

Minari reads every info of every episode, needed or not, and finds each array by several steps. Here only what is needed
is read, by the low-level functions of h5py. Data sets in another format, and images in JPEG, are read by Minari.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxrl_buffers.types import PyTree

if TYPE_CHECKING:
    from gymnasium import Space
    from minari import MinariDataset

FILE = "main_data.hdf5"  # the name that Minari gives to the file
FLAT = ("rewards", "terminations", "truncations")
CACHE_BYTES = 2**20  # how much HDF5 may remember of a file's structure; by default 32 times as much


class Episode(NamedTuple):
    """One episode, under Minari's names."""

    id: int
    observations: PyTree  # [T + 1, ...]
    actions: PyTree  # [T, ...]
    rewards: np.ndarray  # [T]
    terminations: np.ndarray  # [T]
    truncations: np.ndarray  # [T]
    infos: dict[str, PyTree]  # [T + 1, ...]


def episodes(dataset: MinariDataset, infos: Sequence[str]) -> Iterator[Episode]:
    """Yield all episodes of a data set, with only these infos."""
    if not _is_plain(dataset):
        for one in dataset.iterate_episodes():
            chosen = _chosen(one.id, one.infos or {}, infos)
            flat = one.rewards, one.terminations, one.truncations
            yield Episode(int(one.id), one.observations, one.actions, *flat, chosen)
        return
    storage = dataset.storage
    with _opened(dataset) as (file, read):
        for index in dataset.episode_indices:
            at = f"episode_{index}"
            obs = _values(read, f"{at}/observations", storage.observation_space)
            action = _values(read, f"{at}/actions", storage.action_space)
            reward, terminated, truncated = (read(f"{at}/{name}") for name in FLAT)
            chosen = _chosen(index, file.get(f"{at}/infos", {}), infos) if infos else {}
            chosen = {name: read(f"{at}/infos/{name}") for name in chosen}
            yield Episode(int(index), obs, action, reward, terminated, truncated, chosen)


def actions_of_episodes(dataset: MinariDataset) -> Iterator[tuple[int, PyTree]]:
    """Yield the number and the actions of every episode."""
    if not _is_plain(dataset):
        yield from ((int(one.id), one.actions) for one in dataset.iterate_episodes())
        return
    with _opened(dataset) as (_, read):
        for index in dataset.episode_indices:
            yield int(index), _values(read, f"episode_{index}/actions", dataset.storage.action_space)


@contextlib.contextmanager
def _opened(dataset: MinariDataset) -> Generator[tuple[Any, Callable[[str], Any]]]:
    """Open the file of a data set. Yield it with a function that reads an array, or a group of arrays, by its path."""
    h5py: Any = importlib.import_module("h5py")
    everything = h5py.h5s.ALL
    with h5py.File(Path(dataset.storage.data_path) / FILE, "r") as file:
        limits = file.id.get_mdc_config()  # HDF5 would remember where everything is, also what is read only once
        limits.set_initial_size, limits.initial_size = True, CACHE_BYTES
        limits.min_size = limits.max_size = CACHE_BYTES
        file.id.set_mdc_config(limits)

        def read(path: str) -> Any:
            found = h5py.h5o.open(file.id, path.encode())
            if not isinstance(found, h5py.h5d.DatasetID):
                return {name: read(f"{path}/{name}") for name in file[path]}
            if found.dtype.kind == "O":
                return file[path][()]  # text, which the caller refuses
            values = np.empty(found.shape, found.dtype)
            if values.size:
                found.read(everything, everything, values)
            return values

        yield file, read


def _chosen(number: int, infos: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the infos with these names; refuse a name that the episode does not have."""
    if missing := [name for name in names if name not in infos]:
        raise ValueError(f"episode {number} has no info {missing[0]!r}; it has: {', '.join(infos) or 'none'}")
    return {name: infos[name] for name in names}


def _values(read: Callable[[str], Any], path: str, space: Space[Any]) -> PyTree:
    """Return the observations or actions of an episode in the form of their space."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {name: _values(read, f"{path}/{name}", space[name]) for name in space}
    if isinstance(space, spaces.Tuple):
        return tuple(_values(read, f"{path}/_index_{index}", part) for index, part in enumerate(space))
    return read(path)


def _is_plain(dataset: MinariDataset) -> bool:
    """Return whether the data set is an HDF5 file of arrays as they are."""
    from minari.dataset.minari_storage import is_image_space

    storage = dataset.storage
    has_jpeg = storage.jpeg_encoding and any(
        is_image_space(space) for part in (storage.observation_space, storage.action_space) for space in _leaves(part)
    )
    return storage.FORMAT == "hdf5" and not has_jpeg


def _leaves(space: Space[Any]) -> Iterator[Any]:
    """Yield the spaces inside a space."""
    from gymnasium import spaces

    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for part in space.values() if isinstance(space, spaces.Dict) else space:
            yield from _leaves(part)
    else:
        yield space
