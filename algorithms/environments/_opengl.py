"""OpenGL without a window, for pictures by MuJoCo.

When MuJoCo is imported, it reads from the environment variable `MUJOCO_GL` which OpenGL to use. If the variable is not
set, MuJoCo looks for a display.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib
import os
import sys
from collections.abc import Generator

from jaxrl_buffers._checks import one_line

BACKENDS = {"egl": "EGL", "osmesa": "OSMesa"}  # values of MUJOCO_GL, with the libraries that they need
READERS = ("mujoco.rendering.classic.gl_context", "mujoco.gl_context")  # modules that read it, in new and old MuJoCo
ADVICE = "apt-get install libegl1 libgl1-mesa-dri, or libosmesa6 with MUJOCO_GL=osmesa"


@contextlib.contextmanager
def without_window(name: str) -> Generator[None]:
    """Within the block, let MuJoCo draw without a window. If OpenGL does not work, the error says what to install."""
    try:
        _choose()
        yield
    except Exception as error:
        # PyOpenGL, EGL, OSMesa, GLFW and MuJoCo raise different errors for this, even AttributeError.
        reason = one_line(error) or type(error).__name__
        chosen = os.environ.get("MUJOCO_GL", "unset")
        raise ValueError(
            f"{name} cannot be drawn: OpenGL does not work (MUJOCO_GL={chosen}: {reason}); install it, on Debian by "
            f"{ADVICE}."
        ) from error


def has_display() -> bool:
    """Return whether windows can be opened. Only Linux can be checked; the result is True on other systems."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _choose() -> None:
    """If there is no display, let MuJoCo draw without one, unless the user has set `MUJOCO_GL`."""
    if has_display() or os.environ.get("MUJOCO_GL"):
        return
    found = [name for name, library in BACKENDS.items() if ctypes.util.find_library(library)]
    if found:
        os.environ["MUJOCO_GL"] = found[0]
        for name in READERS:
            if name in sys.modules:
                importlib.reload(sys.modules[name])
