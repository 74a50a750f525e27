"""One environment that can be drawn, compiled or on the host."""

from __future__ import annotations

import sys
from typing import Protocol

import gymnasium
import jax
import numpy as np

from algorithms.environments import Described, Environment, Finished, drawing
from algorithms.environments import _opengl as opengl
from algorithms.environments.gymnasium import HostEnvironment
from algorithms.environments.stepping import Stepper
from algorithms.runs.host_evaluation import seed_of
from jaxrl_buffers._checks import one_line
from jaxrl_buffers.types import PyTree


class Stage(Protocol):
    """One environment in the middle of an episode."""

    @property
    def obs(self) -> PyTree:
        """The present observation, `[1, ...]`."""
        ...

    @property
    def fps(self) -> int:
        """How many steps a second of film shows."""
        ...

    def draw(self) -> np.ndarray:
        """Return a picture `uint8[H, W, 3]`."""
        ...

    def step(self, action: jax.Array, keys: jax.Array) -> Finished:
        """Take a step, given an action `[1, ...]`; consumes `keys`, `[1]`."""
        ...

    def close(self) -> None:
        """End the environment."""
        ...


def make(env: Described, key: jax.Array) -> Stage:
    """Begin an episode; consumes `key`.

    Raises:
        ValueError: if the environment cannot be drawn.
    """
    with drawing.quiet():
        if isinstance(env, HostEnvironment):
            return _OnHost(env, key)
        assert isinstance(env, Environment)
        return _Compiled(env, key)


class _Compiled:
    """An environment inside the compiled program, stepped one by one."""

    def __init__(self, env: Environment, key: jax.Array):
        self._draw, self.fps = drawing.drawer(env)
        self._step, self._state = jax.jit(env.step), env.reset(key, 1)

    @property
    def obs(self) -> PyTree:
        return self._state.obs

    def draw(self) -> np.ndarray:
        return self._draw(jax.tree.map(lambda leaf: leaf[0], self._state.inner))

    def step(self, action: jax.Array, keys: jax.Array) -> Finished:
        self._state, _, finished = self._step(self._state, action, keys)
        return finished

    def close(self) -> None:
        pass


class _OnHost:
    """An environment of Gymnasium."""

    def __init__(self, env: HostEnvironment, key: jax.Array):
        self._vector = (env.make_tests or env.make_vector)(1, render_mode="rgb_array")
        try:
            self._steps = Stepper(self._vector, env.name)
            self._steps.reset(seed_of(key))
            self.fps = int(self._vector.metadata.get("render_fps", drawing.DEFAULT_FPS))
            self._check(env.name)
        except BaseException:
            self.close()
            raise

    @property
    def obs(self) -> PyTree:
        return self._steps.obs

    def draw(self) -> np.ndarray:
        pictures = self._vector.render()
        return np.asarray(pictures[0] if isinstance(pictures, (tuple, list)) else pictures)

    def step(self, action: jax.Array, keys: jax.Array) -> Finished:
        return self._steps.step(np.asarray(action)).finished

    def close(self) -> None:
        self._vector.close()

    def _check(self, name: str) -> None:
        """Refuse an environment that cannot be drawn, by drawing it once."""
        if self._vector.render_mode != "rgb_array":
            raise ValueError(
                f"{name} cannot be drawn: the function that makes it must take `render_mode` and hand it on to "
                "gymnasium.make."
            )
        try:
            if "mujoco" in sys.modules:
                with opengl.without_window(name):
                    picture = self.draw()
            else:
                picture = self.draw()
        except gymnasium.error.Error as error:
            raise ValueError(f"{name} cannot be drawn: {one_line(error)}") from error
        if picture.ndim != 3:
            raise ValueError(f"{name} cannot be drawn: its render() returned no picture, but {picture!r}.")
