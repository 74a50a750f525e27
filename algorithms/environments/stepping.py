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

from typing import Any, NamedTuple

import jax
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from algorithms.environments import _gymnasium_spaces as spaces
from algorithms.environments.described import Finished, info_of
from jaxrl_buffers.types import PyTree, Transition


class Stepped(NamedTuple):
    """One step of `N` environments. All arrays are NumPy arrays."""

    transition: Transition  # [N, ...]
    finished: Finished  # [N]
    is_row: np.ndarray  # bool[N]; False where the step was only a reset


class Stepper:
    """`N` environments of Gymnasium, with the state of their episodes. Call `reset` before the first `step`.

    Args:
        vector: the environments.
        name: their name, for messages.
        info_names: names of the numbers in the environments' `info` that are stored with every step.

    Attributes:
        obs: the current observations `[N, ...]`, for which an agent chooses the next actions.
    """

    obs: PyTree
    num_envs: int

    def __init__(self, vector: VectorEnv[Any, Any, Any], name: str, info_names: tuple[str, ...] = ()):
        self.num_envs, self._name, self._info_names = vector.num_envs, name, info_names
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
        obs, _ = vector.reset(seed=seed)
        self.obs = self._encode(obs)
        self._is_reset = np.zeros(self.num_envs, bool)  # where the next step is only a reset
        self._return, self._length = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, np.int32)

    def step(self, action: np.ndarray) -> Stepped:
        """Take one step in every environment, given actions `[N, ...]` of an agent."""
        obs, reward, terminated, truncated, info = self._vector.step(spaces.decode_actions(self._actions, action))
        is_row = ~self._is_reset
        reward = np.asarray(reward, np.float32)
        terminated, truncated = (np.asarray(flag, bool) & is_row for flag in (terminated, truncated))
        ended = terminated | truncated
        following = self._encode(obs)
        next_obs = following
        if ended.any():
            next_obs, following = self._across_the_end(following, ended, info)
        told = info_of(self._name, self._info_names, info)
        extras = {"info": {name: np.array(value, np.float32) for name, value in told.items()}} if told else ()
        transition = Transition(self.obs, action, reward, terminated, truncated, next_obs, extras)
        self.obs = following
        if self._mode == AutoresetMode.NEXT_STEP:
            self._is_reset = ended
        return Stepped(transition, self._count(reward, ended, is_row), is_row)

    def close(self) -> None:
        """End the environments, and their processes if they have any."""
        self._vector.close()

    def _across_the_end(self, obs: PyTree, ended: np.ndarray, info: dict[str, Any]) -> tuple[PyTree, PyTree]:
        """Return `next_obs` of a step that ended episodes, and the observations for the next actions."""
        if self._mode == AutoresetMode.SAME_STEP:
            last = jax.tree.map(np.copy, obs)
            for index in np.flatnonzero(ended):
                _put(last, int(index), spaces.encode(self._space, info["final_obs"][index]))
            return last, obs
        if self._mode == AutoresetMode.DISABLED:
            fresh, _ = self._vector.reset(options={"reset_mask": ended})
            return obs, jax.tree.map(lambda new, old: np.where(_like(ended, old), new, old), self._encode(fresh), obs)
        return obs, obs

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
