"""Stopping between two chunks when asked to."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopSignals:
    """Within its `with` block, remembers Ctrl-C and SIGTERM instead of dying of them; a second one is obeyed at once.

    Example:
        >>> with StopSignals() as signals:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     print(signals.received == signal.SIGTERM)
        True
    """

    def __init__(self):
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python does not allow it
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exception: object) -> None:
        self._restore()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
