"""One small environment without chance, in Gymnasium's interface; `walk` has the same one in gymnax's.

A walker on a line steps to the right (1) or to the left (0). At 3 the task is done; after 5 steps the time is up. There
is no JAX in this file, so that processes that run the environment are ready soon.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv

GOAL, TIME_LIMIT = 3, 5


class HostWalk(gymnasium.Env):
    """A walker on a line."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.place = self.time = 0
        return self._obs(), {}

    def step(self, action):
        self.place, self.time = self.place + 2 * int(action) - 1, self.time + 1
        return self._obs(), float(self.place), self.place >= GOAL, self.time >= TIME_LIMIT, {}

    def _obs(self):
        return np.array([self.place, self.time], np.float32)


def make_vector(num_envs: int) -> SyncVectorEnv:
    """Return many."""
    return SyncVectorEnv([make_host_walk] * num_envs)


def make_host_walk() -> gymnasium.Env:
    """Return it with its time limit made known."""
    env = HostWalk()
    env.spec = gymnasium.envs.registration.EnvSpec("HostWalk-v0", max_episode_steps=TIME_LIMIT)
    return env
