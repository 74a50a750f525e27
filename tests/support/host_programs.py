"""Loops on the host that share their compiled programs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

from algorithms.environments.gymnasium import HostEnvironment
from algorithms.runs import host_loop


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Within the block, compile once for all loops whose parts are equal: what is compiled keeps nothing of a run."""
    made: list[tuple[Any, host_loop.HostCompiled]] = []

    def make(agent: Any, buffer: Any, env: HostEnvironment, *rest: Any) -> host_loop.HostCompiled:
        # How environments are made is no matter: they are not stepped by what is compiled.
        parts = agent, buffer, dataclasses.replace(env, make_vector=None, make_tests=None), *rest
        for others, programs in made:
            if parts == others:
                return programs
        made.append((parts, compile_anew(agent, buffer, env, *rest)))
        return made[-1][1]

    compile_anew = host_loop.HostCompiled
    with mock.patch.object(host_loop, "HostCompiled", make):
        yield
