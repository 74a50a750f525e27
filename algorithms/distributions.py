"""Distributions of actions, on one unbatched vector; callers `vmap`."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0


class TanhNormal(NamedTuple):
    """The distribution of `a = tanh(u)`, `u ~ N(mean, std)`, with independent components in `(-1, 1)`.

        log p(a) = sum_i [log N(u_i; mean_i, std_i) - 2 (log 2 - u_i - softplus(-2 u_i))]

    The last term is `log(1 - tanh(u)^2)` in a form that keeps its precision where `tanh` saturates.

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
        """Return the distribution for a network's outputs, the standard deviation kept between e^-20 and e^2."""
        return cls(mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))

    def mode(self) -> jax.Array:
        """Return the action of the mean, `float32[A]`."""
        return jnp.tanh(self.mean)

    def sample(self, key: jax.Array) -> jax.Array:
        """Draw an action `float32[A]`; consumes `key`."""
        return self.sample_and_log_prob(key)[0]

    def sample_and_log_prob(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draw an action `float32[A]` with its log-density `float32[]`; consumes `key`. Gradients pass through."""
        return self.transform(jax.random.normal(key, self.mean.shape, jnp.float32))

    def transform(self, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Turn standard normal noise `float32[A]` into an action and its log-density."""
        before = self.mean + jnp.exp(self.log_std) * noise
        return jnp.tanh(before), self._log_density(noise, before)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return the log-density `float32[]` of an action in `(-1, 1)`."""
        before = jnp.arctanh(action)
        return self._log_density((before - self.mean) * jnp.exp(-self.log_std), before)

    def _log_density(self, noise: jax.Array, before: jax.Array) -> jax.Array:
        normal = -0.5 * (noise**2 + jnp.log(2 * jnp.pi).astype(jnp.float32)) - self.log_std
        squash = 2 * (jnp.log(2.0).astype(jnp.float32) - before - jax.nn.softplus(-2 * before))
        return jnp.sum(normal - squash)
