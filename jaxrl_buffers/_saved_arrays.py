"""Files of arrays: raw arrays, or pieces of them, one after the other, each with a hash.

The record of an array says where it is: `{"dtype", "shape", "offset", "hash"}` if it is in one piece, and `{"dtype",
"shape", "pieces"}` if it was spread over devices. A piece has a file, an offset, a hash, a shape, and the place in the
whole array at which it starts.

Large arrays are written and read in blocks, so little more memory is needed than for the arrays themselves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import xxhash

from jaxrl_buffers._durable import NewFile
from jaxrl_buffers._shards import Device

PREFIX = "arrays"
ARRAYS = f"{PREFIX}.bin"  # the file of a single process, or of the first one
BLOCK_BYTES = 2**22  # how much of an array is written or read at once


class Damage(Exception):
    """What was read is not what was written."""


class Region(NamedTuple):
    """A part of an array that is to be read."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    as_numpy: bool = False
    device: Device | None = None  # on which it is to lie; None for the default one


class Arrays(Protocol):
    """A source of arrays: one of the file formats."""

    def read(self, record: Any, shape: tuple[int, ...], regions: Sequence[Region]) -> list[Any]:
        """Return regions of the array that a record describes, each in its own memory.

        Args:
            record: of the array.
            shape: of the whole array, in which the regions are given.
            regions: the parts to read.
        """
        ...


class Piece(NamedTuple):
    """A part of an array whose bytes are stored one after the other."""

    file: str
    offset: int
    start: tuple[int, ...]
    shape: tuple[int, ...]
    hash: str


class ArrayFiles:
    """Reads what `write_array` has written, and checks the hashes.

    Args:
        folder: that holds the files. They may be renamed or removed once they are open.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._files: dict[str, ArrayFile] = {}

    def read(self, record: Any, shape: tuple[int, ...], regions: Sequence[Region]) -> list[Any]:
        """Return regions of the array that a record describes. Only the pieces that overlap with them are read."""
        dtype = jnp.dtype(record["dtype"])  # knows bfloat16 too, unlike np.dtype
        targets = [_Target(region, dtype) for region in regions]
        for piece in _pieces(record, shape):
            if any(target.overlaps(piece.start, piece.shape) for target in targets):
                self._file(piece.file).read(piece, dtype, targets)
        return [target.value() for target in targets]

    def _file(self, name: str) -> ArrayFile:
        if name not in self._files:
            self._files[name] = ArrayFile((self._folder / name).open("rb", buffering=0))
        return self._files[name]

    def __enter__(self) -> ArrayFiles:
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._files.values():
            file.close()


class ArrayFile:
    """One file of arrays.

    Args:
        file: open for reading.
    """

    def __init__(self, file: BinaryIO):
        self._file = file

    def read(self, piece: Piece, dtype: np.dtype[Any], targets: Sequence[_Target]) -> None:
        """Read a piece, block by block, into all targets that it overlaps with."""
        self._file.seek(piece.offset)
        digest = xxhash.xxh3_64()
        for begin, size in _blocks(piece.shape, dtype.itemsize):
            block = np.empty(size, dtype)
            self._fill(block)
            digest.update(_bytes(block))
            start = tuple(map(sum, zip(piece.start, begin, strict=True)))
            for target in targets:
                target.put(block, start)
        if digest.hexdigest() != piece.hash:
            raise Damage(f"the array at byte {piece.offset} is not what was written: its hash differs")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _fill(self, array: np.ndarray) -> None:
        data = _bytes(array)
        while data:
            count = self._file.readinto(data)  # pyright: ignore[reportAttributeAccessIssue]
            if not count:
                raise Damage("the file of arrays ends too early")
            data = data[count:]


class _Target:
    """A region that is being filled by blocks."""

    def __init__(self, region: Region, dtype: np.dtype[Any]):
        self._region, self._dtype = region, dtype
        self._missing = math.prod(region.shape)
        # A large array is written on the device, block by block, so that there is never a second copy of all of it.
        self._is_small = region.as_numpy or self._missing * dtype.itemsize <= BLOCK_BYTES
        self._array: Any = None

    def overlaps(self, start: Sequence[int], shape: Sequence[int]) -> bool:
        """Return whether an array of this shape that begins at `start` overlaps with the region."""
        return all(begin < end for begin, end in self._limits(start, shape))

    def put(self, block: np.ndarray, start: Sequence[int]) -> None:
        """Copy what the region and a block have in common; the block begins at `start`."""
        limits = self._limits(start, block.shape)
        if not all(begin < end for begin, end in limits):
            return
        cut = [slice(begin - at, end - at) for (begin, end), at in zip(limits, start, strict=True)]
        inside = block[(*cut, ...)]  # without the dots, an array without axes would become a number
        place = [begin - at for (begin, _), at in zip(limits, self._region.start, strict=True)]
        self._missing -= inside.size
        if self._is_small and inside.shape == self._region.shape:
            self._array = inside if inside.size == block.size else inside.copy()
        elif self._is_small:
            self._array = np.empty(self._region.shape, self._dtype) if self._array is None else self._array
            self._array[tuple(slice(at, at + size) for at, size in zip(place, inside.shape, strict=True))] = inside
        else:
            if self._array is None:
                self._array = jnp.zeros(self._region.shape, self._dtype, device=self._region.device)
            # Wait for each block. Otherwise the blocks that are not written yet would fill the memory.
            self._array = jax.block_until_ready(_write_block(self._array, jnp.array(inside), tuple(place)))

    def value(self) -> Any:
        """Return the region, once all of it was read."""
        if self._missing:
            raise Damage(f"{self._missing} numbers of an array are in no file")
        if self._region.as_numpy or not self._is_small:
            return self._array
        return jnp.array(self._array, device=self._region.device)

    def _limits(self, start: Sequence[int], shape: Sequence[int]) -> list[tuple[int, int]]:
        """Return where the overlap of this region and another one begins and ends, along each axis."""
        own = zip(self._region.start, self._region.shape, start, shape, strict=True)
        return [(max(at, other), min(at + size, other + length)) for at, size, other, length in own]


def file_of(process: int) -> str:
    """Return the name of the file of arrays that a process writes."""
    return f"{PREFIX}_{process:05d}.bin" if process else ARRAYS


def write_array(file: NewFile, array: np.ndarray, digest: xxhash.xxh3_64) -> None:
    """Append the bytes of an array to a file and to a hash."""
    data = _bytes(np.ascontiguousarray(array))
    for begin in range(0, len(data), BLOCK_BYTES):
        block = data[begin : begin + BLOCK_BYTES]
        digest.update(block)
        file.write(block)


def _pieces(record: Any, shape: tuple[int, ...]) -> list[Piece]:
    """Return the pieces of an array; one that was not spread is a single piece."""
    if "pieces" not in record:
        return [Piece(record.get("file", ARRAYS), record["offset"], (0,) * len(shape), shape, record["hash"])]
    return [Piece(**(piece | {name: tuple(piece[name]) for name in ("start", "shape")})) for piece in record["pieces"]]


def _bytes(array: np.ndarray) -> memoryview:
    """Return the memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def _blocks(shape: tuple[int, ...], item_bytes: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the start and size of the blocks of an array, in the order of memory, of at most `BLOCK_BYTES` each.

    A block is a range along one axis. On the axes before this one it has a single index; the axes after it are whole.
    """
    if not shape:
        yield (), ()
        return
    row_bytes = [math.prod(shape[axis + 1 :]) * item_bytes for axis in range(len(shape))]
    axis = next(axis for axis, size in enumerate(row_bytes) if size <= BLOCK_BYTES)
    num_rows, inner = BLOCK_BYTES // row_bytes[axis], shape[axis + 1 :]
    for index in np.ndindex(shape[:axis]):
        for begin in range(0, shape[axis], num_rows):
            size = (*[1] * axis, min(num_rows, shape[axis] - begin), *inner)
            yield (*index, begin, *[0] * len(inner)), size


@functools.partial(jax.jit, donate_argnums=0)
def _write_block(array: jax.Array, block: jax.Array, start: tuple[int, ...]) -> jax.Array:
    return jax.lax.dynamic_update_slice(array, block, start)
