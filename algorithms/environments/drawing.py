"""Pictures of environments that run inside the compiled program. No window is opened.

Environments of gymnax are drawn by gymnax's own functions, and environments of Brax by Brax's. An environment that a
user wrote is drawn by its method `render(state, params)`. This method returns a picture `uint8[H, W, 3]`, or a figure,
axes or image of matplotlib.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import gymnasium
import jax
import numpy as np

from algorithms.environments import _opengl as opengl
from algorithms.environments.environment import Environment
from algorithms.environments.masked import Masked
from jaxrl_buffers.types import PyTree

Draw = Callable[[PyTree], np.ndarray]  # from the state of one environment to a picture
DEFAULT_FPS = 10  # the frame rate of gymnax's own films
HEIGHT, WIDTH = 240, 320  # the size of pictures of Brax
QUIET = {"PYGAME_HIDE_SUPPORT_PROMPT": "1", "SDL_AUDIODRIVER": "dummy"}  # no banner, no search for a sound card


@runtime_checkable
class Named(Protocol):
    """An environment with a name. All environments of gymnax have one."""

    name: str


@runtime_checkable
class Drawable(Protocol):
    """An environment with its own method `render`."""

    def render(self, state: PyTree, params: PyTree) -> Any:
        """Return a picture `uint8[H, W, 3]`, or a figure, axes or an image of matplotlib."""
        ...


def drawer(env: Environment) -> tuple[Draw, int]:
    """Return a function that draws the state of one environment, and the number of pictures for one second.

    Raises:
        ValueError: if the environment cannot be drawn, or if a library for it is not installed.
    """
    inner = env.env.env if isinstance(env.env, Masked) else env.env
    # Compared by name, because this module can be imported only where Brax is installed.
    if type(inner).__module__ == "algorithms.environments.brax":
        return _of_brax(inner, env), round(1 / float(inner.env.dt))
    if isinstance(inner, Drawable):
        return lambda state: _picture(inner.render(state, env.params), env.name), DEFAULT_FPS
    return _of_gymnax(inner, env)


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Within the block, pygame starts without a banner and without sound. Without a display, it opens no window."""
    values = QUIET if opengl.has_display() else {**QUIET, "SDL_VIDEODRIVER": "dummy"}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


def _of_brax(inner: Any, env: Environment) -> Draw:
    from brax.envs.base import PipelineEnv
    from brax.io import image

    if not isinstance(inner.env, PipelineEnv):
        raise _no_drawing(env)
    system = inner.env.sys
    with opengl.without_window(env.name):
        image.render_array(system, [], HEIGHT, WIDTH)  # fails here, and not later, if nothing can be drawn
    return lambda state: image.render_array(system, [state.inner.pipeline_state], HEIGHT, WIDTH)[0]


def _of_gymnax(inner: Any, env: Environment) -> tuple[Draw, int]:
    """Return the drawing function of a gymnax environment, and its frame rate.

    Gymnasium draws the classic control tasks, and matplotlib draws MinAtar.
    """
    if not isinstance(inner, Named):
        raise _no_drawing(env)
    if inner.name.endswith("-MinAtar"):
        from gymnax.visualize import vis_minatar
        from matplotlib.figure import Figure

        def draw(state: PyTree) -> np.ndarray:
            figure = Figure((3, 3), layout="tight")
            vis_minatar.init_minatar(figure.add_subplot(), inner, state, env.params)
            return _picture(figure, env.name)

        return draw, DEFAULT_FPS
    from gymnax.visualize import vis_gym

    if inner.name not in vis_gym.SUPPORTED_GYM_ENVS:
        raise _no_drawing(env)
    if importlib.util.find_spec("pygame") is None:
        raise ValueError(f"{env.name} is drawn by pygame, which is not installed: pip install 'jaxrl-buffers[video]'.")
    return _of_classic(inner.name, env.params, vis_gym)


def _of_classic(name: str, params: PyTree, vis_gym: ModuleType) -> tuple[Draw, int]:
    """Return the drawing function of a task that Gymnasium has under the same name, and its frame rate."""
    twin = gymnasium.make(name, render_mode="rgb_array")
    twin.reset()
    unwrapped: Any = twin.unwrapped
    vis_gym.set_gym_params(unwrapped, name, params)
    twin.render()  # starts pygame

    def draw(state: PyTree) -> np.ndarray:
        unwrapped.state = vis_gym.get_gym_state(state, name)
        if name == "Pendulum-v1":
            unwrapped.last_u = np.asarray(state.last_u, np.float64)
        return np.asarray(twin.render())

    return draw, int(twin.metadata["render_fps"])


def _no_drawing(env: Environment) -> ValueError:
    return ValueError(
        f"{env.name} cannot be drawn: there is no drawing of it in gymnax or Brax, and it has no method `render(state, "
        "params)` that returns a picture."
    )


def _picture(value: object, name: str) -> np.ndarray:
    """Return the result of an environment's `render` as an array `uint8[H, W, 3]`."""
    if isinstance(value, (np.ndarray, jax.Array)):
        picture = np.asarray(value)
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[-1] != 3:
            raise ValueError(
                f"the `render` of {name} returned {picture.dtype}{list(picture.shape)}; a picture is uint8[H, W, 3]."
            )
        return picture
    import matplotlib.pyplot as plt
    from matplotlib.artist import Artist
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    part = value[0] if isinstance(value, tuple) and value else value
    figure: Any = part.get_figure() if isinstance(part, Artist) else None
    if figure is None:
        raise ValueError(f"the `render` of {name} returned {value!r}; it must return a picture uint8[H, W, 3].")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    plt.close(figure)
    return np.array(canvas.buffer_rgba())[..., :3]
