"""What all processes that train a run together must have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from algorithms.runs.settings import differing
from jaxrl_buffers import _processes as processes


def require_same(what: Mapping[str, Any]) -> None:
    """Refuse to go on if another process has other values, such as settings, than process 0.

    Args:
        what: values that JSON can express, by name.
    """
    first, *others = processes.gather(processes.job(), dict(what))
    for process, other in enumerate(others, 1):
        if names := differing(first, other):
            raise ValueError(
                f"process {process} was started with other values than process 0: {', '.join(names)}; start all "
                "processes with the same command and the same files."
            )
