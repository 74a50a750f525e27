"""The manifest of a checkpoint's step: what each leaf is, where its array is, the sizes of files, and hashes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

import jaxrl_buffers
from jaxrl_buffers import _orbax_arrays as orbax_arrays
from jaxrl_buffers import _saved_arrays as saved_arrays
from jaxrl_buffers import _saved_records as records

FORMAT_VERSION = 2
SPREAD_FORMAT_VERSION = 3  # the same, but some arrays are in several pieces or in several files
MANIFEST = "manifest.json"
_KEYS = {"format_version": int, "library_version": str, "metadata": dict, "files": dict, "leaves": dict}
_ARRAY_KEYS = {"offset": int, "dtype": str, "shape": list, "hash": str}
_SPREAD_KEYS = {"dtype": str, "shape": list, "pieces": list}
_PIECE_KEYS = {"file": str, "offset": int, "start": list, "shape": list, "hash": str}


class Damaged(FileNotFoundError):
    """A step cannot be read; perhaps an older one can."""


class MissingPart(ValueError):
    """A file that another process of the run has written is not there.

    It may still be on the disk of that process, so no older step is read instead.
    """


def text(files: Mapping[str, int], leaves: Mapping[str, Any], metadata: Mapping[str, Any]) -> bytes:
    """Return the text of a new manifest.

    Args:
        files: the size of each other file of the step, in bytes.
        leaves: a record of each leaf.
        metadata: anything that JSON can express.
    """
    is_plain = all(map(records.is_plain, leaves.values()))
    return sealed(
        {
            "format_version": FORMAT_VERSION if is_plain else SPREAD_FORMAT_VERSION,
            "library_version": jaxrl_buffers.__version__,
            "metadata": metadata,
            "files": files,
            "leaves": leaves,
        }
    )


def sealed(manifest: Mapping[str, Any]) -> bytes:
    """Return the text of a manifest, to which its own hash is added as the last key."""
    digest = xxhash.xxh3_64(json.dumps(manifest).encode()).hexdigest()
    return json.dumps({**manifest, "hash": digest}, indent=1).encode()


def read(step: Path) -> dict[str, Any]:
    """Return the manifest of a step, after checking all but the contents of the arrays."""
    try:
        text = (step / MANIFEST).read_bytes()
        manifest = json.loads(text)
        version = manifest["format_version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(step, f"{MANIFEST} cannot be read: {error!r}") from error
    # Only format 1 has no hash. If there is a hash, check it first: an unknown version may come from a flipped bit.
    if version in (FORMAT_VERSION, SPREAD_FORMAT_VERSION) or "hash" in manifest:
        rest = {name: value for name, value in manifest.items() if name != "hash"}
        if sealed(rest) != text:
            raise damaged(step, f"{MANIFEST} is not what was written: its hash differs")
    known = (orbax_arrays.FORMAT_VERSION, FORMAT_VERSION, SPREAD_FORMAT_VERSION)
    if version not in known:
        raise ValueError(
            f"the checkpoint {step} is of format version {version}, but this library (version "
            f"{jaxrl_buffers.__version__}) reads {known[0]} to {known[-1]}; use the version that saved it, "
            f"{manifest.get('library_version', 'unknown')}."
        )
    _check(step, manifest)
    return manifest


def _check(step: Path, manifest: dict[str, Any]) -> None:
    """Raise an error if keys of the manifest are missing, or if the files differ from the files that it lists."""
    for name, kind in _KEYS.items():
        if not isinstance(manifest.get(name), kind):
            raise damaged(step, f"{MANIFEST} has {manifest.get(name)!r} for {name!r} instead of a {kind.__name__}")
    for name, record in manifest["leaves"].items():
        if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
            raise damaged(step, f"{MANIFEST} has {record!r} for leaf {name}")
        if "array" in record and manifest["format_version"] != orbax_arrays.FORMAT_VERSION:
            _check_array(step, name, record["array"])
    sizes = _sizes(step)
    for name in sizes | manifest["files"]:
        if name not in sizes and name.startswith(f"{saved_arrays.PREFIX}_"):
            raise MissingPart(
                f"the checkpoint {step} lacks {name}, which another process of the run has written; put it back, or "
                f"remove {step.name} to go back to the step that was saved before it."
            )
        if sizes.get(name) != manifest["files"].get(name):
            expected = manifest["files"].get(name, "none")
            raise damaged(step, f"{name} has {sizes.get(name, 'no')} bytes instead of {expected}")


def _check_array(step: Path, name: str, array: object) -> None:
    """Raise an error if keys of the record of an array, or of its pieces, are missing."""
    pieces = array.get("pieces") if isinstance(array, dict) else None
    parts = [(array, _ARRAY_KEYS if pieces is None else _SPREAD_KEYS)]
    parts += [(piece, _PIECE_KEYS) for piece in pieces] if isinstance(pieces, list) else []
    for part, keys in parts:
        for key, kind in keys.items():
            if not isinstance(part, dict) or not isinstance(part.get(key), kind):
                raise damaged(step, f"{MANIFEST} has {part!r} for the array of leaf {name}")


def _sizes(step: Path) -> dict[str, int]:
    """Return the sizes of all files, without the manifest and without hidden files, which some systems add."""
    files = (file for file in step.glob("**/*") if file.is_file() and not file.name.startswith("."))
    return {str(file.relative_to(step)): file.stat().st_size for file in files if file != step / MANIFEST}


def damaged(step: Path, cause: str) -> Damaged:
    """Return an error that says what is wrong with a step, and what its folder contains."""
    return Damaged(f"the checkpoint {step} is damaged: {cause}; {contents(step)}.")


def contents(folder: Path) -> str:
    """Return a clause that says what is at this path, for errors."""
    if not folder.is_dir():
        return "it is a file" if folder.exists() else "the path does not exist"
    return "the folder contains " + (", ".join(sorted(entry.name for entry in folder.iterdir())) or "nothing")
