"""Functions that make one Gymnasium environment without unwanted output. Atari games get gray frames.

This file does not use JAX. Processes that step environments get these functions by value, so they do not import this
package.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

ATARI = "ALE/"  # the ids of Atari games begin with this
ATARI_SIZE = 84  # height and width of the frames that agents see


def make(name: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """Return `gymnasium.make(name, **options)`, without the messages and log files of other libraries."""
    # Without a version, a name means the newest one.
    specs = [spec for known, spec in gymnasium.registry.items() if known == name or known.startswith(f"{name}-v")]
    if any(str(spec.entry_point).startswith("gymnasium.envs.mujoco") for spec in specs):
        _quiet_mujoco()
    with warnings.catch_warnings(record=True, action="always") as caught:
        env = gymnasium.make(name, **options)  # if it fails, its error says enough
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return env


def newest(name: str) -> str | None:
    """Return the newest version of an environment; None if `name` is that, or has no version."""
    family, mark, version = name.rpartition("-v")
    others = [spec.version for spec in gymnasium.registry.values() if mark and spec.id.rpartition("-v")[0] == family]
    most = max((other for other in others if other is not None), default=0)
    return f"{family}-v{most}" if version.isdecimal() and int(version) < most else None


def is_atari_game(name: str) -> bool:
    """Return whether there is a game of Atari of this name, without version."""
    _register_atari()
    return f"{ATARI}{name}-v5" in gymnasium.registry


def _register_atari() -> None:
    ale_py: Any = importlib.import_module("ale_py")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # otherwise every game prints a banner
    gymnasium.register_envs(ale_py)


def make_atari(name: str, frame_skip: int, has_channel: bool, **options: Any) -> gymnasium.Env[Any, Any]:
    """Return a game whose frames are gray, 84 x 84, with or without an axis of one channel."""
    _register_atari()
    env = gymnasium.make(name, frameskip=1, **options)
    return gymnasium.wrappers.AtariPreprocessing(
        env, frame_skip=frame_skip, screen_size=ATARI_SIZE, grayscale_newaxis=has_channel
    )


def stacked(make_one: Callable[..., gymnasium.Env[Any, Any]], size: int, **options: Any) -> gymnasium.Env[Any, Any]:
    """Return an environment whose observations are the last `size` ones, stacked along a new last axis.

    Gymnasium stacks along a new first axis.
    """
    env = gymnasium.wrappers.FrameStackObservation(make_one(**options), size)
    space = env.observation_space
    if not isinstance(space, gymnasium.spaces.Box):
        raise ValueError(
            f"environment(frame_stack={size}): observations of {env} are {space}, and only arrays can be stacked; "
            "leave `frame_stack` out."
        )
    low, high = (np.moveaxis(bound, 0, -1) for bound in (space.low, space.high))
    moved = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)
    return gymnasium.wrappers.TransformObservation(env, lambda frames: np.moveaxis(frames, 0, -1), moved)


def in_process(make_one: Callable[..., gymnasium.Env[Any, Any]], **options: Any) -> gymnasium.Env[Any, Any]:
    """Make an environment in its own process. The process ignores Ctrl-C, which its parent handles."""
    if multiprocessing.parent_process() is not None:  # the parent process also makes one, to read its spaces
        for name in ("SIGINT", "SIGHUP"):  # Windows has no SIGHUP
            if (number := getattr(signal, name, None)) is not None:
                signal.signal(number, signal.SIG_IGN)
    return make_one(**options)


def _quiet_mujoco() -> None:
    """Write MuJoCo's warnings to `stderr`, except those about old models, instead of to MUJOCO_LOG.TXT."""
    if importlib.util.find_spec("mujoco") is None:  # Gymnasium says what is missing
        return
    mujoco: Any = importlib.import_module("mujoco")
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_show_warning)


def _show_warning(text: str) -> None:
    if "deprecated" not in text:
        sys.stderr.write(f"MuJoCo: {' '.join(text.split())}\n")
