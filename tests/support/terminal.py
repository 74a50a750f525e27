"""A pseudo-terminal with a person in front of it, who reads the screen and presses keys."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable

import pyte

# Ctrl-C and hanging up reach the processes of which a terminal is in charge.
_IN_CHARGE = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """A command in a terminal of its own.

    Args:
        command: what is typed.
        environment: variables besides those of this process.
        cwd: where it runs.
        columns: width of the terminal.
    """

    def __init__(self, command: list[str], environment: dict[str, str], cwd: str, columns: int = 120):
        self.text = ""  # everything that was written, control codes included
        self.frames: list[str] = []  # what was to be seen, one after the other
        self._screen = pyte.HistoryScreen(columns, 30, history=1_000)
        self._stream = pyte.ByteStream(self._screen)
        self._descriptor, inner = os.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        # Some test runners set the size of their own terminal, which would go before that of this one.
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _IN_CHARGE, *command],
            **dict.fromkeys(("stdin", "stdout", "stderr"), inner),
            cwd=cwd,
            env={**inherited, "TERM": "xterm-256color", **environment},
            start_new_session=True,
        )
        os.close(inner)

    @property
    def screen(self) -> str:
        """What is to be seen now, with what has scrolled away."""
        above = ["".join(row[column].data for column in sorted(row)).rstrip() for row in self._screen.history.top]
        return "\n".join([*above, *(line.rstrip() for line in self._screen.display)]).rstrip()

    @property
    def is_cursor_hidden(self) -> bool:
        """Whether a person cannot see where they type."""
        return bool(self._screen.cursor.hidden)

    def wait_for(self, seen: str | Callable[[], bool], seconds: float = 240) -> None:
        """Look at the screen until something has been seen on it, or holds."""
        deadline = time.monotonic() + seconds
        while not (self._has_seen(seen) if isinstance(seen, str) else seen()):
            assert time.monotonic() < deadline, f"{seen} was not seen:\n{self.screen}"
            if not self._read():
                assert not isinstance(seen, str), f"ended before {seen!r} was seen:\n{self.screen}"
                return

    def _has_seen(self, pattern: str) -> bool:
        return any(re.search(pattern, frame) for frame in self.frames)

    def press(self, keys: bytes) -> None:
        """Press keys, such as b"\\x03" for Ctrl-C."""
        os.write(self._descriptor, keys)

    def hang_up(self) -> int:
        """Close the terminal, and return the exit code."""
        os.close(self._descriptor)
        return self._process.wait(120)

    def finish(self, seconds: float = 240) -> int:
        """Read to the end, and return the exit code."""
        deadline = time.monotonic() + seconds
        while self._read():
            if time.monotonic() > deadline:
                self._process.kill()
                raise AssertionError(f"did not end:\n{self.screen}")
        os.close(self._descriptor)
        return self._process.wait(120)

    def _read(self) -> bool:
        """Take in what was written; False at the end."""
        if not select.select([self._descriptor], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(self._descriptor, 65_536)
        except OSError:  # how Linux says that nobody has the other end open
            return False
        for part in re.split(rb"(?=\r)", data):  # a bar is drawn over itself
            self._stream.feed(part)
            self.frames.append(self.screen)
        self.text += data.decode(errors="replace")
        return bool(data)
