"""`Shared`: a buffer's state that several threads write and read. They wait for each other where this is needed.

Actors add rows in threads of their own while a learner samples or dequeues them. For actors in other processes see
`Intake`. Public as `jaxrl_buffers.host.Shared`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxrl_buffers import _shared_programs as programs
from jaxrl_buffers._checks import check_chunk, check_env_ids, require_flag, require_integer
from jaxrl_buffers.feeder import Stopped
from jaxrl_buffers.replay import ReplayBuffer, ReplayState
from jaxrl_buffers.types import Handle, PyTree, Sample, Scalar

Result = TypeVar("Result")


class Shared:
    """Holds the state of a buffer for several threads.

    Every method may be called from any thread. The state is changed in place, so no method returns it; `snapshot`
    returns a copy. `add`, `dequeue`, `sample` and `update` wait for what they need. After `timeout` seconds they raise
    `TimeoutError`; by default they wait as long as it takes. `stop` makes all of them raise `Stopped`.

    Rows of one environment must come from one thread, in order of time. A buffer in lock-step gets the rows of all
    environments from one thread. For several actors make the buffer with `lockstep=False`, and give each actor its own
    environments by `env_ids`. Otherwise rows of different actors would be mixed as if they were one episode.

    Args:
        buffer: any `ReplayBuffer`.
        state: its state. Do not use it afterwards: JAX reuses its memory.
        keep_until_dequeued: make `add` wait while it would overwrite rows that were not dequeued. Otherwise `add` never
            waits and overwrites the oldest rows.

    Example:
        >>> import threading, jax, numpy as np, jaxrl_buffers as jb
        >>> buffer = jb.uniform(4)
        >>> step = jb.Transition(0.0, 0, 0.0, False, False, 0.0)
        >>> shared = jb.host.Shared(buffer, buffer.init(step), keep_until_dequeued=True)
        >>> def act():
        ...     for time in range(10):
        ...         row = step._replace(obs=np.float32(time))
        ...         shared.add(jax.tree.map(lambda leaf: np.asarray(leaf).reshape(1, 1), row))
        >>> actor = threading.Thread(target=act)
        >>> actor.start()
        >>> for _ in range(5):
        ...     print(shared.dequeue(2, timeout=60).obs[:, 0])
        [0. 1.]
        [2. 3.]
        [4. 5.]
        [6. 7.]
        [8. 9.]
        >>> actor.join()
    """

    def __init__(self, buffer: ReplayBuffer, state: ReplayState, *, keep_until_dequeued: bool = False):
        require_flag("Shared", "keep_until_dequeued", keep_until_dequeued)
        self._buffer, self._state = buffer, state
        self._keeps_all = keep_until_dequeued
        self._row = buffer.storage.structure(state.storage)
        # A copy of the sizes in the state, which can be read without waiting for the device.
        self._sizes = np.broadcast_to(np.asarray(state.storage.size), (buffer.num_envs,)).copy()
        self._num_starts: int | None = None  # None if they must be counted again
        self._is_stopped = False
        self._num_stops = 0  # a count, so that waiting threads notice a stop even if `revive` follows at once
        self._changed = threading.Condition()

    @property
    def buffer(self) -> ReplayBuffer:
        """The buffer whose state this is."""
        return self._buffer

    @property
    def row(self) -> PyTree:
        """The shapes and dtypes of one row."""
        return self._row

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called, and `revive` was not called since."""
        return self._is_stopped

    @property
    def sizes(self) -> np.ndarray:
        """How many rows each environment holds: `int32[N]`."""
        with self._changed:
            return self._sizes.copy()

    def has_room(self, num_rows: int, env_ids: ArrayLike | None = None) -> bool:
        """Return whether `add` of `num_rows` rows would return without waiting."""
        with self._changed:
            return self._fits(num_rows, self._columns(env_ids))

    def add(
        self,
        chunk: PyTree,
        *,
        priorities: ArrayLike | None = None,
        env_ids: ArrayLike | None = None,
        timeout: float | None = None,
    ) -> None:
        """Append rows as `buffer.add` does; with `keep_until_dequeued`, wait for room."""
        self._add(chunk, priorities, env_ids, timeout)

    def try_add(self, chunk: PyTree, env_ids: ArrayLike | None = None, heeds_stop: bool = True) -> bool:
        """Append rows if this is possible without waiting; return whether they were appended.

        Args:
            chunk: as in `add`.
            env_ids: as in `add`.
            heeds_stop: whether to refuse rows after `stop`.
        """
        try:
            self._add(chunk, None, env_ids, 0, heeds_stop)
        except (TimeoutError, Stopped):
            return False
        return True

    def _add(
        self,
        chunk: PyTree,
        priorities: ArrayLike | None,
        env_ids: ArrayLike | None,
        timeout: float | None,
        heeds_stop: bool = True,
    ) -> None:
        env = self._columns(env_ids)
        num_rows = check_chunk(chunk, self._row, self._buffer.length, env.size)
        chunk, priorities = jax.tree.map(_owned, (chunk, priorities))
        with self._changed:
            self._wait(lambda: self._fits(num_rows, env), timeout, f"add() of {num_rows} rows", heeds_stop)
            self._state = programs.add(self._buffer, self._state, chunk, priorities, None if env_ids is None else env)
            self._sizes[env] = np.minimum(self._sizes[env] + num_rows, self._buffer.length)
            self._rows_changed()

    def dequeue(self, num_rows: int, *, env_ids: ArrayLike | None = None, timeout: float | None = None) -> PyTree:
        """Wait until every environment, or each of `env_ids`, holds `num_rows` rows, and take out the oldest ones.

        Returns:
            Leaves `[num_rows, E, ...]`.
        """
        require_integer("dequeue", "num_rows", num_rows, 1, self._buffer.length)
        if self._buffer.storage.reader(self._state.storage).complete is not None:
            raise ValueError(
                "dequeue() needs a buffer without `frames`: frames of a row may lie in rows that were taken out before."
            )
        env = self._columns(env_ids)
        with self._changed:
            self._wait(lambda: self._sizes[env].min() >= num_rows, timeout, f"dequeue() of {num_rows} rows")
            self._state, rows, _ = programs.dequeue(
                self._buffer, self._state, num_rows, None if env_ids is None else env
            )
            self._sizes[env] -= num_rows
            self._rows_changed()
        return rows

    def sample(
        self,
        key: jax.Array,
        batch_size: int,
        *,
        progress: Scalar = 0.0,
        at_least: int = 1,
        timeout: float | None = None,
    ) -> Sample:
        """Wait until `at_least` starts are stored, then draw a batch as `buffer.sample` does; consumes `key`.

        With a balanced sampler, which draws from every environment, also wait for a start in each environment.
        """
        require_integer("sample", "batch_size", batch_size, 1)
        self._require_possible("sample", at_least)
        return self.update(
            lambda state: (state, self._buffer.sample(state, key, batch_size, progress)),
            at_least=max(at_least, 1),
            timeout=timeout,
        )

    def update(
        self,
        change: Callable[[ReplayState], tuple[ReplayState, Result]],
        *,
        at_least: int = 0,
        timeout: float | None = None,
    ) -> Result:
        """Wait until `at_least` starts are stored, then call `change(state) -> (state, result)`; return the result.

        A learner uses it to run a compiled program that samples, learns and updates priorities. No other thread uses
        the state in the meantime, so the program may donate it. It must neither add nor remove rows.
        """
        self._require_possible("update", at_least)
        with self._changed:
            self._wait(lambda: self._count() >= at_least, timeout, f"a call that needs {at_least} legal starts")
            self._state, result = change(self._state)
        return result

    def update_priorities(self, handle: Handle, priorities: jax.Array, mask: jax.Array | None = None) -> None:
        """Set the priorities of sampled starts as `buffer.update_priorities` does; works while stopped."""
        with self._changed:
            self._state = programs.update_priorities(self._buffer, self._state, handle, priorities, mask)

    def mark_break(self, env_ids: ArrayLike | None = None) -> None:
        """Close open episodes as `buffer.mark_break` does; works while stopped."""
        env = None if env_ids is None else self._columns(env_ids)
        with self._changed:
            self._state = programs.mark_break(self._buffer, self._state, env)
            self._rows_changed()

    def snapshot(self) -> ReplayState:
        """Return a copy of the state; works while stopped."""
        with self._changed:
            return jax.tree.map(jnp.copy, self._state)

    def stop(self) -> None:
        """Make every `add`, `dequeue`, `sample` and `update` raise `Stopped`: calls that wait now, and later calls."""
        with self._changed:
            self._is_stopped = True
            self._num_stops += 1
            self._changed.notify_all()

    def revive(self) -> None:
        """Undo `stop`: calls work again. All stored rows are still there."""
        with self._changed:
            self._is_stopped = False

    def _wait(self, is_ready: Callable[[], bool], timeout: float | None, awaited: str, heeds_stop: bool = True) -> None:
        """Wait until `is_ready()`. The caller holds the lock, which other threads get while this waits."""
        num_stops = self._num_stops

        def is_stopped() -> bool:
            return heeds_stop and (self._is_stopped or self._num_stops > num_stops)

        if not self._changed.wait_for(lambda: is_stopped() or is_ready(), timeout):
            raise TimeoutError(f"{awaited} waited {timeout} seconds.")
        if is_stopped():
            raise Stopped(f"{awaited} was stopped; after `revive` it can be called again.")

    def _rows_changed(self) -> None:
        self._num_starts = None
        self._changed.notify_all()

    def _columns(self, env_ids: ArrayLike | None) -> np.ndarray:
        if env_ids is None:
            return np.arange(self._buffer.num_envs)
        return np.asarray(check_env_ids(env_ids, self._buffer.num_envs))

    def _fits(self, num_rows: int, env: np.ndarray) -> bool:
        return not self._keeps_all or self._sizes[env].max() + num_rows <= self._buffer.length

    def _require_possible(self, caller: str, at_least: int) -> None:
        """Refuse to wait for more starts than the buffer has rows."""
        require_integer(caller, "at_least", at_least, 0, self._buffer.length * self._buffer.num_envs)

    def _count(self) -> int:
        """Count the starts. This waits for the device, so it is done only once after every change of rows."""
        if self._num_starts is None:
            self._num_starts = int(programs.count_starts(self._buffer, self._state))
        return self._num_starts


def _owned(leaf: ArrayLike) -> jax.Array:
    """Return a copy of a NumPy array. Without it, JAX might read the memory after the caller has overwritten it."""
    return leaf if isinstance(leaf, jax.Array) else jnp.array(leaf, copy=True)
