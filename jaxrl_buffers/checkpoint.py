"""Save any state to disk and restore it bit for bit.

A checkpoint is a folder of numbered steps, of which the newest two are kept:

    step_00000012/manifest.json   what each leaf is, where its array is, and its hash; last, the hash of this file
    step_00000012/arrays.bin      the arrays, one after the other

A save goes through these stages, and each one is on the disk before the next one begins:

    1. write a new step into the folder `incomplete`
    2. rename that folder to its number, in one operation
    3. remove the oldest step

So if the process is killed or the power is cut at any moment, the last state that was saved is there, and the one
before it. Every byte is covered by a hash. The hash is checked when the byte is read. Only one process may save to a
path at a time; any number of processes may read at the same time.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from jaxrl_buffers import _durable as durable
from jaxrl_buffers import _manifest as manifests
from jaxrl_buffers import _orbax_arrays as orbax_arrays
from jaxrl_buffers import _saved_arrays as saved_arrays
from jaxrl_buffers import _saved_leaves as saved_leaves
from jaxrl_buffers.types import PyTree

NUM_KEPT = 2
_INCOMPLETE = "incomplete"
_STEP = "step_"
_ARRAYS = "arrays.bin"

Value = TypeVar("Value")


class Restored(NamedTuple):
    """A state and the metadata that was saved with it."""

    state: PyTree
    metadata: dict[str, Any]


def save(path: str | os.PathLike[str], state: PyTree, *, metadata: Mapping[str, Any] | None = None) -> None:
    """Save a state as the newest step of the checkpoint at `path`. When this returns, the step is on the disk.

    Args:
        path: a folder, which is made if it does not exist.
        state: any pytree of arrays, PRNG keys and Python numbers.
        metadata: anything that JSON can express; `read_metadata` returns it.

    Example:
        >>> import tempfile, jax, jax.numpy as jnp, jaxrl_buffers as jb
        >>> state = {"weights": jnp.arange(3.0), "key": jax.random.key(0), "step": 7}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     jb.checkpoint.save(folder, state, metadata={"task": "CartPole-v1"})
        ...     restored = jb.checkpoint.restore(folder, jax.eval_shape(lambda: state))
        ...     print(jb.checkpoint.read_metadata(folder)["metadata"], restored["weights"], restored["step"])
        {'task': 'CartPole-v1'} [0. 1. 2.] 7
    """
    saved_leaves.kinds(state)  # raises an error if something cannot be saved, before anything is written
    metadata = _plain(metadata or {})
    folder = Path(path).absolute()
    incomplete = folder / _INCOMPLETE
    try:
        durable.make_folder(folder)
        durable.remove_folder(incomplete)  # a killed process may have left it
        os.mkdir(incomplete)
    except OSError as error:
        raise OSError(error.errno, f"save() cannot write a checkpoint: {error.strerror}", str(folder)) from error
    try:
        _write_step(incomplete, state, metadata)
        durable.rename(incomplete, folder / f"{_STEP}{max(_steps(folder), default=0) + 1:08d}")
    finally:
        durable.remove_folder(incomplete)
    steps = _steps(folder)
    kept = [number for number in sorted(steps, reverse=True) if _is_complete(steps[number])][:NUM_KEPT]
    for number in steps.keys() - kept:
        durable.remove_folder(steps[number])


def restore(path: str | os.PathLike[str], like: PyTree, partial: bool = False) -> PyTree:
    """Return the saved state, bit for bit, on the default device.

    When the newest step is damaged or incomplete, this warns and returns the step before it.

    Args:
        path: the folder given to `save`.
        like: a state of the same structure, shapes and dtypes, such as `ShapeDtypeStruct`s from `jax.eval_shape`.
            Leaves that are NumPy arrays here are restored as NumPy arrays.
        partial: read only the leaves of `like`, which may have `()` or `None` in the place of other parts of the state.

    Raises:
        FileNotFoundError: if there is no checkpoint, or if all steps are damaged.
        ValueError: if structure, shapes or dtypes differ from `like`, or if the format version is unknown.
    """
    return restore_with_metadata(path, like, partial=partial).state


def restore_with_metadata(
    path: str | os.PathLike[str],
    like: PyTree,
    check: Callable[[dict[str, Any]], None] = lambda metadata: None,
    partial: bool = False,
) -> Restored:
    """Return the state as `restore` does, and the metadata that was saved with it.

    Args:
        path: the folder given to `save`.
        like: a state of the same structure, shapes and dtypes.
        check: called with the metadata before the state is read. It may raise an error to stop here.
        partial: as in `restore`.
    """

    def read(step: Path) -> Restored:
        manifest = manifests.read(step)
        check(manifest["metadata"])
        wanted = saved_leaves.kinds(like)
        stored = {name: record["kind"] for name, record in manifest["leaves"].items()}
        _check_same(step, {name: stored[name] for name in stored if name in wanted or not partial}, wanted)
        return Restored(_read_state(step, manifest, like), manifest["metadata"])

    return _newest(path, read)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the `format_version`, `library_version` and `metadata` of the checkpoint at `path`."""
    manifest = _newest(path, manifests.read)
    return {name: manifest[name] for name in ("format_version", "library_version", "metadata")}


def metadata_of_steps(path: str | os.PathLike[str]) -> dict[Path, dict[str, Any]]:
    """Return the metadata of every step of the checkpoint at `path` that is not damaged, by the folder of the step."""
    steps = (step for _, step in sorted(_steps(Path(path).absolute()).items()))
    return {step: manifests.read(step)["metadata"] for step in steps if _is_complete(step)}


def _write_step(folder: Path, state: PyTree, metadata: dict[str, Any]) -> None:
    """Write the files of a step into a folder; afterwards they and their names are on the disk."""
    leaves = saved_leaves.flatten(state)
    with durable.new_file(folder / _ARRAYS) as file:
        records = {name: saved_leaves.write(file, name, leaf) for name, leaf in leaves.items()}
    with durable.new_file(folder / manifests.MANIFEST) as manifest:
        manifest.write(manifests.text({_ARRAYS: file.size}, records, metadata))
    durable.sync(folder)


def _newest(path: str | os.PathLike[str], read: Callable[[Path], Value]) -> Value:
    """Read the newest step that is not damaged, and warn if newer ones are."""
    folder = Path(path).absolute()
    waiting, damage, newest = sorted(_steps(folder).items()), [], 0
    if not waiting:
        raise FileNotFoundError(f"there is no checkpoint at {folder}; {manifests.contents(folder)}.")
    while waiting:
        number, step = waiting.pop()
        newest = max(newest, number)
        try:
            value = read(step)
        except manifests.Damaged as error:
            damage.append(error)
            present = sorted(_steps(folder).items())
            if present and present[-1][0] > newest:  # another process has saved, and removed what we were reading
                waiting, damage = present, []
        else:
            if damage:
                warnings.warn(f"{damage[0]} Went back to {step}, which was saved before it.", stacklevel=3)
            return value
    raise damage[0]


def _read_state(step: Path, manifest: dict[str, Any], like: PyTree) -> PyTree:
    leaves = saved_leaves.flatten(like)
    records = manifest["leaves"]

    def rebuild(arrays: saved_arrays.Arrays) -> PyTree:
        values = (saved_leaves.rebuild(name, leaf, records[name], arrays) for name, leaf in leaves.items())
        return saved_leaves.unflatten(like, values)

    try:
        if manifest["format_version"] == orbax_arrays.FORMAT_VERSION:
            return rebuild(orbax_arrays.OrbaxArrays(step, records))
        with (step / _ARRAYS).open("rb", buffering=0) as file:
            return rebuild(saved_arrays.ArrayFile(file))
    except (OSError, saved_arrays.Damage) as error:
        raise manifests.damaged(step, str(error)) from error


def _check_same(step: Path, stored: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    for name in {**wanted, **stored}:
        if stored.get(name) != wanted.get(name):
            raise ValueError(
                f"the checkpoint {step} holds {stored.get(name, 'nothing')} for leaf {name}, but the state to "
                f"restore has {wanted.get(name, 'nothing')} there; build it with the settings of the run that saved it."
            )


def _steps(folder: Path) -> dict[int, Path]:
    """Return the folders of all steps, by number."""
    steps = {step.name.removeprefix(_STEP): step for step in folder.glob(f"{_STEP}*")}
    return {int(number): step for number, step in steps.items() if number.isdecimal()}


def _is_complete(step: Path) -> bool:
    """Return whether nothing of a step is missing. A step of an unknown format counts as complete."""
    try:
        manifests.read(step)
    except manifests.Damaged:
        return False
    except ValueError:
        return True
    return True


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(dict(metadata)))
    except (TypeError, ValueError) as error:
        raise ValueError(f"save() got metadata that JSON cannot express: {error}; pass plain values.") from error
