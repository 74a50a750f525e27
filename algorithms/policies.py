"""Stochastic policies for any action space, from a network to a distribution to the environment."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from algorithms.distributions import Categorical, Normal
from algorithms.networks import CategoricalActor, GaussianActor, Torso, apply_batch, init_network, torso_features
from algorithms.spaces import Discrete, Space
from jaxrl_buffers.types import PyTree


class Policy(NamedTuple):
    """A `Categorical` over discrete actions, or a `Normal` over continuous ones in `[-1, 1]`, clipped when taken.

    Example:
        >>> policy = Policy(Discrete(3), Torso((8,)))
        >>> params = policy.init(jax.random.key(0), jnp.zeros(4))
        >>> policy.distribution(params, jnp.zeros((5, 4))).mode().shape
        (5,)
    """

    space: Space
    torso: Torso

    def init(self, key: jax.Array, obs: PyTree) -> PyTree:
        """Return the parameters for observations like `obs`; consumes `key`."""
        return init_network(self._network, key, obs)

    def distribution(self, params: PyTree, obs: PyTree) -> Categorical | Normal:
        """Return the distributions at observations `[N, ...]`."""
        outputs = apply_batch(self._network, params, obs)
        return Categorical(outputs) if isinstance(self.space, Discrete) else Normal.of(*outputs)

    def features(self, params: PyTree, obs: PyTree) -> jax.Array:
        """Return the features `float32[B, F]` below the policy."""
        return torso_features(self._network, params, obs)

    def to_environment(self, action: jax.Array) -> jax.Array:
        """Translate drawn actions to what the environment takes."""
        return action if isinstance(self.space, Discrete) else self.space.scale(jnp.clip(action, -1, 1))

    @property
    def _network(self) -> CategoricalActor | GaussianActor:
        if isinstance(self.space, Discrete):
            return CategoricalActor(self.space.num_actions, self.torso)
        return GaussianActor(self.space.size, self.torso)
