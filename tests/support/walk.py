"""One small environment without chance, in gymnax's interface; `host_walk` has the same one in Gymnasium's.

A walker on a line steps to the right (1) or to the left (0). At 3 the task is done; after 5 steps the time is up.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces
from support.host_walk import GOAL, TIME_LIMIT


@struct.dataclass
class WalkState(environment.EnvState):
    time: jax.Array
    place: jax.Array


@struct.dataclass
class WalkParams(environment.EnvParams):
    max_steps_in_episode: int = TIME_LIMIT


class Walk(environment.Environment):
    """A walker on a line."""

    @property
    def default_params(self):
        return WalkParams()

    def step_env(self, key, state, action, params):
        state = WalkState(time=state.time + 1, place=state.place + 2 * action - 1)
        return self.get_obs(state), state, state.place.astype(jnp.float32), state.place >= GOAL, {}

    def reset_env(self, key, params):
        state = WalkState(time=jnp.zeros((), jnp.int32), place=jnp.zeros((), jnp.int32))
        return self.get_obs(state), state

    def get_obs(self, state, params=None, key=None):
        return jnp.stack([state.place, state.time]).astype(jnp.float32)

    @property
    def name(self):
        return "Walk"

    def action_space(self, params=None):
        return spaces.Discrete(2)
