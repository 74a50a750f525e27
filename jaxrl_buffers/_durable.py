"""Files and folders that survive a power cut.

What was written is on the disk once the file was synced, and its name once the folder that holds it was. Until then a
power cut may leave a file without its contents, a folder without its files, or the old name instead of the new one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class NewFile:
    """A file under construction, written from its beginning to its end.

    Args:
        descriptor: the open file.
    """

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self.size = 0

    def write(self, data: Any) -> None:
        """Append bytes; the system may take them in parts."""
        rest = memoryview(data)
        while rest:
            count = os.write(self._descriptor, rest)
            self.size += count
            rest = rest[count:]


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[NewFile]:
    """Write a file, which is emptied if it exists; afterwards its contents are on the disk, but not yet its name."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o666)
    try:
        yield NewFile(descriptor)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    if os.name == "nt" and path.is_dir():  # Windows has no such operation for folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(path: Path, target: Path) -> None:
    """Give a file or folder another name beside its old one, all at once; it is on the disk afterwards."""
    os.replace(path, target)
    sync(target.parent)


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing."""
    if path.exists():
        return
    make_folder(path.parent)
    os.mkdir(path)
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a file all at once, so that a kill or a power cut leaves the old one or the new one."""
    aside = path.with_name(f"{path.name}.new")
    with new_file(aside) as file:
        file.write(text.encode())
    rename(aside, path)


def append_text(path: Path, text: str) -> None:
    """Add to the end of a file, which is made if it does not exist; it need not be on the disk before `sync`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
    try:
        NewFile(descriptor).write(text.encode())
    finally:
        os.close(descriptor)


def remove_folder(path: Path) -> None:
    """Remove a folder with all that is in it, as far as that is possible."""
    for parent, folders, files in os.walk(path, topdown=False):
        for name in files:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(parent, name))
        for name in folders:
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(parent, name))
    with contextlib.suppress(OSError):
        os.rmdir(path)
