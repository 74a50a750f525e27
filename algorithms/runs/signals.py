"""Stopping between two chunks when asked to."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

# Ctrl-C, `kill`, and a closed terminal; Windows has no SIGHUP.
STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class StopSignals:
    """Within its `with` block, remembers the first Ctrl-C, SIGTERM or SIGHUP. A second one has its usual effect.

    A signal that is ignored, as SIGHUP is under `nohup`, stays ignored.

    Args:
        on_signal: called for every signal, in a thread of its own and at once, also while compiled code is running.

    Example:
        >>> with StopSignals() as signals:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     print(signals.received == signal.SIGTERM)
        True
    """

    def __init__(self, on_signal: Callable[[int], None] | None = None):
        self.received: int | None = None
        self._on_signal = on_signal
        self._previous: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._previous_fd = -1

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is not threading.main_thread():  # Python sets handlers only in the main thread
            return self
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._receive)
        if self._on_signal is not None:
            self._watch(self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        self._restore()
        if self._pipe is not None:
            signal.set_wakeup_fd(self._previous_fd)
            os.close(self._pipe[1])  # this ends the thread
            self._pipe = None

    def stop(self, number: int) -> None:
        """Behave as if a signal had come."""
        self.received = number

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _watch(self, on_signal: Callable[[int], None]) -> None:
        """Report signals at once. Python's own handlers wait until compiled code returns to the main thread."""
        self._pipe = reading, writing = os.pipe()
        os.set_blocking(writing, False)
        self._previous_fd = signal.set_wakeup_fd(writing)

        def watch() -> None:
            with os.fdopen(reading, "rb", buffering=0) as pipe:
                while numbers := pipe.read(1):
                    if numbers[0] in STOPPING:
                        on_signal(numbers[0])

        threading.Thread(target=watch, name="signals", daemon=True).start()
