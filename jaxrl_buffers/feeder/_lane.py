"""A piece of shared memory through which one process passes chunks of rows to another.

The memory begins with integers of 64 bits and a description of the rows in JSON. Each integer is written by one side
only. Then come the slots. Chunk number `i` is in slot `i mod num_slots`. The chunks `taken, ..., written - 1` are
waiting.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import threading
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import NamedTuple

import numpy as np

# The values of `state`. OPEN: chunks are taken. CLOSING: feeders must not begin a new chunk. CLOSED: a feeder that
# counts a chunk from now on must wait and check whether the intake took it. DONE: no chunk will be taken any more.
OPEN, CLOSING, CLOSED, DONE = range(4)
FORMAT = 1
# The intake writes the first six; `description` is the length of the description in bytes. The feeder writes the last
# three.
NUMBERS = ("format", "description", "state", "is_stopped", "taken", "process", "written", "owner", "generation")
ALIGNMENT = 64
_fence = threading.Lock()


class Leaf(NamedTuple):
    """One array of a chunk."""

    name: str  # such as "obs/image"
    shape: tuple[int, ...]  # of one entry
    dtype: str


class Lane:
    """The shared memory, used by both sides; `lane["taken"]` reads or sets one of its integers.

    Args:
        memory: the memory.
        is_owner: whether this side made the memory, and so removes it at the end.
    """

    def __init__(self, memory: SharedMemory, is_owner: bool):
        self._memory, self._is_owner = memory, is_owner
        if self["format"] != FORMAT:
            raise ValueError(f"the shared memory {memory.name!r} was not made by an Intake of this version.")
        begin = 8 * len(NUMBERS)
        described = json.loads(bytes(_buffer(memory)[begin : begin + self["description"]]))
        self.leaves = [Leaf(name, tuple(shape), dtype) for name, shape, dtype in described["leaves"]]
        self.num_slots, self.num_rows, self.num_envs = (described[key] for key in ("slots", "rows", "envs"))
        self._begin = _aligned(begin + self["description"])

    @classmethod
    def made(cls, leaves: list[Leaf], num_slots: int, num_rows: int, num_envs: int, process: int) -> Lane:
        """Make the memory for chunks of at most `num_rows` rows of `num_envs` environments."""
        text = json.dumps({"leaves": leaves, "slots": num_slots, "rows": num_rows, "envs": num_envs}).encode()
        begin = 8 * len(NUMBERS)
        size = _aligned(begin + len(text)) + num_slots * _slot_size(leaves, num_rows, num_envs)
        memory = SharedMemory(create=True, size=size)
        _buffer(memory)[begin : begin + len(text)] = text
        for name, value in {"format": FORMAT, "description": len(text), "process": process}.items():
            struct.pack_into("q", _buffer(memory), 8 * NUMBERS.index(name), value)
        return cls(memory, is_owner=True)

    @classmethod
    def attached(cls, name: str) -> Lane:
        """Open memory that another process made."""
        try:
            return cls(_attached(name), is_owner=False)
        except FileNotFoundError:
            raise ValueError(f"there is no shared memory {name!r}; was its Intake closed?") from None

    @property
    def name(self) -> str:
        """The name by which another process can open it."""
        return self._memory.name

    def __getitem__(self, name: str) -> int:
        with _fence:  # as far as Python can, keeps the processor from moving reads and writes of slots past this
            return struct.unpack_from("q", _buffer(self._memory), 8 * NUMBERS.index(name))[0]

    def __setitem__(self, name: str, value: int) -> None:
        with _fence:
            struct.pack_into("q", _buffer(self._memory), 8 * NUMBERS.index(name), value)

    def checked(self, given: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the leaves of a chunk in order; refuse a chunk that differs from the description."""
        if {*given} != {leaf.name for leaf in self.leaves}:
            needed = ", ".join(leaf.name for leaf in self.leaves)
            raise ValueError(f"add() got a chunk with the leaves {', '.join(given)}; {needed} are needed.")
        num_rows = len(given[self.leaves[0].name]) if given[self.leaves[0].name].ndim else 0
        if not 1 <= num_rows <= self.num_rows:
            raise ValueError(f"add() got a chunk of {num_rows} rows; 1 to {self.num_rows} fit into a slot.")
        for name, shape, dtype in self.leaves:
            needed = (num_rows, self.num_envs, *shape)
            if given[name].shape != needed or not np.can_cast(given[name].dtype, dtype, "same_kind"):
                raise ValueError(
                    f"add() got {given[name].dtype}{list(given[name].shape)} for leaf {name!r}, but "
                    f"{np.dtype(dtype)}{list(needed)} is needed: axes are [rows, environments, ...]."
                )
        return [given[leaf.name] for leaf in self.leaves]

    def write(self, number: int, leaves: list[np.ndarray]) -> None:
        """Fill the slot of a chunk."""
        place = self._place(number)
        struct.pack_into("qq", _buffer(self._memory), place, len(leaves[0]), self["generation"])
        for view, leaf in zip(self._views(place, len(leaves[0])), leaves, strict=True):
            view[...] = leaf

    def read(self, number: int) -> tuple[list[np.ndarray], int]:
        """Copy a chunk out of its slot; return its leaves and the generation of its writer."""
        place = self._place(number)
        num_rows, generation = struct.unpack_from("qq", _buffer(self._memory), place)
        return [view.copy() for view in self._views(place, num_rows)], generation

    def num_rows_of(self, number: int) -> int:
        """Return how many rows a chunk has."""
        return struct.unpack_from("q", _buffer(self._memory), self._place(number))[0]

    def close(self) -> None:
        """Close the memory; the side that made it also removes it. Another call does nothing."""
        self._memory.close()
        if self._is_owner:
            self._is_owner = False
            self._memory.unlink()

    def _place(self, number: int) -> int:
        return self._begin + number % self.num_slots * _slot_size(self.leaves, self.num_rows, self.num_envs)

    def _views(self, place: int, num_rows: int) -> list[np.ndarray]:
        """Return arrays in the memory of a slot. Do not keep them: while they exist, the memory cannot be closed."""
        views = []
        place += ALIGNMENT
        for _, shape, dtype in self.leaves:
            views.append(np.ndarray((num_rows, self.num_envs, *shape), dtype, _buffer(self._memory), place))
            place += _leaf_size(shape, dtype, self.num_rows, self.num_envs)
        return views


def _attached(name: str) -> SharedMemory:
    """Open shared memory that stays when this process ends.

    Before Python 3.13, a process that only opens shared memory would also remove it at its end (cpython issue 82300).
    """
    if sys.version_info >= (3, 13):
        return SharedMemory(name, track=False)
    register = resource_tracker.register
    resource_tracker.register = lambda *_: None
    try:
        return SharedMemory(name)
    finally:
        resource_tracker.register = register


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _leaf_size(shape: tuple[int, ...], dtype: str, num_rows: int, num_envs: int) -> int:
    return _aligned(num_rows * num_envs * math.prod(shape) * np.dtype(dtype).itemsize)


def _slot_size(leaves: list[Leaf], num_rows: int, num_envs: int) -> int:
    return ALIGNMENT + sum(_leaf_size(leaf.shape, leaf.dtype, num_rows, num_envs) for leaf in leaves)


def _buffer(memory: SharedMemory) -> memoryview:
    """Return the bytes of the memory, which must be open."""
    assert memory.buf is not None
    return memory.buf
