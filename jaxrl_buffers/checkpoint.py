"""Save any state to disk and restore it bit for bit.

A checkpoint is a folder of numbered steps, of which the newest two are kept:

    step_00000012/manifest.json     what each leaf is, where its array is, and its hash; last, the hash of this file
    step_00000012/arrays.bin        the arrays, one after the other
    step_00000012/arrays_00001.bin  the parts of arrays that are on devices of process 1, and so on

A save goes through these stages, and each one is on the disk before the next one begins:

    1. write a new step into the folder `incomplete`
    2. rename that folder to its number, in one operation
    3. remove the oldest step

So if the process is killed or the power is cut at any moment, the last state that was saved is there, and the one
before it. Every byte is covered by a hash. The hash is checked when the byte is read. Only one process may save to a
path at a time; any number of processes may read at the same time.

If the arrays of a state are spread over the devices of several processes, all these processes call `save` or `restore`
together, on a file system that they share. Each writes or reads its own parts. All else is done by process 0: it makes
folders and manifests, renames and removes. What was saved from some devices can be restored on any other number.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from jaxrl_buffers import _durable as durable
from jaxrl_buffers import _manifest as manifests
from jaxrl_buffers import _orbax_arrays as orbax_arrays
from jaxrl_buffers import _processes as processes
from jaxrl_buffers import _saved_arrays as saved_arrays
from jaxrl_buffers import _saved_leaves as saved_leaves
from jaxrl_buffers import _saved_records as records
from jaxrl_buffers import _shards as shards
from jaxrl_buffers._checks import first_difference
from jaxrl_buffers.types import PyTree

NUM_KEPT = 2
_INCOMPLETE = "incomplete"
_STEP = "step_"

Value = TypeVar("Value")


class Restored(NamedTuple):
    """A state and the metadata that was saved with it."""

    state: PyTree
    metadata: dict[str, Any]


def save(path: str | os.PathLike[str], state: PyTree, *, metadata: Mapping[str, Any] | None = None) -> None:
    """Save a state as the newest step of the checkpoint at `path`. When this returns, the step is on the disk.

    Args:
        path: a folder, which is made if it does not exist.
        state: any pytree of arrays, PRNG keys and Python numbers. If its arrays are spread over the devices of several
            processes, all of them must call this.
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
    group = _group(state)
    processes.on_first(group, lambda: _make(folder, incomplete))
    try:
        part = processes.all_or_none(group, lambda: _write_part(incomplete, state, group.index))
        parts = group.to_first(part)
        processes.on_first(group, lambda: _complete(folder, incomplete, parts, metadata))
    finally:
        if not group.index:
            durable.remove_folder(incomplete)


def _group(state: PyTree) -> processes.Group:
    """Return the processes that save or restore a state together."""
    return processes.job() if shards.is_global(state) else processes.Alone()


def _make(folder: Path, incomplete: Path) -> None:
    """Make the folder for a new step."""
    try:
        durable.make_folder(folder)
        durable.remove_folder(incomplete)  # a killed process may have left it
        os.mkdir(incomplete)
    except OSError as error:
        raise OSError(error.errno, f"save() cannot write a checkpoint: {error.strerror}", str(folder)) from error


def _write_part(folder: Path, state: PyTree, process: int) -> dict[str, Any]:
    """Write what this process has of a state; return the size of the file, and the records of the leaves."""
    if not folder.is_dir():
        raise ValueError(
            f"save(): process {process} finds no {folder}, which process 0 has made; save on a file system that all "
            "processes share."
        )
    file_name = saved_arrays.file_of(process)
    with durable.new_file(folder / file_name) as file:
        written = {
            name: records.write(file, file_name, name, leaf, parts)
            for name, (leaf, parts) in records.leaves_with_parts(state).items()
        }
    durable.sync(folder)
    return {"size": file.size, "records": written}


def _complete(folder: Path, incomplete: Path, parts: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any]) -> None:
    """Write the manifest of a step, give the step its number, and remove older steps."""
    files = {saved_arrays.file_of(process): part["size"] for process, part in enumerate(parts)}
    with durable.new_file(incomplete / manifests.MANIFEST) as manifest:
        manifest.write(manifests.text(files, records.joined([part["records"] for part in parts]), metadata))
    durable.sync(incomplete)
    durable.rename(incomplete, folder / f"{_STEP}{max(_steps(folder), default=0) + 1:08d}")
    steps = _steps(folder)
    kept = [number for number in sorted(steps, reverse=True) if _is_complete(steps[number])][:NUM_KEPT]
    for number in steps.keys() - kept:
        durable.remove_folder(steps[number])


def restore(path: str | os.PathLike[str], like: PyTree, partial: bool = False) -> PyTree:
    """Return the saved state, bit for bit, on the default device, or spread over devices as `like` is.

    When the newest step is damaged or incomplete, this warns and returns the step before it.

    Args:
        path: the folder given to `save`.
        like: a state of the same structure, shapes and dtypes, such as `ShapeDtypeStruct`s from `jax.eval_shape`.
            Leaves that are NumPy arrays here are restored as NumPy arrays. Leaves that have a `NamedSharding` here get
            this sharding, however they were spread when they were saved. If it is over the devices of several
            processes, all of them must call this.
        partial: read only the leaves of `like`, which may have `()` or `None` in the place of other parts of the state.

    Raises:
        FileNotFoundError: if there is no checkpoint, or if all steps are damaged.
        ValueError: if structure, shapes or dtypes differ from `like`, or if the format version is unknown.
    """
    return restore_with_metadata(path, like, partial=partial).state


def restore_with_metadata(
    path: str | os.PathLike[str],
    like: PyTree | Callable[[dict[str, Any]], PyTree],
    check: Callable[[dict[str, Any]], None] = lambda metadata: None,
    partial: bool = False,
) -> Restored:
    """Return the state as `restore` does, and the metadata that was saved with it.

    Args:
        path: the folder given to `save`.
        like: a state of the same structure, shapes and dtypes; or a function that returns it, given the metadata.
        check: called with the metadata before the state is read. It may raise an error to stop here.
        partial: as in `restore`.
    """

    def read(step: Path) -> Restored:
        manifest = manifests.read(step)
        metadata = manifest["metadata"]
        check(metadata)
        state = like(metadata) if callable(like) else like
        wanted = saved_leaves.kinds(state)
        stored = {name: record["kind"] for name, record in manifest["leaves"].items()}
        _check_same(step, {name: stored[name] for name in stored if name in wanted or not partial}, wanted)
        return Restored(_read_state(step, manifest, state), metadata)

    return _newest(path, read, _group(like({}) if callable(like) else like))


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the `format_version`, `library_version` and `metadata` of the checkpoint at `path`."""
    manifest = _newest(path, manifests.read, processes.Alone())
    return {name: manifest[name] for name in ("format_version", "library_version", "metadata")}


def metadata_of_steps(path: str | os.PathLike[str]) -> dict[Path, dict[str, Any]]:
    """Return the metadata of every step of the checkpoint at `path` that is not damaged, by the folder of the step."""
    steps = (step for _, step in sorted(_steps(Path(path).absolute()).items()))
    return {step: manifests.read(step)["metadata"] for step in steps if _is_complete(step)}


def _newest(path: str | os.PathLike[str], read: Callable[[Path], Value], group: processes.Group) -> Value:
    """Read the newest step that is not damaged, and warn if newer ones are. All processes of a group read the same."""
    folder = Path(path).absolute()

    def present() -> list[tuple[int, str]]:
        found = processes.on_first(group, lambda: [(number, step.name) for number, step in _steps(folder).items()])
        return sorted((number, name) for number, name in found)

    waiting, damage, newest = present(), [], 0
    if not waiting:
        raise FileNotFoundError(f"there is no checkpoint at {folder}; {manifests.contents(folder)}.")
    while waiting:
        number, name = waiting.pop()
        step, newest = folder / name, max(newest, number)
        try:
            value = processes.all_or_none(group, lambda: read(step))  # noqa: B023
        except (manifests.Damaged, processes.Elsewhere) as error:
            if isinstance(error, processes.Elsewhere) and error.kind != manifests.Damaged.__name__:
                raise
            damage.append(error)
            steps = present()
            if steps and steps[-1][0] > newest:  # another process has saved, and removed what we were reading
                waiting, damage = steps, []
        else:
            if damage and not group.index:
                warnings.warn(f"{damage[0]} Went back to {step}, which was saved before it.", stacklevel=3)
            return value
    raise damage[0]


def _read_state(step: Path, manifest: dict[str, Any], like: PyTree) -> PyTree:
    def rebuild(arrays: saved_arrays.Arrays) -> PyTree:
        found = [
            records.rebuild(name, leaf, parts, manifest["leaves"][name], arrays)
            for name, (leaf, parts) in records.leaves_with_parts(like).items()
        ]
        states = []
        for number, device in enumerate(shards.devices(like)):
            with jax.default_device(device) if device else contextlib.nullcontext():
                leaves = (of_devices[number] for of_devices in found)
                states.append(saved_leaves.unflatten(shards.part(like, device), leaves))
        return shards.whole(like, states)

    try:
        if manifest["format_version"] == orbax_arrays.FORMAT_VERSION:
            return rebuild(orbax_arrays.OrbaxArrays(step, manifest["leaves"]))
        with saved_arrays.ArrayFiles(step) as arrays:
            return rebuild(arrays)
    except (OSError, saved_arrays.Damage) as error:
        raise manifests.damaged(step, str(error)) from error


def _check_same(step: Path, stored: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    if (found := first_difference(wanted, stored)) is not None:
        name, needed, there = found
        raise ValueError(
            f"the checkpoint {step} holds {there} for leaf {name}, but the state to restore has {needed} there; build "
            "it with the settings of the run that saved it."
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
