"""Tasks that need a memory: environments that hide some components of their observations.

Importing this file registers `MaskedCartPole-v1` and `MaskedPendulum-v1` with gymnax. They show positions, and hide
velocities.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.environments._gymnax import Environment, gymnax, spaces
from jaxrl_buffers.types import PyTree


@dataclasses.dataclass(frozen=True)
class Masked(Environment):
    """An environment that shows only some components of the observations of another environment.

    Args:
        env: a gymnax environment with vectors as observations.
        kept: the indices of the components that agents see.

    Example:
        >>> from algorithms import environments
        >>> env = environments.wrap(Masked(gymnax.make("CartPole-v1")[0], kept=(0, 2)))
        >>> env.obs.shape
        (2,)
    """

    env: Any
    kept: tuple[int, ...]

    def __post_init__(self) -> None:
        space = self.env.observation_space(self.env.default_params)
        size = int(np.prod(space.shape))
        if len(space.shape) != 1 or not self.kept or not all(0 <= index < size for index in self.kept):
            raise ValueError(
                f"Masked(kept={self.kept}): observations of {self.env.name} have the shape {space.shape}; name at "
                "least one component of a vector, counted from 0."
            )

    @property
    def wrapped(self) -> Any:
        """The environment inside, which gets the keys."""
        return self.env

    @property
    def default_params(self) -> Any:
        """The parameters of the environment inside."""
        return self.env.default_params

    def step_env(self, key: jax.Array, state: PyTree, action: PyTree, params: PyTree) -> Any:
        """Take a step, and return only the components in `kept` of the next observation."""
        obs, *others = self.env.step_env(key, state, action, params)
        return self._mask(obs), *others

    def reset_env(self, key: jax.Array, params: PyTree) -> Any:
        """Begin an episode."""
        obs, state = self.env.reset_env(key, params)
        return self._mask(obs), state

    def is_truncated(self, state: PyTree, params: PyTree) -> jax.Array:
        """Return whether the time limit is reached."""
        return self.env.is_truncated(state, params)

    def get_obs(self, state: PyTree, params: PyTree = None, key: jax.Array | None = None) -> jax.Array:
        """Return the components in `kept` of the observation."""
        return self._mask(self.env.get_obs(state, params, key))

    @property
    def name(self) -> str:
        """The name of the environment inside, with `Masked` before it."""
        return f"Masked{self.env.name}"

    @property
    def num_actions(self) -> int:
        """The number of actions of the environment inside."""
        return self.env.num_actions

    def action_space(self, params: PyTree = None) -> Any:
        """Return the space of actions of the environment inside."""
        return self.env.action_space(params)

    def observation_space(self, params: PyTree = None) -> spaces.Box:
        """Return the space of observations, with the bounds of the components in `kept`."""
        space = self.env.observation_space(params)
        low, high = (self._mask(jnp.broadcast_to(bound, space.shape)) for bound in (space.low, space.high))
        return spaces.Box(low, high, (len(self.kept),), space.dtype)

    def _mask(self, obs: jax.Array) -> jax.Array:
        return obs[jnp.array(self.kept)]


gymnax.register("MaskedCartPole-v1", lambda: Masked(gymnax.make("CartPole-v1")[0], kept=(0, 2)))
gymnax.register("MaskedPendulum-v1", lambda: Masked(gymnax.make("Pendulum-v1")[0], kept=(0, 1)))
