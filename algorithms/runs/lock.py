"""One process at a time may write to the folder of a run, and all processes of one job must see the same folder."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
import warnings
from collections.abc import Generator
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows, where folders are not locked
    fcntl = None

NAME = "lock"
PATIENCE = 60  # seconds until another computer must see what one has written to a disk that they share
_OWN = secrets.token_hex(8)  # no other process, on whatever computer, writes this
_NOT_SUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def lock(folder: Path) -> Generator[str]:
    """Hold the lock of a folder; the operating system frees it when the process ends, however it ends.

    Yields:
        what is written in the lock. No other process writes the same.

    Raises:
        ValueError: when another process holds the lock.
    """
    descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _acquire(descriptor, folder)
        os.truncate(descriptor, 0)
        text = f"{os.getpid()} {_OWN}\n"
        os.write(descriptor, text.encode())
        os.fsync(descriptor)  # for other computers
        yield text
    finally:
        os.close(descriptor)


def require_seen(folder: Path, text: str) -> None:
    """Refuse a folder that is not the one whose lock another process of this job holds.

    Args:
        folder: as this process sees it.
        text: what is written in the lock.
    """
    until = time.monotonic() + PATIENCE
    while _written(folder) != text:
        if time.monotonic() > until:
            raise ValueError(
                f"this process cannot see what process 0 wrote to {folder}; put the run on a disk that all processes "
                "share."
            )
        time.sleep(0.1)


def _written(folder: Path) -> str:
    try:
        return (folder / NAME).read_text()
    except FileNotFoundError:
        return ""


def _acquire(descriptor: int, folder: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = next(iter(os.read(descriptor, 20).decode(errors="replace").split()), "unknown")
        raise ValueError(
            f"{folder} is in use by another process (number {holder}), and only one may write to a run; "
            "wait for it to end, or stop it."
        ) from None
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        warnings.warn(f"{folder} is on a disk that cannot lock files; let only one process write to it.", stacklevel=4)
