"""Records of leaves: what the manifest of a checkpoint says about them, and how their values are found again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xxhash

from jaxrl_buffers import _saved_leaves as saved_leaves
from jaxrl_buffers import _shards as shards
from jaxrl_buffers._durable import NewFile
from jaxrl_buffers._saved_arrays import ARRAYS, Arrays, Region, write_array
from jaxrl_buffers._saved_leaves import SlotLeaf, Stack
from jaxrl_buffers._shards import Device, Leaf
from jaxrl_buffers.types import PyTree

Record = dict[str, Any]


class Part(NamedTuple):
    """The part of a leaf on one device."""

    leaf: Leaf
    start: tuple[int, ...] = ()  # where it begins in the whole leaf, along each axis of the array that is saved
    is_first_copy: bool = True  # whether no device before this one has the same part
    device: Device | None = None  # None for a leaf that is not spread


def leaves_with_parts(state: PyTree) -> dict[str, tuple[Any, list[Part]]]:
    """Return the leaves of a state by path, each with its parts on the devices of this process."""
    found = {name: (leaf, []) for name, leaf in saved_leaves.flatten(state).items()}
    own = shards.devices(state)
    for device in own:
        for name, part in saved_leaves.flatten(shards.part(state, device)).items():
            leaf, parts = found[name]
            if isinstance(leaf, Stack):
                parts += map(Part, leaf.parts)
            else:
                parts.append(Part(part, *saved_leaves.saved_start(leaf, part, device, own[0]), device))
    return found


def write(file: NewFile, file_name: str, name: str, leaf: Leaf, parts: Sequence[Part]) -> Record:
    """Append the parts of a leaf to a file, and return a record with which `rebuild` finds and checks them.

    If several devices have the same part, only the first of them writes it. Another process may have that device; then
    the record of this process has no array. `joined` makes one record of those of all processes.

    Args:
        file: of this process.
        file_name: its name.
        name: of the leaf.
        leaf: the whole leaf.
        parts: of the leaf, on the devices of this process. Those of a `Stack` are its own.
    """
    record: Record = {"kind": saved_leaves.kind(name, leaf)}
    first = leaf.parts[0] if isinstance(leaf, Stack) else leaf
    if saved_leaves.is_number(first):
        return record | {"number": leaf.parts if isinstance(leaf, Stack) else leaf}
    if saved_leaves.is_key(first):
        record["key_implementation"] = saved_leaves.key_implementation(first)
    if math.prod(saved_leaves.saved_shape(first)) == 0:  # for an empty array its kind is enough
        return record
    shape, dtype = saved_leaves.saved_shape(first), str(saved_leaves.saved_dtype(first))
    if isinstance(leaf, Stack):
        place = _append(file, file_name, leaf.parts)
        return record | {"array": {"dtype": dtype, "shape": [len(leaf.parts), *_listed(first)], **place}}
    owned = [part for part in parts if part.is_first_copy]
    if [saved_leaves.saved_shape(part.leaf) for part in owned] == [shape]:
        place = _append(file, file_name, [owned[0].leaf])
        return record | {"array": {"dtype": dtype, "shape": _listed(first), **place}}
    pieces = [
        {
            "file": file_name,
            "start": list(part.start),
            "shape": list(saved_leaves.saved_shape(part.leaf)),
            **_append(file, file_name, [part.leaf]),
        }
        for part in owned
    ]
    return record | ({"array": {"dtype": dtype, "shape": list(shape), "pieces": pieces}} if pieces else {})


def _append(file: NewFile, file_name: str, leaves: Sequence[Any]) -> Record:
    """Append leaves to a file as one array, and return where it is."""
    offset, digest = file.size, xxhash.xxh3_64()
    for leaf in leaves:
        write_array(file, saved_leaves.saved_array(leaf), digest)
    place = {"offset": offset, "hash": digest.hexdigest()}
    return place if file_name == ARRAYS else {"file": file_name, **place}


def _listed(leaf: Leaf) -> list[int]:
    """Return the shape of a whole array as earlier versions of the library expect it: with one axis of slots."""
    shape = saved_leaves.saved_shape(leaf)
    return [*shape[:-2], math.prod(shape[-2:])] if isinstance(leaf, SlotLeaf) else [*shape]


def joined(of_processes: Sequence[Mapping[str, Record]]) -> dict[str, Record]:
    """Return the records of a state, given those that each process has written."""
    records = {name: dict(record) for name, record in of_processes[0].items()}
    for name, record in records.items():
        arrays = [of_process[name]["array"] for of_process in of_processes if "array" in of_process[name]]
        if arrays:
            record["array"] = dict(arrays[0])
        if arrays and "pieces" in arrays[0]:
            record["array"]["pieces"] = [piece for array in arrays for piece in array["pieces"]]
    return records


def is_plain(record: Record) -> bool:
    """Return whether earlier versions of the library can read what a record describes: an array in the first file."""
    return not {"pieces", "file"} & {*record.get("array", {})}


def rebuild(name: str, leaf: Leaf, parts: Sequence[Part], record: Record, arrays: Arrays) -> list[Any]:
    """Return the value that a record describes, in the form of every part; for a `Stack`, one list of its parts.

    Args:
        name: of the leaf.
        leaf: the shape and dtype of the whole leaf.
        parts: its parts on the devices of this process.
        record: from the manifest.
        arrays: of the checkpoint.
    """
    if "number" in record:
        return [record["number"]] * (1 if isinstance(leaf, Stack) else len(parts))
    if "array" not in record:
        values = [_zeros(part.leaf) for part in parts]
    else:
        _require_width(name, parts[0].leaf)
        found = arrays.read(record["array"], *_regions(leaf, parts))
        implementation = record.get("key_implementation")
        values = [
            saved_leaves.from_saved(part.leaf, array.reshape(saved_leaves.saved_shape(part.leaf)), implementation)
            for part, array in zip(parts, found, strict=True)
        ]
    return [values] if isinstance(leaf, Stack) else values


def _regions(leaf: Leaf, parts: Sequence[Part]) -> tuple[tuple[int, ...], list[Region]]:
    """Return the shape of the saved array, and the region of each part. Those of a stack lie along its first axis."""
    is_numpy, own = saved_leaves.is_numpy(parts[0].leaf), saved_leaves.saved_shape(parts[0].leaf)
    if isinstance(leaf, Stack):
        starts = [(number, *[0] * len(own)) for number in range(len(parts))]
        return (len(parts), *own), [Region(start, (1, *own), is_numpy) for start in starts]
    return saved_leaves.saved_shape(leaf), [Region(part.start, own, is_numpy, part.device) for part in parts]


def _zeros(like: Leaf) -> Any:
    return np.zeros(like.shape, like.dtype) if isinstance(like, np.ndarray) else jnp.zeros(like.shape, like.dtype)


def _require_width(name: str, like: Leaf) -> None:
    dtype = saved_leaves.saved_dtype(like)
    if not saved_leaves.is_numpy(like) and jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(f"leaf {name} is {dtype}, which JAX holds in x64 mode only; set `jax_enable_x64`.")
