"""What hindsight must know about an environment, and what goal environments have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_buffers.types import Transition

Array = TypeVar("Array", np.ndarray, jax.Array)


class Goal(NamedTuple):
    """How another goal is put into a transition.

    Any gymnax environment with such an attribute `goal` can be learned in hindsight.

    Args:
        achieved: where the goal that a step achieved is found, such as `"next_obs.achieved_goal"`.
        relabel: `relabel(transition, goal) -> transition` for one unbatched transition; see `jaxrl_buffers.Hindsight`.
    """

    achieved: str
    relabel: Callable[[Transition, jax.Array], Transition]

    @staticmethod
    def is_reached(returns: Array, lengths: Array) -> Array:
        """Tell in which episodes the goal was reached: those in which not every step was worth -1.

        Args:
            returns: sums of rewards, any shape.
            lengths: numbers of steps, the same shape.
        """
        return returns > -lengths


def reward(reached: jax.Array) -> jax.Array:
    """Return 0 where the goal is reached, else -1."""
    return jnp.where(reached, jnp.float32(0), jnp.float32(-1))


def with_goal(transition: Transition, goal: jax.Array, reached: jax.Array) -> Transition:
    """Return an unbatched transition with another goal, which it reaches or not.

    It also takes its place in `next_obs`, from which targets are bootstrapped.
    """
    return transition._replace(
        obs={**transition.obs, "desired_goal": goal},
        next_obs={**transition.next_obs, "desired_goal": goal},
        reward=reward(reached),
        terminated=reached,
    )
