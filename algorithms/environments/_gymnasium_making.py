"""How one Gymnasium environment is made: quietly, and for Atari with gray frames.

There is no JAX in this file. Processes that step environments get these functions by value, so they need nothing of
this package.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import signal
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

ATARI = "ALE/"  # how the ids of its games begin
ATARI_SIZE = 84  # height and width of the frames that agents see


def make(name: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """Return what `gymnasium.make` does, without what libraries print and write of their own accord."""
    spec = gymnasium.registry.get(name)
    if spec is not None and str(spec.entry_point).startswith("gymnasium.envs.mujoco"):
        _quiet_mujoco()
    return gymnasium.make(name, **options)


def make_atari(name: str, frame_skip: int, **options: Any) -> gymnasium.Env[Any, Any]:
    """Return a game whose frames are gray, 84 x 84."""
    ale_py: Any = importlib.import_module("ale_py")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # else every game prints who made it
    gymnasium.register_envs(ale_py)
    env = gymnasium.make(name, frameskip=1, **options)
    return gymnasium.wrappers.AtariPreprocessing(env, frame_skip=frame_skip, screen_size=ATARI_SIZE)


def stacked(make_one: Callable[..., gymnasium.Env[Any, Any]], size: int, **options: Any) -> gymnasium.Env[Any, Any]:
    """Put observations together along a new last axis; Gymnasium itself makes it the first one."""
    env = gymnasium.wrappers.FrameStackObservation(make_one(**options), size)
    space = env.observation_space
    if not isinstance(space, gymnasium.spaces.Box):
        raise ValueError(f"environment(frame_stack={size}): {env} shows {space}; only arrays can be stacked.")
    low, high = (np.moveaxis(bound, 0, -1) for bound in (space.low, space.high))
    moved = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)
    return gymnasium.wrappers.TransformObservation(env, lambda frames: np.moveaxis(frames, 0, -1), moved)


def in_process(make_one: Callable[..., gymnasium.Env[Any, Any]], **options: Any) -> gymnasium.Env[Any, Any]:
    """Make an environment in a process of its own, which leaves it to its parent to answer Ctrl-C."""
    if multiprocessing.parent_process() is not None:  # the parent makes one, too, to see what it shows
        for name in ("SIGINT", "SIGHUP"):  # the latter is unknown to Windows
            if (number := getattr(signal, name, None)) is not None:
                signal.signal(number, signal.SIG_IGN)
    return make_one(**options)


def _quiet_mujoco() -> None:
    """Show MuJoCo's warnings where Python's go, but for those about old models; else it also writes MUJOCO_LOG.TXT."""
    if importlib.util.find_spec("mujoco") is None:  # which Gymnasium explains
        return
    mujoco: Any = importlib.import_module("mujoco")
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_show_warning)


def _show_warning(text: str) -> None:
    if "deprecated" not in text:
        sys.stderr.write(f"MuJoCo: {' '.join(text.split())}\n")
