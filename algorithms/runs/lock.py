"""One process at a time may write to the folder of a run."""

from __future__ import annotations

import contextlib
import errno
import os
import warnings
from collections.abc import Generator
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows, where folders are not locked
    fcntl = None

NAME = "lock"
_NOT_SUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def lock(folder: Path) -> Generator[None]:
    """Hold the lock of a folder; the operating system frees it when the process ends, however it ends.

    Raises:
        ValueError: when another process holds the lock.
    """
    descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _acquire(descriptor, folder)
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, folder: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
        raise ValueError(
            f"{folder} is in use by another process (number {holder}), and only one may write to a run; "
            "wait for it to end, or stop it."
        ) from None
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        warnings.warn(f"{folder} is on a disk that cannot lock files; let only one process write to it.", stacklevel=4)
