"""`Intake`: takes rows from other processes into a `Shared` state. Public as `jaxrl_buffers.host.Intake`.

The other processes write rows by a `jaxrl_buffers.feeder.Feeder`, and JAX starts no device in them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_buffers._checks import require_integer
from jaxrl_buffers.feeder import PAUSE
from jaxrl_buffers.feeder._lane import CLOSED, CLOSING, DONE, Lane, Leaf
from jaxrl_buffers.shared import Shared
from jaxrl_buffers.types import PyTree


class Intake:
    """Takes rows from `num_feeders` processes into a `Shared` state, through shared memory and in a thread of its own.

    Process `i` opens `names[i]` by `jaxrl_buffers.feeder.Feeder(name)`. The environments are split into `num_feeders`
    equal parts, and process `i` writes to part `i`. Once a feeder's `add` has returned, the rows will be stored,
    whatever happens to its process later. A process that dies does not disturb the others. When its name is opened
    again, the episodes that it left open are closed. `shared.stop()` stops feeders too. If rows cannot be stored, the
    intake stops `shared` and all feeders, and `close` raises the error.

    Use it in a `with` statement, or call `close` at the end. Both store what was passed on, and remove the memory.

    Args:
        shared: the state; its buffer needs `lockstep=False` if there are several feeders.
        num_feeders: how many processes write rows; the buffer's environments are split evenly among them.
        num_rows: how many rows `K` a chunk may have at most.
        num_slots: how many chunks of each feeder may wait at most.

    Example:
        In the learner's process:

        >>> import jax.numpy as jnp, numpy as np, jaxrl_buffers as jb
        >>> buffer = jb.uniform(100, num_envs=4, lockstep=False)
        >>> state = buffer.init(jb.Transition(jnp.zeros(3), 0, 0.0, False, False, jnp.zeros(3)))
        >>> shared = jb.host.Shared(buffer, state)
        >>> intake = jb.host.Intake(shared, num_feeders=2, num_rows=5)

        In another one, which got `intake.names[1]`, and steps environments 2 and 3:

        >>> from jaxrl_buffers.feeder import Feeder
        >>> with Feeder(intake.names[1]) as feeder:
        ...     obs, reward = np.zeros((5, 2, 3), np.float32), np.zeros((5, 2), np.float32)
        ...     action, never = np.zeros((5, 2), np.int32), np.zeros((5, 2), bool)
        ...     step = {"obs": obs, "action": action, "reward": reward, "terminated": never, "truncated": never}
        ...     feeder.add({**step, "next_obs": obs, "extras": ()})
        >>> intake.close()
        >>> print(shared.sizes)
        [0 0 5 5]
    """

    def __init__(self, shared: Shared, num_feeders: int = 1, *, num_rows: int, num_slots: int = 4):
        buffer = shared.buffer
        require_integer("Intake", "num_feeders", num_feeders, 1)
        require_integer("Intake", "num_rows", num_rows, 1, buffer.length)
        require_integer("Intake", "num_slots", num_slots, 1)
        if num_feeders > 1 and buffer.lockstep:
            raise ValueError(
                f"Intake(num_feeders={num_feeders}): the buffer moves all environments in lock-step, so rows of "
                "several feeders would follow each other in one episode; build it with `lockstep=False`."
            )
        if buffer.num_envs % num_feeders:
            raise ValueError(
                f"Intake(num_feeders={num_feeders}): the buffer's {buffer.num_envs} environments cannot be split "
                "evenly; choose a number that divides them."
            )
        self._shared = shared
        self._env_ids = None if buffer.lockstep else np.split(np.arange(buffer.num_envs), num_feeders)
        self._generations = [0] * num_feeders
        self._error: BaseException | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._take_all, name="intake", daemon=True)
        leaves, num_envs = _leaves(shared.row), buffer.num_envs // num_feeders
        self._lanes: list[Lane] = []
        atexit.register(self._remove)
        try:
            for _ in range(num_feeders):
                self._lanes.append(Lane.made(leaves, num_slots, num_rows, num_envs, os.getpid()))
        except BaseException:
            self._remove()
            raise
        self.names: tuple[str, ...] = tuple(lane.name for lane in self._lanes)
        self._thread.start()

    def close(self, timeout: float = 10.0) -> None:
        """Store what was passed on, then remove the memory. Later calls of a feeder raise `Stopped`.

        Another call of `close` does nothing.

        Raises:
            TimeoutError: if the buffer had no room for some chunks for `timeout` seconds. They are lost.
            BaseException: the error that ended the thread that takes rows, if there was one.
        """
        if not self._lanes:
            return
        try:
            self._set_state(CLOSING)
            self._ends.set()
            self._thread.join()
            self._take_rest(time.monotonic() + timeout)
            # If a feeder counts a chunk before this line, the next line sees the chunk. If it counts a chunk after this
            # line, the feeder waits for DONE, and then looks whether the chunk was taken.
            self._set_state(CLOSED)
            num_lost = self._take_rest(time.monotonic())
            self._set_state(DONE)
        finally:
            self._remove()
        if self._error is not None:
            raise self._error
        if num_lost:
            raise TimeoutError(
                f"close() found no room for {num_lost} chunks within {timeout} seconds; dequeue rows first, or "
                "make the ring longer."
            )

    def __enter__(self) -> Intake:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
            return
        with contextlib.suppress(TimeoutError):  # the first error is the one to see
            self.close(timeout=0)

    def _take_all(self) -> None:
        """Take chunks as they come, until the end. This runs in the thread."""
        try:
            while not self._ends.is_set():
                for lane in self._lanes:
                    lane["is_stopped"] = self._shared.is_stopped
                if self._shared.is_stopped or not self._take_some(heeds_stop=True):
                    self._ends.wait(PAUSE)
        except BaseException as error:
            self._error = error
            self._set_state(CLOSED)  # so that no feeder waits for a thread that has ended
            self._shared.stop()  # nor anyone for rows, which will not come

    def _take_rest(self, deadline: float) -> int:
        """Take the waiting chunks, even while stopped; return how many found no room before the deadline."""
        while self._error is None and self._num_waiting():
            if not self._take_some(heeds_stop=False):
                if time.monotonic() >= deadline:
                    break
                time.sleep(PAUSE)
        return self._num_waiting()

    def _num_waiting(self) -> int:
        return sum(lane["written"] - lane["taken"] for lane in self._lanes)

    def _take_some(self, heeds_stop: bool) -> bool:
        """Take one chunk of each feeder that has one, if there is room; return whether any was taken."""
        return any([self._take(number, heeds_stop) for number in range(len(self._lanes))])

    def _take(self, number: int, heeds_stop: bool) -> bool:
        lane, env_ids = self._lanes[number], None if self._env_ids is None else self._env_ids[number]
        taken = lane["taken"]
        if lane["written"] == taken or not self._shared.has_room(lane.num_rows_of(taken), env_ids):
            return False
        leaves, generation = lane.read(taken)
        if generation != self._generations[number]:
            if self._generations[number]:
                self._shared.mark_break(env_ids)
            self._generations[number] = generation
        chunk = jax.tree.unflatten(jax.tree.structure(self._shared.row), leaves)
        if not self._shared.try_add(chunk, env_ids, heeds_stop):
            return False  # there is no room any more, or `shared` was stopped; the chunk stays in its slot
        lane["taken"] = taken + 1
        return True

    def _set_state(self, state: int) -> None:
        for lane in self._lanes:
            lane["state"] = max(state, lane["state"])

    def _remove(self) -> None:
        """End the thread and remove the memory."""
        self._ends.set()
        atexit.unregister(self._remove)
        if self._thread.ident is not None:  # it was started
            self._thread.join()
        while self._lanes:
            self._lanes.pop().close()


def _leaves(row: PyTree) -> list[Leaf]:
    """Return a description of the leaves of a row that can be read without JAX."""
    leaves = []
    for path, leaf in jax.tree.leaves_with_path(row):
        name = "/".join(_name(part) for part in path)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) or np.dtype(leaf.dtype).kind not in "biufc":
            raise ValueError(f"Intake(): leaf {name!r} has the dtype {leaf.dtype}, which NumPy alone does not know.")
        leaves.append(Leaf(name, leaf.shape, np.dtype(leaf.dtype).str))
    return leaves


def _name(part: Any) -> str:
    """Return the name of a part of a tree as `Feeder` spells it."""
    if isinstance(part, jax.tree_util.GetAttrKey):
        return part.name
    return str(part.idx if isinstance(part, jax.tree_util.SequenceKey) else part.key)
