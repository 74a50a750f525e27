"""Environments of Gymnasium whose second process dies, in a step or between two steps."""

from __future__ import annotations

import multiprocessing
import os
import threading

import gymnasium
from support.host_walk import HostWalk, make_host_walk

STEPS = 4  # the process dies in the last of them, or after it


class Dying(HostWalk):
    """A walker whose process dies, if it is that of environment 1."""

    num_steps = 0

    def __init__(self, in_step: bool):
        self.in_step = in_step

    def step(self, action):
        self.num_steps += 1
        is_second = multiprocessing.current_process().name.endswith("-1")
        if multiprocessing.parent_process() is not None and is_second and self.num_steps == STEPS:
            if self.in_step:
                os._exit(7)
            threading.Timer(0.01, os._exit, (7,)).start()
        return super().step(action)


def in_step() -> gymnasium.Env:
    """Return one that dies in a step."""
    return _limited(Dying(in_step=True))


def between_steps() -> gymnasium.Env:
    """Return one that dies after a step."""
    return _limited(Dying(in_step=False))


def at_once() -> gymnasium.Env:
    """Die where an environment should be made."""
    if multiprocessing.parent_process() is not None:
        os._exit(7)
    return in_step()


def _limited(env: gymnasium.Env) -> gymnasium.Env:
    env.spec = make_host_walk().spec
    return env
