"""Files and folders that survive a power cut.

The contents of a file are on the disk once the file has been synced; its name, once the folder around it has been
synced. Before that, a power cut may leave a file without its contents, a folder without its files, or an old name in
the place of a new one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path


class NewFile:
    """A file under construction, written from its beginning to its end.

    Args:
        descriptor: the open file.
    """

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes, in parts if the system takes only some of them at once."""
        rest = memoryview(data)
        while rest:
            count = os.write(self._descriptor, rest)
            self.size += count
            rest = rest[count:]


@contextlib.contextmanager
def new_file(path: Path) -> Generator[NewFile]:
    """Write a file from the beginning; afterwards its contents are on the disk, but not yet its name."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o666)
    try:
        yield NewFile(descriptor)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Wait until the contents of a file, or the names in a folder, are on the disk."""
    if os.name == "nt" and path.is_dir():  # Windows has no such operation for folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(path: Path, target: Path) -> None:
    """Rename a file or folder within its folder, in one operation; afterwards the new name is on the disk."""
    os.replace(path, target)
    sync(target.parent)


def make_folder(path: Path) -> None:
    """Make a folder, and the folders above it that do not exist; afterwards their names are on the disk."""
    if path.exists():
        return
    make_folder(path.parent)
    os.mkdir(path)
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replace a file in one operation: after a kill or a power cut there is the whole old file or the whole new one."""
    aside = path.with_name(f"{path.name}.new")
    with new_file(aside) as file:
        file.write(text.encode())
    rename(aside, path)


def append_text(path: Path, text: str) -> None:
    """Add text to the end of a file, which is made if it does not exist. Only after `sync` is it surely on the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
    try:
        NewFile(descriptor).write(text.encode())
    finally:
        os.close(descriptor)


def remove_folder(path: Path) -> None:
    """Remove a folder and everything in it; files that cannot be removed stay."""
    for parent, folders, files in os.walk(path, topdown=False):
        for name in files:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(parent, name))
        for name in folders:
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(parent, name))
    with contextlib.suppress(OSError):
        os.rmdir(path)
