"""Several processes that train one run, on the loopback interface."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from support.guides import ROOT

from jaxrl_buffers._processes import Job

LONG = 300  # seconds that nothing should take, even beside other work
ENDING = 20  # seconds in which all processes must have ended after one was killed


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def train_command(*arguments: object) -> list[str]:
    return [sys.executable, str(ROOT / "scripts" / "train.py"), *map(str, arguments)]


def environment(**variables: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), **variables}


@contextlib.contextmanager
def started(
    num_processes: int, folder: Path, *arguments: object, by_process: Sequence[tuple[object, ...]] = ()
) -> Iterator[list[subprocess.Popen]]:
    """Start all processes of a run; their output goes to files in `folder`. Afterwards none is left.

    Args:
        num_processes: how many.
        folder: which is made.
        *arguments: of all processes.
        by_process: more arguments of each process.
    """
    folder.mkdir(exist_ok=True)
    address = f"127.0.0.1:{free_port()}"
    found = []
    for number in range(num_processes):
        own = by_process[number] if by_process else ()
        which = (*own, "--coordinator", address, "--num-processes", num_processes, "--process-id", number)
        with (folder / f"output{number}").open("w") as output:
            command = train_command(*arguments, *which)
            found.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment()))
    try:
        yield found
    finally:
        for process in found:
            process.kill()
            process.wait()


def outputs(folder: Path) -> list[str]:
    return [file.read_text() for file in sorted(folder.glob("output*"))]


def wait_for(folder: Path, text: str) -> None:
    """Wait until process 0 has printed something."""
    wait_until(lambda: text in outputs(folder)[0], lambda: outputs(folder))


def wait_until(is_so: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    """Wait until something is so; otherwise show what is there."""
    until = time.monotonic() + LONG
    while not is_so():
        assert time.monotonic() < until, what()
        time.sleep(0.05)


def exit_codes(processes: list[subprocess.Popen], seconds: float = LONG) -> list[int]:
    """Wait until all processes have ended."""
    until = time.monotonic() + seconds
    return [process.wait(max(until - time.monotonic(), 0.01)) for process in processes]


class Store:
    """The key-value store of a job, for processes that are threads."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._changed = threading.Condition()

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        with self._changed:
            assert allow_overwrite or key not in self.values
            self.values[key] = value
            self._changed.notify_all()

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.values, min(milliseconds / 1000, LONG)):
                raise RuntimeError("DEADLINE_EXCEEDED")
            return self.values[key]

    def key_value_delete(self, key: str) -> None:
        with self._changed:
            del self.values[key]


def in_all(function: Callable[[Job], Any], count: int = 3) -> tuple[list[Any], Store]:
    """Call a function of the job in every process; return what each returned or raised, and the store."""
    store = Store()

    def call(index: int) -> Any:
        one = Job()
        one.index, one.count, one._client = index, count, store
        try:
            return function(one)
        except Exception as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count))), store
