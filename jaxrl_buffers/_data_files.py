"""Files that hold data sets: which kind a path is, what is in it, and whether it is still the same."""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xxhash

from jaxrl_buffers import _zipped_arrays as zipped
from jaxrl_buffers._checks import one_line
from jaxrl_buffers.types import PyTree, Transition

OF_ARRAYS = (".npz", ".hdf5", ".h5")
BLOCK_BYTES = 2**24  # how much of a file is read at once to compute its hash


def is_of_arrays(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a file of arrays, and neither a folder nor a name that Minari knows."""
    return Path(path).suffix in OF_ARRAYS and not Path(path).is_dir()


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Generator[Mapping[str, Any]]:
    """Open a file of arrays. If NumPy or HDF5 cannot read it, the error names the file."""
    if not Path(path).is_file():
        raise ValueError(f"there is no data set {str(path)!r}; correct the path, or make it.")
    try:
        with zipped.opened(path) if Path(path).suffix == ".npz" else _hdf5(path) as arrays:
            yield arrays
    except (OSError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{str(path)!r} cannot be read: {type(error).__name__}: {one_line(error)}") from error
    except ValueError as error:
        raise ValueError(f"{str(path)!r}: {one_line(error)}") from error


def _hdf5(path: str | os.PathLike[str]) -> Any:
    try:
        import h5py
    except ImportError:
        raise ValueError(f"{str(path)!r} needs h5py: pip install 'jaxrl-buffers[data]'.") from None
    return h5py.File(path, "r")


def fingerprint(path: str | os.PathLike[str]) -> str:
    """Return a hash of a file, or of all files of a folder with their names."""
    digest = xxhash.xxh3_128()
    folder = Path(path)
    files = sorted(one for one in folder.rglob("*") if one.is_file()) if folder.is_dir() else [folder]
    for file in files:
        digest.update(str(file.relative_to(folder) if folder.is_dir() else "").encode())
        with file.open("rb") as stream:
            while block := stream.read(BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()


def fitted(row: Transition, like: Transition, caller: str) -> Transition:
    """Return the row of a data set with the dtypes of `like`; refuse a row of another structure or other shapes.

    Args:
        row: the shapes and dtypes of one row of the data set.
        like: the shapes and dtypes that are needed; its `extras` are ignored.
        caller: the name of the public function, which errors show.
    """
    for field in ("obs", "action", "reward", "next_obs"):
        _check_like(getattr(row, field), getattr(like, field), f"{caller}() got a data set with `{field}`")
    return like._replace(extras=row.extras)


def _check_like(given: PyTree, needed: PyTree, what: str) -> None:
    if jax.tree.structure(given) != jax.tree.structure(needed):
        raise ValueError(f"{what} of structure {_keys(given)}, but {_keys(needed)} is needed.")
    for (path, leaf), want in zip(jax.tree.leaves_with_path(given), jax.tree.leaves(needed), strict=True):
        if leaf.shape != want.shape or not np.can_cast(leaf.dtype, want.dtype, "same_kind"):
            raise ValueError(
                f"{what}{jax.tree_util.keystr(path)} of {leaf.dtype}{list(leaf.shape)}, but "
                f"{want.dtype}{list(want.shape)} is needed; is it a data set of another environment?"
            )


def _keys(tree: PyTree) -> str:
    names = [jax.tree_util.keystr(path) or "one array" for path, _ in jax.tree.leaves_with_path(tree)]
    return f"({', '.join(names)})"
