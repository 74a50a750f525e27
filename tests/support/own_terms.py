"""An environment of Gymnasium whose spaces are not those of agents."""

from __future__ import annotations

import gymnasium
import numpy as np

CHOICE, CHOICES = gymnasium.spaces.Discrete(4, start=-1), gymnasium.spaces.MultiDiscrete([3, 2])
LATER = gymnasium.spaces.Discrete(2, start=5)
TABLE = gymnasium.spaces.Box(np.float32([[-1, 0], [0, 0]]), np.float32([[1, 2], [1, 1]]))


class OwnTerms(gymnasium.Env):
    """Shows samples of its space, for episodes of five steps."""

    observation_space = gymnasium.spaces.Dict(
        {"choice": CHOICE, "choices": CHOICES, "place": gymnasium.spaces.Box(-1, 1, (2,), np.float32)}
    )

    def __init__(self, action_space: gymnasium.Space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert action in self.action_space
        return self.observation_space.sample(), 1.0, False, False, {}


def later() -> gymnasium.Env:
    """Return one with the actions 5 and 6."""
    return gymnasium.wrappers.TimeLimit(OwnTerms(LATER), 5)


def table() -> gymnasium.Env:
    """Return one whose actions are tables of two rows."""
    return gymnasium.wrappers.TimeLimit(OwnTerms(TABLE), 5)


def collected(env: gymnasium.Env, num_rows: int, **changes) -> dict:
    """Return steps in Gymnasium's own terms, under D4RL's keys."""
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    rows = []
    for _ in range(num_rows):
        action = env.action_space.sample()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, reward, terminated, truncated, next_obs))
        obs = env.reset()[0] if terminated or truncated else next_obs
    names = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    return {name: _stacked(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)} | changes


def _stacked(values):
    if isinstance(values[0], dict):
        return {name: _stacked([value[name] for value in values]) for name in values[0]}
    return np.stack([np.asarray(value) for value in values])
