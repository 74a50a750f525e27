"""What a process that steps environments needs in order to hand rows to a learner in another process.

It works with NumPy alone: no device of JAX is started where environments are stepped. The
other end is `jaxrl_buffers.host.Intake`, which makes the shared memory and takes the rows out of it.

    feeder = Feeder(name)                 # `name` comes from `intake.names`
    feeder.add({"obs": ..., "action": ...})

One piece of memory has one writer and one reader, and no lock: the writer fills a slot, and only then counts it. So a
writer that is killed at any moment leaves nothing behind but a slot that was not counted, which the next one fills.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxrl_buffers.feeder._lane import CLOSED, DONE, OPEN, Lane

__all__ = ["Feeder", "Stopped"]

PAUSE = 0.001  # seconds between two looks at the memory
SECONDS_TO_SETTLE = 10.0  # that a reader may take for the last chunks


class Stopped(RuntimeError):
    """The other side was stopped or closed, so what was asked for will not happen."""


class Feeder:
    """Hands chunks of rows to an `Intake`; one process opens a name at a time.

    Who opens a name takes it over: whoever had it before gets an error from the next `add`, and the episodes that it
    left open are closed. So the place of a process that died is taken by simply opening its name again.

    Args:
        name: one of `intake.names`.
    """

    def __init__(self, name: str):
        self._lane = Lane.attached(name)
        self._token = secrets.randbits(62)
        self._lane["generation"] += 1
        self._lane["owner"] = self._token

    def add(self, chunk: Any, timeout: float | None = None) -> None:
        """Hand over a chunk; once this returns, the rows will be stored, also if this process dies.

        Waits while all slots are full. Raises `Stopped` when the other side is stopped, closed or gone, and
        `TimeoutError` after `timeout` seconds; the rows are not handed over then.

        Args:
            chunk: leaves `[K, E, ...]` for this feeder's environments, as nested dicts or named tuples with the fields
                that the buffer stores; `K` at most the intake's `num_rows`.
            timeout: seconds; None waits as long as it takes.
        """
        leaves = self._lane.checked(_flat(chunk))
        number = self._free_slot(timeout)
        self._lane.write(number, leaves)
        self._require_ownership()
        self._lane["written"] = number + 1
        if self._lane["state"] >= CLOSED:  # while this was written
            self._require_taken(number)

    def close(self) -> None:
        """Let go of the memory; what was handed over is not affected."""
        self._lane.close()

    def __enter__(self) -> Feeder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _free_slot(self, timeout: float | None) -> int:
        """Wait for a slot that may be filled; return the number of the chunk that goes there."""
        begin = time.monotonic()
        while True:
            self._require_ownership()
            if self._lane["state"] != OPEN:
                raise Stopped("add() came after the intake was closed.")
            if self._lane["is_stopped"]:
                raise Stopped("add() came while the buffer is stopped; it may be revived.")
            number = self._lane["written"]
            if number - self._lane["taken"] < self._lane.num_slots:
                return number
            if not _is_alive(self._lane["process"]):
                raise Stopped("add() has nobody to hand rows to: the process of the intake is gone.")
            if timeout is not None and time.monotonic() - begin >= timeout:
                raise TimeoutError(f"add() waited {timeout} seconds for a free slot; the learner takes no rows.")
            time.sleep(PAUSE)

    def _require_ownership(self) -> None:
        if self._lane["owner"] != self._token:
            raise RuntimeError("add() found that another Feeder has opened this name; give every process its own.")

    def _require_taken(self, number: int) -> None:
        """Find out whether a chunk was still taken by an intake that was being closed meanwhile."""
        deadline = time.monotonic() + SECONDS_TO_SETTLE
        while self._lane["state"] != DONE and time.monotonic() < deadline and _is_alive(self._lane["process"]):
            time.sleep(PAUSE)
        if self._lane["taken"] <= number:
            raise Stopped("add() came while the intake was closed; the rows were not taken.")


def _is_alive(process: int) -> bool:
    """Tell whether a process exists, where the system lets us ask; elsewhere timeouts must do."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _flat(chunk: Any, path: str = "") -> dict[str, np.ndarray]:
    """Return the leaves of nested dicts and tuples by name, such as `"obs/image"`."""
    if hasattr(chunk, "_asdict"):
        chunk = chunk._asdict()
    elif isinstance(chunk, (tuple, list)):
        chunk = {str(number): part for number, part in enumerate(chunk)}
    if not isinstance(chunk, Mapping):
        return {path: np.asarray(chunk)}
    leaves = {}
    for name, part in chunk.items():
        leaves |= _flat(part, f"{path}/{name}" if path else str(name))
    return leaves
