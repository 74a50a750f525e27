"""A disk that fails: calls of the file system that raise, and what a power cut may leave of those that did not."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest


class Killed(BaseException):
    """The process ends here; nothing that would be done on the way out is done."""


class Recorder:
    """Carries out and writes down every call that changes files below a folder, and lets one of them fail.

    Args:
        root: the folder.
        fails_at: the number of the call that fails, from 0.
        kills: whether the process ends with that call, so that those after it are not made either.
    """

    def __init__(self, root: Path, fails_at: int | None = None, kills: bool = False):
        self.root = root
        self.log: list[tuple[Any, ...]] = []
        self.num_calls = 0
        self._fails_at, self._kills = fails_at, kills
        self._paths: dict[int, Path] = {}

    @contextmanager
    def __call__(self) -> Iterator[Recorder]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("open", "write", "fsync", "close", "replace", "mkdir", "unlink", "rmdir"):
                patch.setattr(os, name, self._wrapped(name, getattr(os, name)))
            yield self

    def acknowledge(self, count: int) -> None:
        """Note that a save has returned."""
        self.log.append(("acknowledge", count))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *others: Any, **options: Any) -> Any:
            path = self._paths.get(first) if isinstance(first, int) else Path(first)
            if path is None or not path.is_relative_to(self.root):
                return real(first, *others, **options)
            self._count(name)
            outcome = real(first, *others, **options)
            self._note(name, path, others, outcome)
            return outcome

        return call

    def _count(self, name: str) -> None:
        number, self.num_calls = self.num_calls, self.num_calls + 1
        if self._fails_at is not None and (number == self._fails_at or (self._kills and number > self._fails_at)):
            raise Killed if self._kills else OSError(errno.EIO, f"{name} failed")

    def _note(self, name: str, path: Path, others: tuple[Any, ...], outcome: Any) -> None:
        if name == "open":
            self._paths[outcome] = path
            if others[0] & os.O_CREAT:
                self.log.append(("create", path, bool(others[0] & os.O_TRUNC)))
        elif name == "close":
            self._paths = {number: open_path for number, open_path in self._paths.items() if open_path != path}
        elif name == "write":
            self.log.append(("write", path, bytes(others[0][:outcome])))
        elif name == "fsync":
            self.log.append(("sync", path))
        else:
            self.log.append((name, path, *map(Path, others[:1] if name == "replace" else ())))


# What an unsynced change of names may come to, by whether it takes a name away; and unsynced contents.
SURVIVORS: dict[str, Callable[[np.random.Generator, bool], bool]] = {
    "nothing": lambda rng, takes: False,
    "names": lambda rng, takes: True,
    "removals": lambda rng, takes: takes,
    "additions": lambda rng, takes: not takes,
    "some": lambda rng, takes: bool(rng.random() < 0.5),
}
CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "half": lambda data: data[: len(data) // 2],
    "whole": lambda data: data,
}


class Disk:
    """What a power cut leaves: all that was synced, and of the rest what `survives` and `contents` say.

    Args:
        root: the folder, empty at first.
        log: of a `Recorder`, up to the cut.
        survives: one of `SURVIVORS`.
        contents: one of `CONTENTS`.
        rng: for those that leave it to chance.
    """

    def __init__(self, root: Path, log: list[tuple[Any, ...]], survives: str, contents: str, rng: np.random.Generator):
        self._paths = {root: 0}
        self._folders: dict[int, dict[str, int]] = {0: {}}
        self._data: dict[int, bytes] = {}
        self._synced: dict[int, bytes] = {}
        self._waiting: list[tuple[int, dict[str, int | None]]] = []  # changes of names that were not synced
        for name, *arguments in log:
            if name != "acknowledge":
                getattr(self, f"_{name}")(*arguments)
        for folder, change in self._waiting:
            if SURVIVORS[survives](rng, None in change.values() and len(change) == 1):
                self._apply(folder, change)
        self._contents = CONTENTS[contents]

    def lay_out(self, target: Path) -> None:
        """Make the folder as it is after the cut."""
        self._lay_out(0, target)

    def _lay_out(self, number: int, target: Path) -> None:
        if number not in self._folders:
            synced = self._synced.get(number, b"")
            has_more = self._data[number].startswith(synced)  # appended, and else written anew
            kept = synced if has_more else b""
            target.write_bytes(kept + self._contents(self._data[number][len(kept) :]))
            return
        target.mkdir()
        for name, inside in self._folders[number].items():
            self._lay_out(inside, target / name)

    def _change(self, path: Path, **change: int | None) -> None:
        self._waiting.append((self._paths[path.parent], change))

    def _apply(self, folder: int, change: dict[str, int | None]) -> None:
        for name, number in change.items():
            if number is None:
                self._folders[folder].pop(name, None)
            else:
                self._folders[folder][name] = number

    def _new(self, path: Path) -> int:
        number = len(self._folders) + len(self._data)
        self._paths[path] = number
        self._change(path, **{path.name: number})
        return number

    def _mkdir(self, path: Path) -> None:
        self._folders[self._new(path)] = {}

    def _create(self, path: Path, empties: bool) -> None:
        number = self._paths[path] if path in self._paths else self._new(path)
        self._data[number] = b"" if empties else self._data.get(number, b"")

    def _write(self, path: Path, data: bytes) -> None:
        self._data[self._paths[path]] += data

    def _sync(self, path: Path) -> None:
        number = self._paths[path]
        if number in self._data:
            self._synced[number] = self._data[number]
            return
        for folder, change in self._waiting:
            if folder == number:
                self._apply(folder, change)
        self._waiting = [(folder, change) for folder, change in self._waiting if folder != number]

    def _replace(self, path: Path, target: Path) -> None:
        # All at once, as every file system with a journal does it.
        self._change(path, **{path.name: None, target.name: self._paths[path]})
        moved = {one: number for one, number in self._paths.items() if one.is_relative_to(path)}
        for one, number in moved.items():
            del self._paths[one]
            self._paths[target / one.relative_to(path)] = number

    def _unlink(self, path: Path) -> None:
        del self._paths[path]
        self._change(path, **{path.name: None})

    _rmdir = _unlink
