"""`Feeder`: passes rows from a process that steps environments to a learner in another process.

It uses NumPy only, so that JAX starts no device in the process that steps environments. The learner's process has a
`jaxrl_buffers.host.Intake`, which makes the shared memory and takes the rows out of it.

    feeder = Feeder(name)                 # `name` comes from `intake.names`
    feeder.add({"obs": ..., "action": ...})

One piece of memory has one writer and one reader, so it needs no lock. The writer first fills a slot, and then
increases the count of written chunks. If a writer is killed while it fills a slot, the count does not include this
slot, and the next writer fills it again.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from jaxrl_buffers.feeder._lane import CLOSED, DONE, OPEN, Lane

if TYPE_CHECKING:
    from jaxrl_buffers.types import PyTree

__all__ = ["Feeder", "Stopped"]

PAUSE = 0.001  # seconds between two reads of the memory
SECONDS_TO_SETTLE = 10.0  # how long to wait for an intake that is being closed to take the last chunks


class Stopped(RuntimeError):
    """The buffer was stopped or closed, so the call cannot be carried out."""


class Feeder:
    """Passes chunks of rows to an `Intake`. Each process needs its own name.

    To replace a process that died, open its name again. This closes the episodes that the old process left open. If the
    old process is still alive after all, its next `add` raises an error.

    Args:
        name: one of `intake.names`.
    """

    def __init__(self, name: str):
        self._lane = Lane.attached(name)
        self._token = secrets.randbits(62)
        self._lane["generation"] += 1
        self._lane["owner"] = self._token

    def add(self, chunk: PyTree, timeout: float | None = None) -> None:
        """Pass on a chunk; wait while all slots are full.

        Once this returns, the rows will be stored, even if this process dies.

        Raises:
            Stopped: if the buffer is stopped, or if its process closed the intake or died. The rows were not passed on.
            TimeoutError: after `timeout` seconds. The rows were not passed on.

        Args:
            chunk: leaves `[K, E, ...]` for this feeder's environments, as nested dicts or named tuples with the fields
                that the buffer stores; `K` is at most the intake's `num_rows`.
            timeout: seconds; None waits as long as it takes.
        """
        leaves = self._lane.checked(_flat(chunk))
        number = self._free_slot(timeout)
        self._lane.write(number, leaves)
        self._require_ownership()
        self._lane["written"] = number + 1
        if self._lane["state"] >= CLOSED:  # the intake was closed while the chunk was written
            self._require_taken(number)

    def close(self) -> None:
        """Close the memory. Chunks that were passed on are not affected."""
        self._lane.close()

    def __enter__(self) -> Feeder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _free_slot(self, timeout: float | None) -> int:
        """Wait for a free slot; return the number of the chunk that will fill it."""
        begin = time.monotonic()
        while True:
            self._require_ownership()
            if self._lane["state"] != OPEN:
                raise Stopped("add() was called after the intake was closed.")
            if self._lane["is_stopped"]:
                raise Stopped("add() was called while the buffer is stopped; it works again after `revive`.")
            number = self._lane["written"]
            if number - self._lane["taken"] < self._lane.num_slots:
                return number
            if not _is_alive(self._lane["process"]):
                raise Stopped("add() cannot hand over rows: the process of the intake has died.")
            if timeout is not None and time.monotonic() - begin >= timeout:
                raise TimeoutError(f"add() waited {timeout} seconds for a free slot; the learner takes no rows.")
            time.sleep(PAUSE)

    def _require_ownership(self) -> None:
        if self._lane["owner"] != self._token:
            raise RuntimeError("add() found that another Feeder has opened this name; give every process its own.")

    def _require_taken(self, number: int) -> None:
        """Raise `Stopped` unless the intake took this chunk while it was being closed."""
        deadline = time.monotonic() + SECONDS_TO_SETTLE
        while self._lane["state"] != DONE and time.monotonic() < deadline and _is_alive(self._lane["process"]):
            time.sleep(PAUSE)
        if self._lane["taken"] <= number:
            raise Stopped("add() was called while the intake was being closed; the rows were not taken.")


def _is_alive(process: int) -> bool:
    """Return whether a process is running; True on systems where this cannot be found out."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs under another user
        return True
    return not _is_zombie(process)


def _is_zombie(process: int) -> bool:
    """Return whether a process has ended but still has its number, because its parent has not waited for it."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (OSError, IndexError):  # there is no such file on some systems
        return False


def _flat(chunk: PyTree, path: str = "") -> dict[str, np.ndarray]:
    """Return the leaves of nested dicts and tuples by name, such as `"obs/image"`."""
    if isinstance(chunk, tuple) and (names := getattr(type(chunk), "_fields", None)):
        chunk = dict(zip(names, chunk, strict=True))
    elif isinstance(chunk, (tuple, list)):
        chunk = {str(number): part for number, part in enumerate(chunk)}
    if not isinstance(chunk, Mapping):
        return {path: np.asarray(chunk)}
    leaves = {}
    for name, part in chunk.items():
        leaves |= _flat(part, f"{path}/{name}" if path else str(name))
    return leaves
