"""OpenGL where there is no window, which MuJoCo draws by.

MuJoCo reads which OpenGL to use from `MUJOCO_GL` when it is imported, and looks for a display if it is not set.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib
import os
import sys
from collections.abc import Generator

BACKENDS = {"egl": "EGL", "osmesa": "OSMesa"}  # values of MUJOCO_GL, with the libraries that they need
READERS = ("mujoco.rendering.classic.gl_context", "mujoco.gl_context")  # modules that read it, new and old
ADVICE = "apt-get install libegl1 libgl1-mesa-dri, or libosmesa6 with MUJOCO_GL=osmesa"


@contextlib.contextmanager
def without_window(name: str) -> Generator[None]:
    """Within the block, let MuJoCo draw without a window; say what to install where there is no OpenGL."""
    try:
        _choose()
        yield
    except Exception as error:
        # PyOpenGL, EGL, OSMesa, GLFW and MuJoCo each have errors of their own for this, down to AttributeError.
        reason = " ".join(str(error).split()) or type(error).__name__
        chosen = os.environ.get("MUJOCO_GL", "unset")
        raise ValueError(
            f"{name} cannot be drawn: OpenGL does not work (MUJOCO_GL={chosen}: {reason}); install it, on Debian by "
            f"{ADVICE}."
        ) from error


def has_display() -> bool:
    """Tell whether windows could be opened; elsewhere than on Linux nobody knows beforehand."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _choose() -> None:
    """Let MuJoCo draw without a display where there is none, unless the user has chosen."""
    if has_display() or os.environ.get("MUJOCO_GL"):
        return
    found = [name for name, library in BACKENDS.items() if ctypes.util.find_library(library)]
    if found:
        os.environ["MUJOCO_GL"] = found[0]
        for name in READERS:
            if name in sys.modules:
                importlib.reload(sys.modules[name])
