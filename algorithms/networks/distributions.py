"""Distributions over actions.

`Categorical` and `Normal` may have any leading axes before the axis of the action. `TanhNormal` is the distribution of
one unbatched action. Callers `vmap` its methods.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_buffers._random.hashing import unrolled

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0

_LOG_2_PI = math.log(2 * math.pi)


class TanhNormal(NamedTuple):
    """The distribution of `a = tanh(u)` with `u ~ N(mean, std)`. Components are independent and in `(-1, 1)`.

        log p(a) = sum_i [log N(u_i; mean_i, std_i) - 2 (log 2 - u_i - softplus(-2 u_i))]

    The last term equals `log(1 - tanh(u)^2)`. In this form it is precise even where `tanh` is almost 1 or -1.

    Example:
        >>> policy = TanhNormal.of(jnp.zeros(2), jnp.zeros(2))
        >>> action, log_prob = policy.sample_and_log_prob(jax.random.key(0))
        >>> print(jnp.allclose(log_prob, policy.log_prob(action), atol=1e-5))
        True
    """

    mean: jax.Array  # float32[A]
    log_std: jax.Array  # float32[A]

    @classmethod
    def of(cls, mean: jax.Array, log_std: jax.Array) -> TanhNormal:
        """Return the distribution for a network's outputs, with `log_std` clipped to `[-20, 2]`."""
        return cls(mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))

    def mode(self) -> jax.Array:
        """Return `tanh(mean)`, `float32[A]`."""
        return jnp.tanh(self.mean)

    def sample(self, key: jax.Array) -> jax.Array:
        """Draw an action `float32[A]`; consumes `key`."""
        return self.sample_and_log_prob(key)[0]

    def sample_and_log_prob(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draw an action `float32[A]`, and return its log-density `float32[]`, too; consumes `key`.

        Gradients with respect to `mean` and `log_std` pass through both.
        """
        return self.transform(jax.random.normal(unrolled(key), self.mean.shape, jnp.float32))

    def transform(self, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Turn standard normal noise `float32[A]` into an action and its log-density."""
        before = self.mean + jnp.exp(self.log_std) * noise
        return jnp.tanh(before), self._log_density(noise, before)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return the log-density `float32[]` of an action in `(-1, 1)`."""
        before = jnp.arctanh(action)
        return self._log_density((before - self.mean) * jnp.exp(-self.log_std), before)

    def kl(self, other: TanhNormal) -> jax.Array:
        """Return `KL(self || other)` of each component, `float32[..., A]`, for fields with any leading axes.

        It is the divergence of the two normal distributions, because applying `tanh` to both does not change it.
        """
        return Normal(*self).kl(Normal(*other))

    def _log_density(self, noise: jax.Array, before: jax.Array) -> jax.Array:
        normal = -0.5 * (noise**2 + jnp.log(2 * jnp.pi).astype(jnp.float32)) - self.log_std
        squash = 2 * (jnp.log(2.0).astype(jnp.float32) - before - jax.nn.softplus(-2 * before))
        return jnp.sum(normal - squash)


class Normal(NamedTuple):
    """A Gaussian with independent components `[..., A]`. Draws may be outside of `[-1, 1]`.

    Example:
        >>> policy = Normal.of(jnp.zeros(2), jnp.zeros(2))
        >>> print(policy.log_prob(jnp.zeros(2)), policy.mode())
        -1.837877 [0. 0.]
    """

    mean: jax.Array  # float32[..., A]
    log_std: jax.Array  # float32[..., A]

    @classmethod
    def of(cls, mean: jax.Array, log_std: jax.Array) -> Normal:
        """Return the distribution for a network's outputs, with `log_std` clipped to `[-20, 2]`."""
        return cls(mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))

    def mode(self) -> jax.Array:
        """Return the mean."""
        return self.mean

    def sample(self, key: jax.Array) -> jax.Array:
        """Draw one action for each distribution; consumes `key`."""
        return self.transform(jax.random.normal(unrolled(key), self.mean.shape, jnp.float32))

    def transform(self, noise: jax.Array) -> jax.Array:
        """Turn standard normal noise `float32[..., A]` into actions."""
        return self.mean + jnp.exp(self.log_std) * noise

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return the log-densities `float32[...]` of actions `[..., A]`."""
        noise = (action - self.mean) * jnp.exp(-self.log_std)
        return -0.5 * jnp.sum(noise**2 + 2 * self.log_std + _LOG_2_PI, axis=-1)

    def entropy(self) -> jax.Array:
        """Return the differential entropies `float32[...]`."""
        return jnp.sum(self.log_std + 0.5 * (1 + _LOG_2_PI), axis=-1)

    def kl(self, other: Normal) -> jax.Array:
        """Return `KL(self || other)` of each component, `float32[..., A]`. Sum over `A` for whole actions.

            log(s' / s) + (s^2 + (m - m')^2) / (2 s'^2) - 1 / 2

        Here `m` and `s` are the mean and standard deviation of `self`, and `m'` and `s'` those of `other`.
        """
        log_ratio = self.log_std - other.log_std
        distance = (self.mean - other.mean) * jnp.exp(-other.log_std)
        return 0.5 * (jnp.expm1(2 * log_ratio) + distance**2) - log_ratio


class Categorical(NamedTuple):
    """A choice among `A` discrete actions.

    Example:
        >>> policy = Categorical(jnp.log(jnp.array([0.25, 0.75])))
        >>> print(policy.mode(), jnp.exp(policy.log_prob(jnp.int32(0))))
        1 0.25
    """

    log_probs: jax.Array  # float32[..., A], logarithms of probabilities that sum to 1

    def mode(self) -> jax.Array:
        """Return the most probable actions `int32[...]`."""
        return jnp.argmax(self.log_probs, axis=-1).astype(jnp.int32)

    def sample(self, key: jax.Array) -> jax.Array:
        """Draw one action for each distribution, `int32[...]`; consumes `key`."""
        return jax.random.categorical(unrolled(key), self.log_probs).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return the log-probabilities `float32[...]` of actions `int32[...]`."""
        return jnp.take_along_axis(self.log_probs, action[..., None], axis=-1)[..., 0]

    def entropy(self) -> jax.Array:
        """Return the entropies `float32[...]`."""
        return -jnp.sum(jnp.exp(self.log_probs) * self.log_probs, axis=-1)

    def kl(self, other: Categorical) -> jax.Array:
        """Return `KL(self || other)`, `float32[...]`."""
        return jnp.sum(jnp.exp(self.log_probs) * (self.log_probs - other.log_probs), axis=-1)


Distribution = Categorical | Normal | TanhNormal
