"""What hindsight needs from an environment, and the shared parts of environments with goals."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_buffers.types import Transition

Array = TypeVar("Array", np.ndarray, jax.Array)
T = TypeVar("T")


class Goal(NamedTuple):
    """How to replace the goal of a transition.

    Hindsight works with any gymnax environment that has an attribute `goal` of this type.

    Args:
        achieved: the path in a transition to the goal that the step achieved, such as `"next_obs.achieved_goal"`.
        relabel: `relabel(transition, goal) -> transition` for one unbatched transition; see `jaxrl_buffers.Hindsight`.
    """

    achieved: str
    relabel: Callable[[Transition, jax.Array], Transition]

    @staticmethod
    def is_reached(returns: Array, lengths: Array) -> Array:
        """Return in which episodes the goal was reached. In these episodes, not every step had the reward -1.

        Args:
            returns: sums of rewards, any shape.
            lengths: numbers of steps, of the same shape.
        """
        return returns > -lengths


def observation(current: T, goal: T) -> dict[str, T]:
    """Return an observation, or the space of one, under the keys of Gymnasium's environments with goals.

    Args:
        current: what the agent sees, which is also the goal that it has achieved.
        goal: the desired goal.
    """
    return {"observation": current, "achieved_goal": current, "desired_goal": goal}


def reward(reached: jax.Array) -> jax.Array:
    """Return 0 where the goal is reached, else -1."""
    return jnp.where(reached, jnp.float32(0), jnp.float32(-1))


def with_goal(transition: Transition, goal: jax.Array, reached: jax.Array) -> Transition:
    """Return an unbatched transition with another goal, and with the reward and `terminated` that belong to it.

    The goal is replaced in `obs` and in `next_obs`, because targets depend on the value of `next_obs`.

    Args:
        transition: one transition.
        goal: the new goal.
        reached: `bool[]`, whether the step reaches the new goal.
    """
    return transition._replace(
        obs={**transition.obs, "desired_goal": goal},
        next_obs={**transition.next_obs, "desired_goal": goal},
        reward=reward(reached),
        terminated=reached,
    )
