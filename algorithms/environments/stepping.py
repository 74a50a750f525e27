"""Steps in environments of Gymnasium, with the correct `next_obs` at the ends of episodes.

A row is one stored step. In the last row of an episode, `next_obs` is the last observation of the episode. It is never
the first observation of the next episode. A step that only resets an environment is not a row. Gymnasium's vectors of
environments end episodes in one of three ways:

* `SAME_STEP`: the vector resets in the step that ends an episode. The last observation is in `info["final_obs"]`.
* `DISABLED`: the vector does not reset. `Stepper` resets it, with `reset_mask`. Vectors made by this library are of
  this kind.
* `NEXT_STEP`: the step after the end is a reset, and ignores the action. `Stepped.is_row` is False for such a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any, NamedTuple

import jax
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from algorithms.environments import _gymnasium_spaces as spaces
from algorithms.environments import _vector_processes as vector_processes
from algorithms.environments.described import Finished
from jaxrl_buffers.types import PyTree, Transition


class Stepped(NamedTuple):
    """One step of `N` environments. All arrays are NumPy arrays."""

    transition: Transition  # [N, ...]
    finished: Finished  # [N]
    is_row: np.ndarray  # bool[N]; False where the step was only a reset


class FailedEnvironment(RuntimeError):
    """An environment failed in `reset` or `step`; the error of the environment is the cause."""


class Stepper:
    """`N` environments of Gymnasium, with the state of their episodes. Call `reset` before the first `step`.

    Args:
        vector: the environments.
        name: their name, for messages.
        info_names: names of the numbers in the environments' `info` that are stored with every step. A number that is
            not in the `info` of a step is NaN.

    Attributes:
        obs: the current observations `[N, ...]`, for which an agent chooses the next actions.
    """

    obs: PyTree
    num_envs: int

    def __init__(self, vector: VectorEnv[Any, Any, Any], name: str, info_names: tuple[str, ...] = ()):
        self.num_envs, self._name, self._info_names = vector.num_envs, name, info_names
        self._has_failed = False  # whether a call of the environments raised an error
        self._missing = set(info_names)  # names that no `info` has had so far
        self._vector, self._space, self._actions = vector, vector.single_observation_space, vector.single_action_space
        self._mode = vector.metadata.get("autoreset_mode")
        if not isinstance(self._mode, AutoresetMode):
            raise ValueError(
                f"{name} has autoreset_mode={self._mode!r} in its metadata, but one of Gymnasium's AutoresetMode is "
                "needed to know which observation is the last of an episode; set `metadata['autoreset_mode']`."
            )

    def reset(self, seed: int | list[int]) -> None:
        """Begin new episodes everywhere. Environment `i` gets the seed `seed + i`, or `seed[i]` if `seed` is a list."""
        vector: Any = self._vector  # its type allows one seed only, but Gymnasium's own vectors accept a list
        with self._explained("reset", "(obs, info)"):
            obs, _ = vector.reset(seed=seed)
        self.obs = self._encode(obs)
        self._is_reset = np.zeros(self.num_envs, bool)  # where the next step is only a reset
        self._return, self._length = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, np.int32)

    def step(self, action: np.ndarray) -> Stepped:
        """Take one step in every environment, given actions `[N, ...]` of an agent."""
        decoded = spaces.decode_actions(self._actions, action)
        with self._explained("step", "(obs, reward, terminated, truncated, info)"):
            obs, reward, terminated, truncated, info = self._vector.step(decoded)
        is_row = ~self._is_reset
        reward = np.asarray(reward, np.float32)
        terminated, truncated = (np.asarray(flag, bool) & is_row for flag in (terminated, truncated))
        ended = terminated | truncated
        following = self._encode(obs)
        next_obs = following
        if ended.any():
            next_obs, following = self._across_the_end(following, ended, info)
        extras = {"info": self._chosen(info, ended)} if self._info_names else ()
        transition = Transition(self.obs, action, reward, terminated, truncated, next_obs, extras)
        self.obs = following
        if self._mode == AutoresetMode.NEXT_STEP:
            self._is_reset = ended
        return Stepped(transition, self._count(reward, ended, is_row), is_row)

    def close(self) -> None:
        """End the environments, and their processes if they have any."""
        vector_processes.close(self._vector, self._has_failed)

    @contextlib.contextmanager
    def _explained(self, method: str, returned: str) -> Generator[None]:
        """Say which environment failed, by an error that the scripts show with the place in the user's code."""
        try:
            yield
        except BaseException as error:
            self._has_failed = True
            if isinstance(error, (EOFError, ConnectionError)):
                vector_processes.check(self._vector, self._name, method)
            if not isinstance(error, (ValueError, OSError, EOFError)):
                raise
            raise FailedEnvironment(
                f"{self._name} failed in `{method}`, which must return {returned}, with observations of the shape "
                f"{self._space.shape}: {error}"
            ) from error

    def _across_the_end(self, obs: PyTree, ended: np.ndarray, info: dict[str, Any]) -> tuple[PyTree, PyTree]:
        """Return `next_obs` of a step that ended episodes, and the observations for the next actions."""
        if self._mode == AutoresetMode.SAME_STEP:
            last = jax.tree.map(np.copy, obs)
            for index in np.flatnonzero(ended):
                _put(last, int(index), spaces.encode(self._space, info["final_obs"][index]))
            return last, obs
        if self._mode == AutoresetMode.DISABLED:
            with self._explained("reset", "(obs, info)"):
                fresh, _ = self._vector.reset(options={"reset_mask": ended})
            return obs, jax.tree.map(lambda new, old: np.where(_like(ended, old), new, old), self._encode(fresh), obs)
        return obs, obs

    def _chosen(self, info: dict[str, Any], ended: np.ndarray) -> dict[str, np.ndarray]:
        """Return the chosen numbers of an `info`, each `float32[N]`, with NaN where an environment did not give it."""
        chosen = {name: self._numbers(info, name) for name in self._info_names}
        if self._mode == AutoresetMode.SAME_STEP and ended.any():  # `info` is already that of the next episode
            last = info.get("final_info", {})
            chosen = {name: np.where(ended, self._numbers(last, name), values) for name, values in chosen.items()}
        self._missing -= {name for name, values in chosen.items() if not np.isnan(values).all()}
        if self._missing and ended.any():
            known = sorted(name for name in info if not name.startswith(("_", "final_")))
            raise ValueError(
                f"{self._name} gave no info {min(self._missing)!r} in a whole episode; it has: "
                f"{', '.join(known) or 'none'}."
            )
        return chosen

    def _numbers(self, info: dict[str, Any], name: str) -> np.ndarray:
        if name not in info:
            return np.full(self.num_envs, np.nan, np.float32)
        try:
            values = np.array(info[name], np.float32)
            return np.where(info.get(f"_{name}", True), values, np.float32(np.nan)).reshape(self.num_envs)
        except (TypeError, ValueError):
            raise ValueError(
                f"{self._name} has an info {name!r} that is not one number for each environment; leave it out."
            ) from None

    def _count(self, reward: np.ndarray, ended: np.ndarray, is_row: np.ndarray) -> Finished:
        """Add a step to the returns and lengths of all episodes, and return the episodes that ended."""
        self._return += np.where(is_row, reward, np.float32(0))
        self._length += is_row
        finished: Any = ended, np.where(ended, self._return, 0), np.where(ended, self._length, 0)
        self._return, self._length = np.where(ended, 0, self._return), np.where(ended, 0, self._length)
        return Finished(*finished)

    def _encode(self, obs: Any) -> PyTree:
        # Copied, because vectors may return the same memory in every step.
        return jax.tree.map(np.array, spaces.encode(self._space, obs))


def _put(values: PyTree, index: int, value: PyTree) -> None:
    """Write one observation into arrays of many observations."""
    for leaf, new in zip(jax.tree.leaves(values), jax.tree.leaves(value), strict=True):
        leaf[index] = new


def _like(flags: np.ndarray, leaf: np.ndarray) -> np.ndarray:
    """Return flags `[N]` with trailing axes of size 1, so that they have as many axes as a leaf."""
    return flags.reshape(-1, *[1] * (leaf.ndim - 1))
