"""Threads that wait, and rows with numbers, for tests of what threads and processes share."""

from __future__ import annotations

import threading

import numpy as np

import jaxrl_buffers as jb
from jaxrl_buffers.host import Shared

LONG = 60  # seconds that nothing should take
SHORT = 0.05
ROW = jb.Transition(np.float32(0), np.int32(0), np.float32(0), False, False, np.float32(0))


def rows(numbers, num_envs=1):
    """Return a chunk whose observations are the given numbers, one a row."""
    obs = np.broadcast_to(np.asarray(numbers, np.float32)[:, None], (len(numbers), num_envs)).copy()
    never = np.zeros(obs.shape, bool)
    return jb.Transition(obs, obs.astype(np.int32), obs, never, never, obs + 1)


def made(length=4, num_envs=1, keep_until_dequeued=True, **options):
    """Return a shared state of rows like `ROW`."""
    buffer = jb.uniform(length, num_envs, **options)
    return Shared(buffer, buffer.init(ROW), keep_until_dequeued=keep_until_dequeued)


class Running:
    """A function that runs in a thread; its result or error is had by `result`."""

    def __init__(self, function, *args, **options):
        def run():
            try:
                self._result = function(*args, **options)
            except BaseException as error:
                self._error = error

        self._result, self._error = None, None
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def is_waiting(self):
        self.thread.join(SHORT)
        return self.thread.is_alive()

    def result(self):
        self.thread.join(LONG)
        assert not self.thread.is_alive(), "still waiting"
        if self._error is not None:
            raise self._error
        return self._result
