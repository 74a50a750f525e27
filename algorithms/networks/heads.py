"""Networks with a head on top of a torso.

Each network takes one unbatched observation. For batches use `apply_batch` and `apply_stack` of `algorithms.networks`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from algorithms.networks.torsos import Torso
from jaxrl_buffers._xla import narrow_product, one_by_one
from jaxrl_buffers.types import PyTree


class QNetwork(nn.Module):
    """Values `float32[A]` of all discrete actions.

    With `dueling`, `Q(s, a) = V(s) + A(s, a) - mean_a A(s, a)`; Wang et al. (2016), https://arxiv.org/abs/1511.06581.
    """

    num_actions: int
    torso: Torso = Torso()
    dueling: bool = False

    role = "critic"

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        features = self.torso(obs)
        values = _head(self.num_actions)(features)
        if self.dueling:
            values = _head(1)(features) + values - jnp.mean(values, axis=-1, keepdims=True)
        return values


class Critic(nn.Module):
    """The value `float32[]` of an observation and a continuous action in `[-1, 1]`."""

    torso: Torso = Torso()

    role = "critic"

    @nn.compact
    def __call__(self, obs: PyTree, action: jax.Array) -> jax.Array:
        return _head(1)(self.torso(obs, action))[..., 0]


class DeterministicActor(nn.Module):
    """One action `float32[A]` in `(-1, 1)`."""

    action_size: int
    torso: Torso = Torso()

    role = "actor"

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        return jnp.tanh(_small_head(self.action_size)(self.torso(obs)))


class ValueNetwork(nn.Module):
    """The value `float32[]` of an observation."""

    torso: Torso = Torso()

    role = "critic"

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        return _head(1)(self.torso(obs))[..., 0]


class CategoricalActor(nn.Module):
    """Log-probabilities `float32[A]` of all discrete actions."""

    num_actions: int
    torso: Torso = Torso()

    role = "actor"

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        return jax.nn.log_softmax(_small_head(self.num_actions)(self.torso(obs)))


class GaussianActor(nn.Module):
    """Mean and logarithm of the standard deviation, `float32[A]` each, of a Gaussian policy."""

    action_size: int
    torso: Torso = Torso()

    role = "actor"

    @nn.compact
    def __call__(self, obs: PyTree) -> tuple[jax.Array, jax.Array]:
        mean, log_std = jnp.split(_small_head(2 * self.action_size)(self.torso(obs)), 2, axis=-1)
        return mean, log_std


def _small_head(size: int) -> nn.Dense:
    """Return a last layer with small weights, so that a new policy acts near the middle of its bounds."""

    def init(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
        return one_by_one(lambda key: nn.initializers.orthogonal(0.01)(key, shape, dtype))(key)

    return _head(size, kernel_init=init)


def _head(size: int, **options: Any) -> nn.Dense:
    """Return a last layer."""
    return nn.Dense(size, dot_general=narrow_product, **options)
