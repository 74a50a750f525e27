"""Data sets of Minari: opened, read episode by episode, and written."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import shutil
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_buffers._action_bounds import Bounds
from jaxrl_buffers._array_files import follows
from jaxrl_buffers._checks import one_line
from jaxrl_buffers._episode_reading import Episode, actions_of_episodes, episodes
from jaxrl_buffers.types import PyTree, Transition

if TYPE_CHECKING:
    from gymnasium import Env
    from gymnasium.envs.registration import EnvSpec
    from minari import MinariDataset

    AnyEnv = Env[Any, Any] | EnvSpec | str | None


def imported(caller: str) -> Any:
    """Return the module `minari`, or raise an error that says how to install it."""
    try:
        importlib.import_module("h5py")  # Minari imports it only once a file is read
        importlib.import_module("minari.dataset.minari_storage")
        return importlib.import_module("minari")
    except ImportError as error:
        raise ImportError(f"{caller}() needs Minari: pip install 'jaxrl-buffers[data]' ({error})") from None


def opened(source: str | os.PathLike[str] | MinariDataset) -> MinariDataset:
    """Open a data set by its folder or its name."""
    minari = imported("from_minari")
    if not isinstance(source, (str, os.PathLike)):
        return source
    folder = Path(source)
    if folder.is_file():
        raise ValueError(
            f"{str(source)!r} is not a data set: give a file .npz, .hdf5 or .h5 with the keys of D4RL, or a folder or "
            "a name of Minari."
        )
    with _clear_errors(source):
        if folder.exists():
            inside = folder / "data"
            return minari.MinariDataset(inside if inside.is_dir() else folder)
        if isinstance(source, str):
            with contextlib.suppress(FileNotFoundError):
                return minari.load_dataset(source)
    raise ValueError(
        f"from_minari() found neither a folder {str(source)!r} nor a data set of this name in Minari's own folder; "
        "correct it, or get one by `minari download NAME`."
    )


def count_steps(dataset: MinariDataset) -> int:
    """Return the number of steps of all episodes."""
    with _clear_errors(dataset):
        return int(dataset.total_steps)


def check_actions(dataset: MinariDataset, bounds: Bounds) -> None:
    """Read all actions, and refuse one that does not exist. `transitions` makes the same check while it reads."""
    with _clear_errors(dataset):
        for number, actions in actions_of_episodes(dataset):
            bounds.check(actions, functools.partial(_name_of_step, number))


def _name_of_step(episode: int, step: int) -> str:
    return f"step {step} of episode {episode}"


def transitions(dataset: MinariDataset, infos: Sequence[str], bounds: Bounds | None = None) -> Iterator[Transition]:
    """Yield the transitions of each episode, leaves `[T, ...]`; refuse actions that do not exist."""
    with _clear_errors(dataset):
        first = None
        for episode in episodes(dataset, infos):
            rows = _transitions_of(episode)
            if bounds is not None:
                bounds.check(rows.action, functools.partial(_name_of_step, episode.id))
            shapes = jax.tree.map(lambda leaf: leaf.shape[1:], rows)
            first = shapes if first is None else first
            if shapes != first:
                raise ValueError(f"episode {episode.id} has entries of shapes {shapes}, but the first one {first}")
            yield rows


def _transitions_of(episode: Episode) -> Transition:
    num_steps = len(episode.rewards)
    extras = _part(episode.infos, np.s_[:num_steps]) or ()
    parts = {"observations": episode.observations, "actions": episode.actions, "infos": extras}
    parts |= {"terminations": episode.terminations, "truncations": episode.truncations}
    for path, leaf in jax.tree.leaves_with_path(parts):
        needed = num_steps + (path[0].key == "observations")
        name = f"{path[0].key!r}{jax.tree_util.keystr(path[1:])}"
        if np.asarray(leaf).dtype.kind in "OSUMm":
            raise ValueError(f"episode {episode.id} has {name} that are not numbers; they cannot be stored")
        if len(leaf) != needed:
            raise ValueError(
                f"episode {episode.id} has {len(leaf)} {name}, but {needed} are needed for {num_steps} rewards"
            )
    terminated, truncated = (np.asarray(flag) != 0 for flag in (episode.terminations, episode.truncations))
    truncated = truncated | ((np.arange(num_steps) == num_steps - 1) & ~terminated)
    obs, next_obs = _part(episode.observations, np.s_[:-1]), _part(episode.observations, np.s_[1:])
    reward = np.asarray(episode.rewards)
    reward = reward if np.issubdtype(reward.dtype, np.inexact) else reward.astype(np.float32)
    return Transition(obs, episode.actions, reward, terminated, truncated, next_obs, extras)


@contextlib.contextmanager
def _clear_errors(source: str | os.PathLike[str] | MinariDataset) -> Generator[None]:
    """Turn errors of Minari and HDF5 into an error that names the data set."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, KeyError, ValueError, TypeError, AssertionError, RuntimeError) as error:
        name = source if isinstance(source, (str, os.PathLike)) else source.storage.data_path
        raise ValueError(
            f"from_minari() cannot read {str(name)!r}: {type(error).__name__}: {one_line(error)}"
        ) from error


def written(
    arrays: dict[str, Any],
    target: str | os.PathLike[str],
    env: AnyEnv,
    spaces: dict[str, Any],
    metadata: dict[str, Any],
) -> MinariDataset:
    """Write arrays under D4RL's names as a data set of Minari. If that fails, nothing of it is left."""
    minari = imported("to_minari")
    from minari.storage.datasets_root_dir import get_dataset_path

    folder = (get_dataset_path(target) if isinstance(target, str) else Path(target)).absolute()  # as Minari needs it
    if folder.exists():
        raise ValueError(
            f"to_minari() would write to {str(folder)!r}, which exists; remove it, or choose another name."
        )
    name = target if isinstance(target, str) else folder.name if _has_version(folder.name) else f"{folder.name}-v0"
    authors = {key: {value} if isinstance(value, str) else value for key, value in metadata.items() if "author" in key}
    known = {"dataset_id": name, "minari_version": minari.__version__}
    aside = folder.with_name(f"{folder.name}.incomplete")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        storage = minari.dataset.minari_storage.MinariStorage.new(
            aside / "data", jpeg_encoding=False, **_described(arrays, env, spaces)
        )
        storage.update_metadata(metadata | authors | known)
        storage.update_episodes(_episodes(arrays))
        os.rename(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return minari.MinariDataset(folder / "data")


def _has_version(name: str) -> bool:
    return re.search(r"-v\d+$", name) is not None


def _described(arrays: dict[str, Any], env: AnyEnv, spaces: dict[str, Any]) -> dict[str, Any]:
    """Return the spec and the spaces of the environment. An entry that is not known is None."""
    import gymnasium

    spec = gymnasium.spec(env) if isinstance(env, str) else env
    if isinstance(env, gymnasium.Env):
        spec = env.spec
        known = {"observation_space": env.observation_space, "action_space": env.action_space}
        spaces = {name: known[name] if space is None else space for name, space in spaces.items()}
    if spec is None:
        stored = {"observation_space": arrays["observations"], "action_space": arrays["actions"]}
        spaces = {name: _space(stored[name]) if space is None else space for name, space in spaces.items()}
    return {"env_spec": spec, **spaces}


def _space(values: PyTree) -> Any:
    """Return a space that holds any values of these shapes and dtypes."""
    from gymnasium import spaces

    if isinstance(values, dict):
        return spaces.Dict({name: _space(value) for name, value in values.items()})
    if isinstance(values, tuple):
        return spaces.Tuple([_space(value) for value in values])
    shape, dtype = values.shape[1:], values.dtype
    if np.issubdtype(dtype, np.bool_):
        return spaces.Box(0, 1, shape, np.int8)
    if np.issubdtype(dtype, np.integer):
        return spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype.type)
    return spaces.Box(-np.inf, np.inf, shape, dtype.type)


def _episodes(arrays: dict[str, Any]) -> Iterator[Any]:
    """Yield the episodes of arrays, each with one observation more than steps."""
    from minari.data_collector import EpisodeBuffer

    obs, next_obs = arrays["observations"], arrays["next_observations"]
    is_end = arrays["terminals"] | arrays["timeouts"]
    is_end[:-1] |= ~follows(_part(next_obs, np.s_[:-1]), _part(obs, np.s_[1:]))
    ends = np.flatnonzero(is_end) + 1
    for begin, end in zip(np.append(0, ends[:-1]), ends, strict=True):
        parts = _part(arrays, slice(begin, end))
        last = _part(next_obs, slice(end - 1, end))
        truncated = parts["timeouts"].copy()
        truncated[-1] |= not parts["terminals"][-1]
        yield EpisodeBuffer(
            observations=jax.tree.map(lambda *leaves: np.concatenate(leaves), parts["observations"], last),
            actions=parts["actions"],
            rewards=parts["rewards"],
            terminations=parts["terminals"],
            truncations=truncated,
            infos=parts.get("infos"),
        )


def _part(tree: PyTree, place: slice) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[place], tree)
