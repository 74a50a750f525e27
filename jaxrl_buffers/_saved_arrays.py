"""A file of arrays: raw arrays one after the other, each with a hash.

Large arrays are written and read in blocks, so little more memory is needed than for the arrays themselves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, BinaryIO, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import xxhash

from jaxrl_buffers._durable import NewFile

BLOCK_BYTES = 2**22  # how much of an array is written or read at once


class Damage(Exception):
    """What was read is not what was written."""


class Arrays(Protocol):
    """A source of arrays: one of the file formats."""

    def to_numpy(self, record: Any) -> np.ndarray:
        """Return the array that a record describes."""
        ...

    def to_device(self, record: Any) -> jax.Array:
        """Return the array that a record describes on the default device, in its own memory."""
        ...

    def to_device_apart(self, record: Any) -> list[jax.Array]:
        """Split that array along its first axis; return the parts, each in its own memory."""
        ...


class ArrayFile:
    """Reads arrays that `write_array` has written, and checks their hashes.

    Args:
        file: a file open for reading. It may be renamed or removed in the meantime.
    """

    def __init__(self, file: BinaryIO):
        self._file = file

    def to_numpy(self, record: Any) -> np.ndarray:
        """Return the array that a record describes."""
        array = np.empty(record["shape"], _dtype(record))
        self._file.seek(record["offset"])
        self._fill(array)
        _check_hash(record, xxhash.xxh3_64(_bytes(array)))
        return array

    def to_device(self, record: Any) -> jax.Array:
        """Return the array that a record describes on the default device, in its own memory."""
        self._file.seek(record["offset"])
        digest = xxhash.xxh3_64()
        array = self._next_to_device(tuple(record["shape"]), _dtype(record), digest)
        _check_hash(record, digest)
        return array

    def to_device_apart(self, record: Any) -> list[jax.Array]:
        """Split that array along its first axis; return the parts, each in its own memory."""
        self._file.seek(record["offset"])
        digest = xxhash.xxh3_64()
        num_parts, *shape = record["shape"]
        parts = [self._next_to_device(tuple(shape), _dtype(record), digest) for _ in range(num_parts)]
        _check_hash(record, digest)
        return parts

    def _next_to_device(self, shape: tuple[int, ...], dtype: np.dtype[Any], digest: xxhash.xxh3_64) -> jax.Array:
        """Return the array that comes next in the file, and add it to a hash."""
        if math.prod(shape) * dtype.itemsize <= BLOCK_BYTES:
            whole = np.empty(shape, dtype)
            self._fill(whole)
            digest.update(_bytes(whole))
            return jnp.array(whole)
        # Blocks are written into an array on the device, so that there is never a second copy of the whole array.
        array = jnp.zeros(shape, dtype)
        for start, size in _blocks(shape, dtype.itemsize):
            block = np.empty(size, dtype)
            self._fill(block)
            digest.update(_bytes(block))
            # Wait for each block. Otherwise the blocks that are not written yet would fill the memory.
            array = jax.block_until_ready(_write_block(array, jnp.array(block), start))
        return array

    def _fill(self, array: np.ndarray) -> None:
        data = _bytes(array)
        while data:
            count = self._file.readinto(data)  # pyright: ignore[reportAttributeAccessIssue]
            if not count:
                raise Damage("the file of arrays ends too early")
            data = data[count:]


def write_array(file: NewFile, array: np.ndarray, digest: xxhash.xxh3_64) -> None:
    """Append the bytes of an array to a file and to a hash."""
    data = _bytes(np.ascontiguousarray(array))
    for begin in range(0, len(data), BLOCK_BYTES):
        block = data[begin : begin + BLOCK_BYTES]
        digest.update(block)
        file.write(block)


def _bytes(array: np.ndarray) -> memoryview:
    """Return the memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def _dtype(record: Any) -> np.dtype[Any]:
    return jnp.dtype(record["dtype"])  # knows bfloat16 too, unlike np.dtype


def _check_hash(record: Any, digest: Any) -> None:
    if digest.hexdigest() != record["hash"]:
        raise Damage(f"the array at byte {record['offset']} is not what was written: its hash differs")


def _blocks(shape: tuple[int, ...], item_bytes: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the start and size of the blocks of an array, in the order of memory, of at most `BLOCK_BYTES` each.

    A block is a range along one axis. On the axes before this one it has a single index; the axes after it are whole.
    """
    row_bytes = [math.prod(shape[axis + 1 :]) * item_bytes for axis in range(len(shape))]
    axis = next(axis for axis, size in enumerate(row_bytes) if size <= BLOCK_BYTES)
    num_rows, behind = BLOCK_BYTES // row_bytes[axis], shape[axis + 1 :]
    for index in np.ndindex(shape[:axis]):
        for begin in range(0, shape[axis], num_rows):
            size = (*[1] * axis, min(num_rows, shape[axis] - begin), *behind)
            yield (*index, begin, *[0] * len(behind)), size


@functools.partial(jax.jit, donate_argnums=0)
def _write_block(array: jax.Array, block: jax.Array, start: tuple[int, ...]) -> jax.Array:
    return jax.lax.dynamic_update_slice(array, block, start)
