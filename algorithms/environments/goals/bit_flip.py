"""A task with goals: flip one bit in each step, until all bits equal those of the goal.

With n bits there are 2^n goals, and random actions almost never reach the desired one. So almost all rewards are -1,
and there is nothing to learn from without hindsight. Andrychowicz et al., Hindsight Experience Replay,
https://arxiv.org/abs/1707.01495
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from algorithms.environments._gymnax import Environment, environment, spaces
from algorithms.environments.goals.goal import Goal, observation, reward, with_goal
from jaxrl_buffers._checks import require_integer
from jaxrl_buffers.types import Transition

SIZES = (5, 10, 15, 20, 25, 30, 40, 50)  # numbers of bits that are registered by name, such as BitFlip15-v0


@struct.dataclass
class BitFlipState:
    """The current bits and the goal."""

    time: jax.Array  # int32[]
    bits: jax.Array  # float32[n], 0 or 1
    goal: jax.Array  # float32[n]


def is_reached(bits: jax.Array, goal: jax.Array) -> jax.Array:
    """Return whether all bits `[n]` equal those of the goal."""
    return jnp.all(bits == goal)


def relabel(transition: Transition, goal: jax.Array) -> Transition:
    """Return one unbatched transition as it would have been with another goal."""
    return with_goal(transition, goal, is_reached(transition.next_obs["achieved_goal"], goal))


@dataclasses.dataclass(frozen=True)
class BitFlip(Environment):
    """`n` bits, `n` actions, and at most `n` steps to reach a goal that is drawn uniformly.

    Action `i` flips bit `i`. The reward is -1, or 0 for the step that reaches the goal.

    Args:
        num_bits: `n`, the number of bits.

    Example:
        >>> from algorithms import environments
        >>> env = environments.make("BitFlip-v0", num_bits=6)
        >>> env.action_space, env.reset(jax.random.key(0), num_envs=2).obs["desired_goal"].shape
        (Discrete(num_actions=6), (2, 6))
    """

    num_bits: int = 8

    goal: ClassVar[Goal] = Goal("next_obs.achieved_goal", relabel)

    def __post_init__(self) -> None:
        require_integer("BitFlip", "num_bits", self.num_bits, 1)

    @property
    def default_params(self) -> environment.EnvParams:
        """The parameters, which hold the time limit of `n` steps."""
        return environment.EnvParams(max_steps_in_episode=self.num_bits)

    def step_env(self, key: jax.Array, state: BitFlipState, action: jax.Array, params: environment.EnvParams) -> Any:
        """Flip the bit with the index `action`."""
        bits = jnp.where(jnp.arange(self.num_bits) == action, 1 - state.bits, state.bits)
        state = BitFlipState(state.time + 1, bits, state.goal)
        reached = is_reached(bits, state.goal)
        return self.get_obs(state), state, reward(reached), reached, {}

    def reset_env(self, key: jax.Array, params: environment.EnvParams) -> Any:
        """Draw bits and a goal."""
        bits, goal = jax.random.bernoulli(key, shape=(2, self.num_bits)).astype(jnp.float32)
        state = BitFlipState(jnp.zeros((), jnp.int32), bits, goal)
        return self.get_obs(state), state

    def get_obs(
        self, state: BitFlipState, params: environment.EnvParams | None = None, key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """Return the bits as `observation` and `achieved_goal`, and the goal as `desired_goal`."""
        return observation(state.bits, state.goal)

    @property
    def name(self) -> str:
        """The name of the environment."""
        return f"BitFlip{self.num_bits}-v0"

    @property
    def num_actions(self) -> int:
        """The number of actions, one for each bit."""
        return self.num_bits

    def action_space(self, params: environment.EnvParams | None = None) -> spaces.Discrete:
        """Return the space of actions: the index of the bit to flip."""
        return spaces.Discrete(self.num_bits)

    def observation_space(self, params: environment.EnvParams | None = None) -> spaces.Dict:
        """Return the space of observations: three vectors of bits."""
        bits = spaces.Box(0.0, 1.0, (self.num_bits,))
        return spaces.Dict(observation(bits, bits))
