"""The arrays of a `.npz` file, read part by part. NumPy itself reads an array of such a file as a whole."""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from collections.abc import Generator
from typing import IO

import numpy as np

SUFFIX = ".npy"  # ends the name of every array in such a file
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Generator[dict[str, ZippedArray]]:
    """Open a `.npz` file, and yield its arrays by their names. The file is closed afterwards, whatever happens."""
    with contextlib.ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path))
        arrays = {}
        for name in archive.namelist():
            arrays[name.removesuffix(SUFFIX)] = stack.enter_context(contextlib.closing(ZippedArray(archive, name)))
        yield arrays


class ZippedArray:
    """An array in an open `.npz` file, compressed or not, whose rows are read from the file.

    Slices may follow each other, or overlap in one row. For any other slice, the file is read from the beginning of the
    array. An array in Fortran's order is read as a whole.

    Args:
        archive: the open file.
        member: the name of the array in it.
    """

    def __init__(self, archive: zipfile.ZipFile, member: str):
        self._archive, self._member = archive, member
        self._stream, self._next = self._begun()  # the rows that were not read so far begin with this one
        self._last: np.ndarray | None = None  # the row before, if it was read

    def __getitem__(self, place: slice) -> np.ndarray:
        """Return rows; the slice has the step 1."""
        if self._is_fortran:
            with self._archive.open(self._member) as stream:
                return np.lib.format.read_array(stream)[place]
        begin, end, _ = place.indices(self.shape[0])
        overlap = self._last if begin == self._next - 1 and begin < end else None
        if overlap is None:
            self._go_to(begin)
        rows = self._read(end - self._next)
        if overlap is not None:
            rows = np.concatenate([overlap, rows])
        self._last = rows[-1:].copy() if len(rows) else None
        return rows

    def close(self) -> None:
        """Read no more. Until all arrays are closed, the file stays open."""
        self._stream.close()

    def _begun(self) -> tuple[IO[bytes], int]:
        """Open the array before its first row, and read what is known of it."""
        stream = self._archive.open(self._member)
        try:
            self.shape, self._is_fortran, self.dtype = HEADERS[np.lib.format.read_magic(stream)](stream)
        except (ValueError, KeyError) as error:
            stream.close()
            raise ValueError(f"{self._member} is no array of NumPy: {error}") from None
        return stream, 0

    def _go_to(self, row: int) -> None:
        if row < self._next:
            self._stream.close()
            self._stream, self._next = self._begun()
        self._stream.seek((row - self._next) * self._bytes(1), os.SEEK_CUR)
        self._next = row

    def _read(self, num_rows: int) -> np.ndarray:
        num_rows = max(num_rows, 0)
        content = self._stream.read(self._bytes(num_rows))
        if len(content) < self._bytes(num_rows):
            raise EOFError(f"{self._member} ends too early")
        self._next += num_rows
        if self._next == self.shape[0]:
            self._stream.read()  # compares the checksum
        return np.frombuffer(content, self.dtype).reshape(num_rows, *self.shape[1:])

    def _bytes(self, num_rows: int) -> int:
        return num_rows * math.prod(self.shape[1:]) * self.dtype.itemsize
