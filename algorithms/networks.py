"""Networks on one unbatched observation, which may be any pytree; callers `vmap`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxrl_buffers.types import PyTree


class Torso(nn.Module):
    """Features of any pytree of observations: images pass through convolutions, all the rest is flattened.

    Leaves of rank 3 count as images `[height, width, channels]`; `uint8` ones are divided by 255.

    Args:
        hidden_sizes: widths of the dense layers.
        channels: channels of the 3x3 convolutions for images; `(16,)` is the network of MinAtar.
        activation: name of a function in `jax.nn`.

    Example:
        >>> torso = Torso(hidden_sizes=(64, 64))
        >>> obs = {"image": jnp.zeros((10, 10, 4), jnp.uint8), "speed": jnp.zeros(2)}
        >>> params = torso.init(jax.random.key(0), obs)
        >>> torso.apply(params, obs).shape
        (64,)
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    channels: tuple[int, ...] = (16,)
    activation: str = "relu"

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        activation = getattr(jax.nn, self.activation)
        features = []
        for leaf in map(_as_float, jax.tree.leaves(obs)):
            if leaf.ndim == 3:
                for size in self.channels:
                    leaf = activation(nn.Conv(size, (3, 3), padding="VALID")(leaf))
            features.append(leaf.reshape(-1))
        x = jnp.concatenate(features) if len(features) > 1 else features[0]
        for size in self.hidden_sizes:
            x = activation(nn.Dense(size)(x))
        return x


class QNetwork(nn.Module):
    """Values `float32[A]` of all discrete actions.

    With `dueling`, `Q(s, a) = V(s) + A(s, a) - mean_a A(s, a)`; Wang et al. (2016), https://arxiv.org/abs/1511.06581.
    """

    num_actions: int
    torso: Torso = Torso()
    dueling: bool = False

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        features = self.torso(obs)
        values = nn.Dense(self.num_actions)(features)
        if self.dueling:
            values = nn.Dense(1)(features) + values - jnp.mean(values)
        return values


class Critic(nn.Module):
    """The value `float32[]` of an observation and a continuous action in `[-1, 1]`."""

    torso: Torso = Torso()

    @nn.compact
    def __call__(self, obs: PyTree, action: jax.Array) -> jax.Array:
        return nn.Dense(1)(self.torso((obs, action)))[0]


class DeterministicActor(nn.Module):
    """One action `float32[A]` in `(-1, 1)`."""

    action_size: int
    torso: Torso = Torso()

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        return jnp.tanh(_small_head(self.action_size)(self.torso(obs)))


class ValueNetwork(nn.Module):
    """The value `float32[]` of an observation."""

    torso: Torso = Torso()

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        return nn.Dense(1)(self.torso(obs))[0]


class CategoricalActor(nn.Module):
    """Log-probabilities `float32[A]` of all discrete actions."""

    num_actions: int
    torso: Torso = Torso()

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        return jax.nn.log_softmax(_small_head(self.num_actions)(self.torso(obs)))


class GaussianActor(nn.Module):
    """Mean and logarithm of the standard deviation, `float32[A]` each, of a Gaussian policy."""

    action_size: int
    torso: Torso = Torso()

    @nn.compact
    def __call__(self, obs: PyTree) -> tuple[jax.Array, jax.Array]:
        mean, log_std = jnp.split(_small_head(2 * self.action_size)(self.torso(obs)), 2)
        return mean, log_std


def apply_batch(network: nn.Module, params: PyTree, *inputs: PyTree) -> Any:
    """Apply a network to every sample: inputs `[B, ...]`, outputs `[B, ...]`."""
    apply: Any = network.apply
    return jax.vmap(apply, in_axes=(None, *[0] * len(inputs)))(params, *inputs)


def apply_stack(network: nn.Module, params: PyTree, *inputs: PyTree) -> Any:
    """Apply `C` networks, whose parameters are stacked `[C, ...]`, to every sample: outputs `[C, B, ...]`."""
    return jax.vmap(lambda params: apply_batch(network, params, *inputs))(params)


def torso_features(network: Any, params: PyTree, obs: PyTree) -> jax.Array:
    """Return what the torso of a network makes of observations `[B, ...]`: features `float32[B, F]`."""
    return apply_batch(network.torso, {"params": params["params"].get("torso", {})}, obs)


def _small_head(size: int) -> nn.Dense:
    """A last layer with small first outputs: a policy begins near the middle of its bounds, nowhere saturated."""
    return nn.Dense(size, kernel_init=nn.initializers.orthogonal(0.01))


def _as_float(leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.float32) / 255 if leaf.dtype == jnp.uint8 else leaf.astype(jnp.float32)
