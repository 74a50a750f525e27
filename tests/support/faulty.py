"""An environment that returns what it should not, and the command line with it: `python faulty.py ddqn ...`."""

from __future__ import annotations

import math
import sys
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

STEPS = 8  # of an episode


@struct.dataclass
class FaultyState(environment.EnvState):
    time: jax.Array
    is_faulty: jax.Array  # whether this episode is


@struct.dataclass
class FaultyParams(environment.EnvParams):
    max_steps_in_episode: Any = STEPS
    share: Any = 1.0  # of episodes that are faulty
    at: Any = 5  # step of an episode that leads to the fault
    reward: Any = 1.0  # what a faulty episode returns there
    obs: Any = 0.0  # added to what a faulty episode shows there
    conflates: Any = False  # the time limit counts as the end of the task, too


class Faulty(environment.Environment):
    """Episodes of eight steps with one action that is worth something; observes the time and a constant."""

    def __init__(self, is_discrete: bool = True, **params: Any):
        self.is_discrete, self.params = is_discrete, params

    @property
    def default_params(self):
        return FaultyParams(**self.params)

    def step_env(self, key, state, action, params):
        worth = jnp.asarray(action, jnp.float32) if self.is_discrete else -jnp.sum(action**2)
        state = state.replace(time=state.time + 1)
        reward = jnp.where(state.is_faulty & (state.time == params.at), params.reward, worth)
        terminated = jnp.asarray(params.conflates) & (state.time >= params.max_steps_in_episode)
        return self.get_obs(state, params), state, reward, terminated, {}

    def reset_env(self, key, params):
        is_faulty = jax.random.uniform(key) < params.share
        state = FaultyState(time=jnp.zeros((), jnp.int32), is_faulty=is_faulty)
        return self.get_obs(state, params), state

    def get_obs(self, state, params=None, key=None):
        fault = jnp.where(state.is_faulty & (state.time == params.at), params.obs, 0.0)
        return jnp.stack([state.time / STEPS + fault, jnp.float32(1)])

    @property
    def name(self):
        return "Faulty"

    def action_space(self, params=None):
        return spaces.Discrete(2) if self.is_discrete else spaces.Box(-1.0, 1.0, (1,))


NAN = {
    "NoFault-v0": {"share": 0.0},
    "NaNReward-v0": {"reward": math.nan},
    "SomeNaNReward-v0": {"reward": math.nan, "share": 0.2},
    "InfReward-v0": {"reward": math.inf},
    "NaNObs-v0": {"obs": math.nan},
    "InfObs-v0": {"obs": math.inf},
    "Conflated-v0": {"share": 0.0, "conflates": True},
}
for _name, _params in NAN.items():
    if _name not in gymnax.registered_envs:
        gymnax.register(_name, lambda is_discrete=True, _params=_params: Faulty(is_discrete, **_params))


if __name__ == "__main__":
    from scripts import load_script

    sys.exit(load_script("train").main(sys.argv[1:]))
