"""A task with goals: move a point in the plane to a small region, whose place is random in every episode."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from algorithms.environments._gymnax import Environment, environment, spaces
from algorithms.environments.goals.goal import Goal, observation, reward, with_goal
from jaxrl_buffers.types import Transition

RADIUS = 0.05  # the radius of the region that counts as the goal
SPEED = 0.1  # how far an action of 1 moves the point in a step, along each axis


@struct.dataclass
class PointReachState:
    """The position of the point and the goal, both in the square from -1 to 1."""

    time: jax.Array  # int32[]
    position: jax.Array  # float32[2]
    goal: jax.Array  # float32[2]


def is_reached(position: jax.Array, goal: jax.Array) -> jax.Array:
    """Return whether a position `[2]` is in the region around the goal `[2]`."""
    return jnp.sum((position - goal) ** 2) <= RADIUS**2


def relabel(transition: Transition, goal: jax.Array) -> Transition:
    """Return one unbatched transition as it would have been with another goal."""
    return with_goal(transition, goal, is_reached(transition.next_obs["achieved_goal"], goal))


@dataclasses.dataclass(frozen=True)
class PointReach(Environment):
    """A point has at most 50 steps to reach a goal. Start and goal are drawn uniformly from the square.

    The reward is -1, or 0 for the step that reaches the goal. An action is a velocity. The region around the goal is
    smaller than the largest step, so the point must slow down to hit it.

    Example:
        >>> from algorithms import environments
        >>> environments.make("PointReach-v0").action_space
        Box(low=(-1.0, -1.0), high=(1.0, 1.0))
    """

    goal: ClassVar[Goal] = Goal("next_obs.achieved_goal", relabel)

    @property
    def default_params(self) -> environment.EnvParams:
        """The parameters, which hold the time limit of 50 steps."""
        return environment.EnvParams(max_steps_in_episode=50)

    def step_env(self, key: jax.Array, state: PointReachState, action: jax.Array, params: environment.EnvParams) -> Any:
        """Move the point. It stops at the sides of the square."""
        position = jnp.clip(state.position + SPEED * jnp.clip(action, -1, 1), -1, 1)
        state = PointReachState(state.time + 1, position, state.goal)
        reached = is_reached(position, state.goal)
        return self.get_obs(state), state, reward(reached), reached, {}

    def reset_env(self, key: jax.Array, params: environment.EnvParams) -> Any:
        """Draw a start and a goal."""
        position, goal = jax.random.uniform(key, (2, 2), jnp.float32, -1, 1)
        state = PointReachState(jnp.zeros((), jnp.int32), position, goal)
        return self.get_obs(state), state

    def get_obs(
        self, state: PointReachState, params: environment.EnvParams | None = None, key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """Return the position as `observation` and `achieved_goal`, and the goal as `desired_goal`."""
        return observation(state.position, state.goal)

    @property
    def name(self) -> str:
        """The name of the environment."""
        return "PointReach-v0"

    def action_space(self, params: environment.EnvParams | None = None) -> spaces.Box:
        """Return the space of actions: velocities."""
        return spaces.Box(-1.0, 1.0, (2,))

    def observation_space(self, params: environment.EnvParams | None = None) -> spaces.Dict:
        """Return the space of observations: three points in the square."""
        point = spaces.Box(-1.0, 1.0, (2,))
        return spaces.Dict(observation(point, point))
