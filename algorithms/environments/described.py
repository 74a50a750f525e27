"""What is known of every environment, wherever it is stepped."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from algorithms.environments.goals import Goal
from algorithms.environments.spaces import Space
from jaxrl_buffers.types import PyTree, Scalar, Transition


class Finished(NamedTuple):
    """Episodes that ended in one step; the other entries of the statistics are zero."""

    ended: jax.Array  # bool[N]
    episode_return: jax.Array  # float32[N]
    episode_length: jax.Array  # int32[N]


class Described(Protocol):
    """What agents, buffers and plans ask of an environment, without taking a step in it."""

    @property
    def name(self) -> str:
        """What to call it."""
        ...

    @property
    def obs(self) -> PyTree:
        """Shapes and dtypes of one observation."""
        ...

    @property
    def action_space(self) -> Space:
        """What an agent may do."""
        ...

    @property
    def max_episode_length(self) -> Scalar | None:
        """The time limit, if there is one that is known."""
        ...

    @property
    def goal(self) -> Goal | None:
        """What hindsight must know, if the environment tells."""
        ...

    def transition(self, extras: PyTree = ()) -> Transition:
        """Return the shapes and dtypes of one stored step."""
        ...


def transition_like(obs: PyTree, action_space: Space, extras: PyTree) -> Transition:
    """Return the shapes and dtypes of one stored step, given those of one observation and of what goes with it."""
    flag, reward = jax.ShapeDtypeStruct((), jnp.bool_), jax.ShapeDtypeStruct((), jnp.float32)
    return Transition(obs, action_space.example, reward, flag, flag, obs, extras)
