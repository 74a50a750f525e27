"""Save any state to disk and restore it bit for bit.

A checkpoint is a folder of numbered steps, of which the newest counts. A save writes a new step under another name,
renames it in one operation and only then removes the older ones, so a process that is killed at any moment leaves one
complete checkpoint behind. Only one process may save to a path at a time.

Of a segment tree only the leaves are stored; a parent is a function of its children, so the rest is rebuilt exactly.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl_buffers
from jaxrl_buffers import segment_tree
from jaxrl_buffers.segment_tree import SegmentTree
from jaxrl_buffers.types import PyTree

FORMAT_VERSION = 1

_INCOMPLETE = "incomplete"
_STEP = "step_"
_MANIFEST = "manifest.json"
_ARRAYS = "arrays"


def save(path: str | os.PathLike[str], state: PyTree, *, metadata: Mapping[str, Any] | None = None) -> None:
    """Save a state, replacing the checkpoint that may be at `path`.

    Args:
        path: a folder, made if it does not exist.
        state: any pytree of arrays, PRNG keys and Python numbers.
        metadata: anything that JSON can express, to be read by `read_metadata`.

    Example:
        >>> import tempfile, jaxrl_buffers as jb
        >>> state = {"weights": jnp.arange(3.0), "key": jax.random.key(0), "step": 7}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     jb.checkpoint.save(folder, state, metadata={"task": "CartPole-v1"})
        ...     restored = jb.checkpoint.restore(folder, jax.eval_shape(lambda: state))
        ...     print(jb.checkpoint.read_metadata(folder)["metadata"], restored["weights"], restored["step"])
        {'task': 'CartPole-v1'} [0. 1. 2.] 7
    """
    leaves, _ = _flatten(state)
    arrays: dict[str, Any] = {}
    records = {name: _record(name, leaf, arrays) for name, leaf in leaves.items()}
    manifest = {
        "format_version": FORMAT_VERSION,
        "library_version": jaxrl_buffers.__version__,
        "metadata": _plain(metadata or {}),
        "leaves": records,
    }
    folder = Path(path).absolute()
    incomplete = folder / _INCOMPLETE
    shutil.rmtree(incomplete, ignore_errors=True)
    try:
        incomplete.mkdir(parents=True)
    except OSError as error:
        raise OSError(error.errno, f"save() cannot write a checkpoint: {error.strerror}", str(folder)) from error
    try:
        _write_arrays(incomplete / _ARRAYS, arrays)
        (incomplete / _MANIFEST).write_text(json.dumps(manifest | {"files": _sizes(incomplete)}, indent=1))
        older = _steps(folder)
        incomplete.rename(folder / f"{_STEP}{max(older, default=0) + 1:08d}")
    finally:
        shutil.rmtree(incomplete, ignore_errors=True)
    for step in older.values():
        shutil.rmtree(step, ignore_errors=True)


def restore(path: str | os.PathLike[str], like: PyTree) -> PyTree:
    """Return the saved state, bit for bit, on the default device.

    Args:
        path: the folder given to `save`.
        like: a state of the same structure, shapes and dtypes; `ShapeDtypeStruct`s from `jax.eval_shape` will do.
            Where it holds NumPy arrays, NumPy arrays come back.

    Raises:
        FileNotFoundError: when there is no checkpoint, or it is damaged.
        ValueError: when it holds another structure, other shapes or dtypes, or is of another format version.
    """
    step, manifest = _open(path)
    leaves, structure = _flatten(like)
    records = manifest["leaves"]
    stored = {name: record["kind"] for name, record in records.items()}
    _check_same(step, stored, {name: _kind(name, leaf) for name, leaf in leaves.items()})
    arrays = _read_arrays(step, [record["array"] for record in records.values() if "array" in record])
    # Each array is dropped as soon as its leaf is built, so that little is held twice.
    values = [_rebuild(name, leaf, records[name], arrays) for name, leaf in leaves.items()]
    return jax.tree.unflatten(structure, values)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the `format_version`, `library_version` and `metadata` of the checkpoint at `path`."""
    _, manifest = _open(path)
    return {name: manifest[name] for name in ("format_version", "library_version", "metadata")}


def _flatten(state: PyTree) -> tuple[dict[str, Any], Any]:
    """Return the leaves by path, segment trees counting as leaves, and the structure above them."""
    leaves, structure = jax.tree.flatten_with_path(state, is_leaf=lambda node: isinstance(node, SegmentTree))
    return {jax.tree_util.keystr(path) or "(the state)": leaf for path, leaf in leaves}, structure


def _is_number(leaf: Any) -> bool:
    return type(leaf) in (bool, int, float)


def _is_key(leaf: Any) -> bool:
    return not isinstance(leaf, SegmentTree) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _kind(name: str, leaf: Any) -> str:
    """Spell what a leaf is; the same for an array and for its `ShapeDtypeStruct`."""
    if isinstance(leaf, SegmentTree):
        return f"segment tree of {_spell((*leaf.leaves.shape[:-1], leaf.capacity), leaf.leaves.dtype)}"
    if _is_number(leaf):  # `jax.eval_shape` makes an array of it
        return _spell((), jax.dtypes.canonicalize_dtype(np.dtype(type(leaf))))
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype") or leaf.dtype == object:
        raise ValueError(f"leaf {name} is {leaf!r}; a checkpoint can hold arrays, PRNG keys and Python numbers only.")
    return _spell(leaf.shape, leaf.dtype)


def _spell(shape: tuple[int, ...], dtype: Any) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _record(name: str, leaf: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return what the manifest says of a leaf, adding to `arrays` the one that holds its value."""
    record: dict[str, Any] = {"kind": _kind(name, leaf)}
    if _is_number(leaf):
        return record | {"number": leaf}
    if _is_key(leaf):
        record["key_implementation"] = str(jax.random.key_impl(leaf))
    array = _array(leaf)
    if array.size:  # Orbax refuses arrays without elements; nothing but their kind need be known
        record["array"] = str(len(arrays))
        arrays[record["array"]] = array
    return record


def _array(leaf: Any) -> Any:
    """Return the array that stands for a leaf on disk."""
    if isinstance(leaf, SegmentTree):
        return leaf.leaves[..., : leaf.capacity]
    if _is_key(leaf):
        return jax.random.key_data(leaf)
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)


def _rebuild(name: str, like: Any, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    """Return the leaf that a record stands for, taking its array out of `arrays`."""
    if "number" in record:
        return record["number"]
    if "array" not in record:
        return np.zeros(like.shape, like.dtype) if isinstance(like, np.ndarray) else jnp.zeros(like.shape, like.dtype)
    array = arrays.pop(record["array"])
    if isinstance(like, np.ndarray | np.generic):
        return array if isinstance(like, np.ndarray) else array[()]
    if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        raise ValueError(f"leaf {name} is {array.dtype}, which JAX holds in x64 mode only; set `jax_enable_x64`.")
    if "key_implementation" in record:
        return jax.random.wrap_key_data(jnp.array(array), impl=record["key_implementation"])
    return _tree_of_leaves(jnp.array(array)) if isinstance(like, SegmentTree) else jnp.array(array)


def _tree_of_leaves(leaves: jax.Array) -> SegmentTree:
    """Build the trees of leaves `[..., capacity]`: states that were vmapped have axes in front."""
    build = segment_tree.from_leaves
    for _ in leaves.shape[:-1]:
        build = jax.vmap(build)
    return jax.jit(build)(leaves)


def _check_same(step: Path, stored: dict[str, str], wanted: dict[str, str]) -> None:
    for name in wanted | stored:
        if stored.get(name) != wanted.get(name):
            raise ValueError(
                f"the checkpoint {step} holds {stored.get(name, 'nothing')} for leaf {name}, but the state to "
                f"restore has {wanted.get(name, 'nothing')} there; build it with the settings of the run that saved it."
            )


def _steps(folder: Path) -> dict[int, Path]:
    """Return the complete steps by number."""
    steps = {step.name.removeprefix(_STEP): step for step in folder.glob(f"{_STEP}*")}
    return {int(number): step for number, step in steps.items() if number.isdecimal()}


def _open(path: str | os.PathLike[str]) -> tuple[Path, dict[str, Any]]:
    """Return the newest step of a checkpoint and its manifest."""
    folder = Path(path).absolute()
    steps = _steps(folder)
    if not steps:
        raise FileNotFoundError(f"there is no checkpoint at {folder}; {_contents(folder)}.")
    newest = steps[max(steps)]
    try:
        manifest = json.loads((newest / _MANIFEST).read_text())
        version = manifest["format_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(newest, str(error)) from error
    if version != FORMAT_VERSION:
        raise ValueError(
            f"the checkpoint {newest} is of format version {version}, but this library (version "
            f"{jaxrl_buffers.__version__}) reads {FORMAT_VERSION}; use the version that saved it, "
            f"{manifest.get('library_version', 'unknown')}."
        )
    sizes = _sizes(newest)
    for name, size in manifest["files"].items():
        if sizes.get(name) != size:
            raise _damaged(newest, f"{name} has {sizes.get(name, 'no')} bytes instead of {size}")
    return newest, manifest


def _damaged(step: Path, cause: str) -> FileNotFoundError:
    return FileNotFoundError(f"the checkpoint {step} is damaged: {cause}; {_contents(step)}.")


def _contents(folder: Path) -> str:
    if not folder.is_dir():
        return "it is a file" if folder.exists() else "the path does not exist"
    return "the folder contains " + (", ".join(sorted(entry.name for entry in folder.iterdir())) or "nothing")


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(dict(metadata))
    except (TypeError, ValueError) as error:
        raise ValueError(f"save() got metadata that JSON cannot express: {error}; pass plain values.") from error
    return dict(metadata)


def _sizes(step: Path) -> dict[str, int]:
    """Return the size of every file of arrays."""
    return {str(file.relative_to(step)): file.stat().st_size for file in step.glob(f"{_ARRAYS}/**/*") if file.is_file()}


def _write_arrays(folder: Path, arrays: dict[str, Any]) -> None:
    import orbax.checkpoint as ocp  # here, because it takes seconds to import

    if arrays:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(folder, args=ocp.args.PyTreeSave(arrays))


def _read_arrays(step: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    import orbax.checkpoint as ocp

    arguments = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
    if not arguments:
        return {}
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            return checkpointer.restore(step / _ARRAYS, args=ocp.args.PyTreeRestore(restore_args=arguments))
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(step, str(error)) from error
