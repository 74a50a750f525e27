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

import xxhash

import jaxrl_buffers
from jaxrl_buffers import _durable as durable
from jaxrl_buffers import _orbax_arrays as orbax_arrays
from jaxrl_buffers import _saved_arrays as saved_arrays
from jaxrl_buffers import _saved_leaves as saved_leaves
from jaxrl_buffers.types import PyTree

FORMAT_VERSION = 2
NUM_KEPT = 2
_INCOMPLETE = "incomplete"
_STEP = "step_"
_MANIFEST = "manifest.json"
_ARRAYS = "arrays.bin"
_KEYS = {"format_version": int, "library_version": str, "metadata": dict, "leaves": dict}
_ARRAY_KEYS = {"offset": int, "dtype": str, "shape": list, "hash": str}

Value = TypeVar("Value")


class Restored(NamedTuple):
    """A state and the metadata that was saved with it."""

    state: PyTree
    metadata: dict[str, Any]


class _Damaged(FileNotFoundError):
    """A step cannot be read; perhaps an older one can."""


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
        manifest = _read_manifest(step)
        check(manifest["metadata"])
        wanted = saved_leaves.kinds(like)
        stored = {name: record["kind"] for name, record in manifest["leaves"].items()}
        _check_same(step, {name: stored[name] for name in stored if name in wanted or not partial}, wanted)
        return Restored(_read_state(step, manifest, like), manifest["metadata"])

    return _newest(path, read)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the `format_version`, `library_version` and `metadata` of the checkpoint at `path`."""
    manifest = _newest(path, _read_manifest)
    return {name: manifest[name] for name in ("format_version", "library_version", "metadata")}


def metadata_of_steps(path: str | os.PathLike[str]) -> dict[Path, dict[str, Any]]:
    """Return the metadata of every step of the checkpoint at `path` that is not damaged, by the folder of the step."""
    steps = (step for _, step in sorted(_steps(Path(path).absolute()).items()))
    return {step: _read_manifest(step)["metadata"] for step in steps if _is_complete(step)}


def _write_step(folder: Path, state: PyTree, metadata: dict[str, Any]) -> None:
    """Write the files of a step into a folder; afterwards they and their names are on the disk."""
    leaves = saved_leaves.flatten(state)
    with durable.new_file(folder / _ARRAYS) as file:
        records = {name: saved_leaves.write(file, name, leaf) for name, leaf in leaves.items()}
    manifest = {
        "format_version": FORMAT_VERSION,
        "library_version": jaxrl_buffers.__version__,
        "metadata": metadata,
        "files": {_ARRAYS: file.size},
        "leaves": records,
    }
    with durable.new_file(folder / _MANIFEST) as file:
        file.write(_sealed(manifest))
    durable.sync(folder)


def _sealed(manifest: Mapping[str, Any]) -> bytes:
    """Return the text of a manifest, to which its own hash is added as the last key."""
    digest = xxhash.xxh3_64(json.dumps(manifest).encode()).hexdigest()
    return json.dumps({**manifest, "hash": digest}, indent=1).encode()


def _newest(path: str | os.PathLike[str], read: Callable[[Path], Value]) -> Value:
    """Read the newest step that is not damaged, and warn if newer ones are."""
    folder = Path(path).absolute()
    waiting, damage, newest = sorted(_steps(folder).items()), [], 0
    if not waiting:
        raise FileNotFoundError(f"there is no checkpoint at {folder}; {_contents(folder)}.")
    while waiting:
        number, step = waiting.pop()
        newest = max(newest, number)
        try:
            value = read(step)
        except _Damaged as error:
            damage.append(error)
            present = sorted(_steps(folder).items())
            if present and present[-1][0] > newest:  # another process has saved, and removed what we were reading
                waiting, damage = present, []
        else:
            if damage:
                warnings.warn(f"{damage[0]} Went back to {step}, which was saved before it.", stacklevel=3)
            return value
    raise damage[0]


def _read_manifest(step: Path) -> dict[str, Any]:
    """Return the manifest of a step, after checking all but the contents of the arrays."""
    try:
        text = (step / _MANIFEST).read_bytes()
        manifest = json.loads(text)
        version = manifest["format_version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(step, f"{_MANIFEST} cannot be read: {error!r}") from error
    # Only format 1 has no hash. If there is a hash, check it first: an unknown version may come from a flipped bit.
    if version == FORMAT_VERSION or "hash" in manifest:
        rest = {name: value for name, value in manifest.items() if name != "hash"}
        if _sealed(rest) != text:
            raise _damaged(step, f"{_MANIFEST} is not what was written: its hash differs")
    if version not in (FORMAT_VERSION, orbax_arrays.FORMAT_VERSION):
        raise ValueError(
            f"the checkpoint {step} is of format version {version}, but this library (version "
            f"{jaxrl_buffers.__version__}) reads {FORMAT_VERSION} and {orbax_arrays.FORMAT_VERSION}; use the version "
            f"that saved it, {manifest.get('library_version', 'unknown')}."
        )
    _check_manifest(step, manifest)
    return manifest


def _check_manifest(step: Path, manifest: dict[str, Any]) -> None:
    """Raise an error if keys of the manifest are missing, or if the files differ from the files that it lists."""
    for name, kind in {**_KEYS, "files": dict}.items():
        if not isinstance(manifest.get(name), kind):
            raise _damaged(step, f"{_MANIFEST} has {manifest.get(name)!r} for {name!r} instead of a {kind.__name__}")
    for name, record in manifest["leaves"].items():
        if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
            raise _damaged(step, f"{_MANIFEST} has {record!r} for leaf {name}")
        place = record.get("array", {})
        expected = _ARRAY_KEYS if "array" in record and manifest["format_version"] == FORMAT_VERSION else {}
        for key, kind in expected.items():
            if not isinstance(place, dict) or not isinstance(place.get(key), kind):
                raise _damaged(step, f"{_MANIFEST} has {place!r} for the array of leaf {name}")
    sizes = _sizes(step)
    for name in sizes | manifest["files"]:
        if sizes.get(name) != manifest["files"].get(name):
            expected = manifest["files"].get(name, "none")
            raise _damaged(step, f"{name} has {sizes.get(name, 'no')} bytes instead of {expected}")


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
        raise _damaged(step, str(error)) from error


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
        _read_manifest(step)
    except _Damaged:
        return False
    except ValueError:
        return True
    return True


def _damaged(step: Path, cause: str) -> _Damaged:
    return _Damaged(f"the checkpoint {step} is damaged: {cause}; {_contents(step)}.")


def _contents(folder: Path) -> str:
    if not folder.is_dir():
        return "it is a file" if folder.exists() else "the path does not exist"
    return "the folder contains " + (", ".join(sorted(entry.name for entry in folder.iterdir())) or "nothing")


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(dict(metadata)))
    except (TypeError, ValueError) as error:
        raise ValueError(f"save() got metadata that JSON cannot express: {error}; pass plain values.") from error


def _sizes(step: Path) -> dict[str, int]:
    """Return the sizes of all files, without the manifest and without hidden files, which some systems add."""
    files = (file for file in step.glob("**/*") if file.is_file() and not file.name.startswith("."))
    return {str(file.relative_to(step)): file.stat().st_size for file in files if file != step / _MANIFEST}
