"""One environment whose parameters make it any of several tasks with values known exactly.

All tasks are the same program, so an agent is compiled once and trained on all of them side by side.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

NEVER = 1_000


@struct.dataclass
class ProbeState(environment.EnvState):
    time: jax.Array
    sign: jax.Array  # 1 or -1, drawn anew for every episode


@struct.dataclass
class ProbeParams(environment.EnvParams):
    max_steps_in_episode: Any = NEVER  # the time limit
    length: Any = 1  # steps until the task is done
    constant: Any = 0.0  # the reward of the last step is the sum of these three
    by_observation: Any = 0.0
    by_action: Any = 0.0
    shows_time: Any = 0.0


class Probe(environment.Environment):
    """Observes `[sign, time]`; the action is worth most at 1 of 0, 1 (discrete) or at 0.5 (continuous)."""

    def __init__(self, is_discrete: bool):
        self.is_discrete = is_discrete

    @property
    def default_params(self):
        return ProbeParams()

    def step_env(self, key, state, action, params):
        worth = 2.0 * action - 1 if self.is_discrete else -jnp.sum((action - 0.5) ** 2)
        is_last = (state.time + 1 >= params.length) | (state.time + 1 >= params.max_steps_in_episode)
        reward = params.constant + params.by_observation * state.sign + params.by_action * worth
        state = ProbeState(time=state.time + 1, sign=state.sign)
        reward = jnp.where(is_last, reward, 0.0)
        return self.get_obs(state, params), state, reward, state.time >= params.length, {}

    def reset_env(self, key, params):
        sign = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
        state = ProbeState(time=jnp.zeros((), jnp.int32), sign=sign)
        return self.get_obs(state, params), state

    def get_obs(self, state, params=None, key=None):
        return jnp.stack([state.sign, params.shows_time * state.time.astype(jnp.float32)])

    @property
    def name(self):
        return "Probe"

    def action_space(self, params=None):
        return spaces.Discrete(2) if self.is_discrete else spaces.Box(-1.0, 1.0, (1,))


GAMMA = 0.9
PROBES = {
    "constant reward": ProbeParams(constant=1.0),
    "reward by observation": ProbeParams(by_observation=1.0),
    "delayed reward": ProbeParams(length=2, constant=1.0, shows_time=1.0),
    "reward by action": ProbeParams(by_action=1.0),
    "time limit": ProbeParams(length=NEVER, max_steps_in_episode=1, constant=1.0),
}


def stacked() -> ProbeParams:
    """Return the parameters of all probes, leaves `[P]`."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *PROBES.values())
