"""What the processes of one job tell each other on the host, through the key-value store of `jax.distributed`.

Every process of a job makes the same calls in the same order. With one process, every call returns its own value
at once.

If a process dies, JAX ends the others, also those that wait here.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

from jax._src import distributed  # JAX has no public name for its key-value store

TIMEOUT = 3_600_000  # milliseconds that a process waits for what another one does meanwhile, such as compiling
_PREFIX = "jaxrl_buffers"
_LOST = ("Gloo", "NCCL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "heartbeat")  # what errors of connections say
_SHARED = "All processes of the job know of this error."

Json = Any  # a value that JSON can express
Args = ParamSpec("Args")
Value = TypeVar("Value")


class Elsewhere(ValueError):
    """Another process has met an error, and reports it. This process only has to end.

    Args:
        kind: the name of the error's class.
        text: of the error.
    """

    def __init__(self, kind: str, text: str):
        super().__init__(text)
        self.kind = kind


class Group(Protocol):
    """Processes that act together."""

    index: int  # of this process
    count: int

    def to_first(self, value: Json) -> list[Any]:
        """Send a value to process 0, which returns the values of all; others return `[]`."""
        ...

    def from_first(self, value: Json) -> Any:
        """Return in every process the value that process 0 gives."""
        ...


class Alone:
    """A process by itself."""

    index = 0
    count = 1

    def to_first(self, value: Json) -> list[Any]:
        """Return the only value."""
        return [value]

    def from_first(self, value: Json) -> Any:
        """Return the value."""
        return value


class Job:
    """All processes that `jax.distributed.initialize` has connected."""

    def __init__(self) -> None:
        state = distributed.global_state
        self.index, self.count = state.process_id, state.num_processes
        self._client: Any = state.client
        self._numbers = itertools.count()
        self._read: list[str] = []  # keys from process 0 that others may still be reading

    def to_first(self, value: Json) -> list[Any]:
        """Send a value to process 0. It shows process 0 that this process has read everything sent to it before."""
        name = self._name()
        if self.index:
            self._client.key_value_set(f"{name}/{self.index}", json.dumps(value))
            return []
        keys = [f"{name}/{index}" for index in range(1, self.count)]
        values = [json.loads(self._client.blocking_key_value_get(key, TIMEOUT)) for key in keys]
        for key in (*keys, *self._read):
            self._client.key_value_delete(key)
        self._read.clear()
        return [value, *values]

    def from_first(self, value: Json) -> Any:
        """Return what process 0 gives."""
        name = self._name()
        if self.index:
            return json.loads(self._client.blocking_key_value_get(name, TIMEOUT))
        self._client.key_value_set(name, json.dumps(value))
        self._read.append(name)
        return value

    def is_said(self, text: str, seconds: float) -> bool:
        """Return whether process 0 says this text within so many seconds; in process 0, say it."""
        name = f"{_PREFIX}/said"
        if self.index:
            return self._client.blocking_key_value_get(name, int(1000 * seconds)) == text
        self._client.key_value_set(name, text, allow_overwrite=True)
        return False

    def _name(self) -> str:
        return f"{_PREFIX}/{next(self._numbers)}"


def job() -> Group:
    """Return the processes of this job."""
    if distributed.global_state.client is None:
        return Alone()
    if not _jobs:
        _jobs.append(Job())
    return _jobs[0]


_jobs: list[Job] = []  # at most one, because a `Job` numbers all messages of this process


def meet(name: str, seconds: float) -> bool:
    """Wait for all processes of this job to call this; return whether all came within so many seconds."""
    client: Any = distributed.global_state.client
    if client is None:
        return True
    try:
        client.wait_at_barrier(f"{_PREFIX}/{name}", int(1000 * seconds))
    except RuntimeError:
        return False
    return True


def is_said(group: Group, text: str, seconds: float) -> bool:
    """Tell the others what this process is about to say; return whether process 0 says the same.

    Process 0 goes on at once. The others wait so many seconds for it.
    """
    if not isinstance(group, Job):
        return False
    try:
        return group.is_said(text, seconds)
    except RuntimeError:
        return False


def gather(group: Group, value: Json) -> list[Any]:
    """Return the values of all processes, in their order."""
    return group.from_first(group.to_first(value))


def on_first(group: Group, function: Callable[[], Value]) -> Value:
    """Call a function in process 0 only, and return in every process what it returned, which JSON must express.

    Raises:
        Exception: in process 0, what the function raised.
        Elsewhere: in the other processes, with the same text.
    """
    if group.index:
        value, error = group.from_first(None)
        _raise_first([error])
        return value
    try:
        value = function()
    except BaseException as error:
        group.from_first([None, _described(error)])
        _note_shared(group, error)
        raise
    group.from_first([value, None])
    return value


def by_first(function: Callable[Args, Value]) -> Callable[Args, Value]:
    """Let only process 0 of the job do what a function does; see `on_first`."""

    @functools.wraps(function)
    def of_all(*args: Args.args, **options: Args.kwargs) -> Value:
        return on_first(job(), lambda: function(*args, **options))

    return of_all


def all_or_none(group: Group, function: Callable[[], Value]) -> Value:
    """Call a function in every process. If it raises an error in one of them, there is an error in all.

    Raises:
        Exception: what the function raised, in the process where it did.
        Elsewhere: in the other processes, with the text of the first error.
    """
    try:
        value = function()
    except Exception as error:
        gather(group, _described(error))
        _note_shared(group, error)
        raise
    _raise_first(gather(group, None))
    return value


def is_shared(error: BaseException) -> bool:
    """Return whether all processes know of an error, so that process 0 reports it."""
    return isinstance(error, Elsewhere) or _SHARED in getattr(error, "__notes__", ())


def is_lost(error: BaseException) -> bool:
    """Return whether an error says that another process is gone."""
    return job().count > 1 and any(word in str(error) for word in _LOST)


def _note_shared(group: Group, error: BaseException) -> None:
    if group.count > 1:
        error.add_note(_SHARED)


def _described(error: BaseException) -> list[str]:
    return [type(error).__name__, str(error)]


def _raise_first(errors: list[list[str] | None]) -> None:
    for process, error in enumerate(errors):
        if error is not None:
            raise Elsewhere(error[0], f"process {process}: {error[1]}")
