"""The processes in which Gymnasium's `AsyncVectorEnv` steps environments: whether one died, and how to end them."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
from typing import Any

from gymnasium.vector import AsyncVectorEnv, VectorEnv

WAIT = 5.0  # seconds in which a process that has closed its pipe is surely gone


class LostEnvironment(ChildProcessError):
    """The process that stepped an environment ended by itself."""


def check(vector: VectorEnv[Any, Any, Any], name: str, method: str) -> None:
    """Raise `LostEnvironment` if a process died. Call it when a pipe to one of the processes turned out to be closed.

    A process in which the environment raised an error did not die: it reports the error, and its exit code is 0.
    """
    base = vector.unwrapped
    if not isinstance(base, AsyncVectorEnv):
        return
    ended = multiprocessing.connection.wait([process.sentinel for process in base.processes], WAIT)
    for index, process in enumerate(base.processes):
        if process.sentinel in ended:
            process.join(WAIT)  # its exit code is known a moment after its pipes are closed
        if process.exitcode:
            raise LostEnvironment(
                f"{name} failed in `{method}`: the process of environment {index} ended by itself, with exit code "
                f"{process.exitcode}; find out what ends it, or step environments without processes of their own."
            )


def close(vector: VectorEnv[Any, Any, Any], has_failed: bool) -> None:
    """End environments, and their processes if they have any.

    Processes are not asked but terminated if a call has failed, or if one of them is gone. Gymnasium would then wait
    for answers that never come. Seen on: Gymnasium 1.3.0.
    """
    base = vector.unwrapped
    if not isinstance(base, AsyncVectorEnv):
        vector.close()
        return
    if not has_failed:
        with contextlib.suppress(OSError, EOFError):
            vector.close()
    if not base.closed:
        _end(base)


def _end(vector: AsyncVectorEnv) -> None:
    """Terminate the processes; kill those that do not end soon."""
    for process in vector.processes:
        process.terminate()
    for process in vector.processes:
        process.join(WAIT)
        process.kill()
        process.join()
    for pipe in vector.parent_pipes:
        if pipe is not None:  # as where an environment raised an error
            pipe.close()
    vector.closed = True  # otherwise it closes itself once more when it is deleted
