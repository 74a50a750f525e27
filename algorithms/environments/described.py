"""What every environment offers, both inside the compiled program and on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from algorithms.environments.goals import Goal
from algorithms.environments.spaces import Space
from jaxrl_buffers.types import PyTree, Scalar, Transition


class Finished(NamedTuple):
    """The episodes that ended in one step. Return and length are zero where `ended` is False."""

    ended: jax.Array  # bool[N]
    episode_return: jax.Array  # float32[N]
    episode_length: jax.Array  # int32[N]


class Described(Protocol):
    """What agents, buffers and plans need to know about an environment. None of it takes a step."""

    @property
    def name(self) -> str:
        """The name of the environment, for messages."""
        ...

    @property
    def obs(self) -> PyTree:
        """Shapes and dtypes of one observation."""
        ...

    @property
    def action_space(self) -> Space:
        """The space of actions."""
        ...

    @property
    def max_episode_length(self) -> Scalar | None:
        """The largest number of steps in an episode; None if it is not known."""
        ...

    @property
    def goal(self) -> Goal | None:
        """What hindsight needs; None if the environment has no goals."""
        ...

    def transition(self, extras: PyTree = ()) -> Transition:
        """Return the shapes and dtypes of one stored step. `extras` are the shapes and dtypes of the agent's extras."""
        ...


def transition_like(obs: PyTree, action_space: Space, extras: PyTree) -> Transition:
    """Return the shapes and dtypes of one stored step, from the shapes and dtypes of its parts."""
    flag, reward = jax.ShapeDtypeStruct((), jnp.bool_), jax.ShapeDtypeStruct((), jnp.float32)
    return Transition(obs, action_space.example, reward, flag, flag, obs, extras)


def info_like(names: Sequence[str]) -> PyTree:
    """Return the shapes and dtypes of the numbers of an environment's `info` that are stored with a step."""
    return {"info": {name: jax.ShapeDtypeStruct((), jnp.float32) for name in names}} if names else ()


def with_info(extras: PyTree, info: PyTree) -> PyTree:
    """Return the extras to store with a step: the agent's extras, and the environment's numbers under `info`."""
    if not info:
        return extras
    return info if extras == () else {**extras, **info}


def info_of(name: str, names: Sequence[str], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chosen entries of an `info`; refuse names that are not in it."""
    if missing := [one for one in names if one not in known]:
        there = ", ".join(sorted(one for one in known if not one.startswith(("_", "final_"))))
        raise ValueError(f"not every step of {name} has the info {missing[0]!r}; choose from: {there or 'none'}.")
    return {one: known[one] for one in names}
