"""The two kinds of policy that soft actor-critic learns: what they do, and what critics expect of it.

Either kind tells `E[min_j Q_j(s, a)]` and `E[log pi(a | s)]` for actions of the policy: by one reparameterized draw
where actions are continuous, exactly where they are discrete. All of the algorithm's losses are made of these two.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from algorithms import distributions, losses
from algorithms.distributions import Distribution, TanhNormal
from algorithms.networks import (
    CategoricalActor,
    Critic,
    GaussianActor,
    QNetwork,
    Torso,
    apply_batch,
    apply_stack,
    init_network,
    torso_features,
)
from algorithms.spaces import Box, Discrete
from jaxrl_buffers._random.hashing import unrolled
from jaxrl_buffers.types import PyTree


class Policy(Protocol):
    """Networks of actor and critics for a kind of action; callers give parameters."""

    def init_actor(self, key: jax.Array, obs: PyTree) -> PyTree:
        """Return parameters of the actor; consumes `key`."""
        ...

    def init_critic(self, key: jax.Array, obs: PyTree, action: jax.Array) -> PyTree:
        """Return parameters of one critic; consumes `key`."""
        ...

    def act(self, actor: PyTree, obs: PyTree, key: jax.Array, deterministic: bool) -> jax.Array:
        """Return actions `[N, ...]` in the environment's units, drawn or the likeliest; consumes `key`."""
        ...

    def noise(self, key: jax.Array, num: int, batch_size: int) -> Any:
        """Return `num` entries of randomness for `expect`; consumes `key`."""
        ...

    def expect(self, actor: PyTree, critics: PyTree, obs: PyTree, noise: Any) -> tuple[jax.Array, jax.Array]:
        """Return `E[min_j Q_j]` and `E[log pi]`, `float32[B]` each."""
        ...

    def values(self, critics: PyTree, obs: PyTree, action: jax.Array) -> jax.Array:
        """Return values `float32[C, B]` of actions in the environment's units."""
        ...

    def distribution(self, actor: PyTree, obs: PyTree) -> Distribution:
        """Return the distributions at observations `[B, ...]`."""
        ...

    def features(self, actor: PyTree, obs: PyTree) -> jax.Array:
        """Return the features `float32[B, F]` below the policy."""
        ...


class SquashedGaussian(NamedTuple):
    """Continuous actions `tanh(u)`, `u` normal."""

    action_space: Box
    torso: Torso

    def init_actor(self, key: jax.Array, obs: PyTree) -> PyTree:
        """Return parameters of the actor; consumes `key`."""
        return init_network(self._actor, key, obs)

    def init_critic(self, key: jax.Array, obs: PyTree, action: jax.Array) -> PyTree:
        """Return parameters of one critic; consumes `key`."""
        return init_network(self._critic, key, obs, action)

    def act(self, actor: PyTree, obs: PyTree, key: jax.Array, deterministic: bool) -> jax.Array:
        """Return actions `float32[N, A]`, drawn or of the mean; consumes `key`."""
        policy = self.distribution(actor, obs)
        if deterministic:
            return self.action_space.scale(jax.vmap(TanhNormal.mode)(policy))
        action, _ = _transform(policy, jax.random.normal(unrolled(key), policy.mean.shape, jnp.float32))
        return self.action_space.scale(action)

    def noise(self, key: jax.Array, num: int, batch_size: int) -> jax.Array:
        """Return standard normal noise `float32[num, B, A]`; consumes `key`."""
        return jax.random.normal(unrolled(key), (num, batch_size, self.action_space.size), jnp.float32)

    def expect(self, actor: PyTree, critics: PyTree, obs: PyTree, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return `min_j Q_j` and `log pi`, `float32[B]` each, of actions made from noise `float32[B, A]`."""
        action, log_prob = _transform(self.distribution(actor, obs), noise)
        return jnp.min(self._normalized_values(critics, obs, action), axis=0), log_prob

    def values(self, critics: PyTree, obs: PyTree, action: jax.Array) -> jax.Array:
        """Return values `float32[C, B]` of actions `[B, A]`."""
        return self._normalized_values(critics, obs, self.action_space.normalize(action))

    def _normalized_values(self, critics: PyTree, obs: PyTree, action: jax.Array) -> jax.Array:
        return apply_stack(self._critic, critics, obs, action)

    def distribution(self, actor: PyTree, obs: PyTree) -> TanhNormal:
        """Return the distributions at observations `[B, ...]`."""
        return TanhNormal.of(*apply_batch(self._actor, actor, obs))

    def features(self, actor: PyTree, obs: PyTree) -> jax.Array:
        """Return the features `float32[B, F]` below the policy."""
        return torso_features(self._actor, actor, obs)

    @property
    def _actor(self) -> GaussianActor:
        return GaussianActor(self.action_space.size, self.torso)

    @property
    def _critic(self) -> Critic:
        return Critic(self.torso)


class Categorical(NamedTuple):
    """Discrete actions; critics tell the values of all of them at once."""

    action_space: Discrete
    torso: Torso

    def init_actor(self, key: jax.Array, obs: PyTree) -> PyTree:
        """Return parameters of the actor; consumes `key`."""
        return init_network(self._actor, key, obs)

    def init_critic(self, key: jax.Array, obs: PyTree, action: jax.Array) -> PyTree:
        """Return parameters of one critic; consumes `key`."""
        return init_network(self._critic, key, obs)

    def act(self, actor: PyTree, obs: PyTree, key: jax.Array, deterministic: bool) -> jax.Array:
        """Return actions `int32[N]`, drawn or the likeliest; consumes `key`."""
        log_probs = self._log_probs(actor, obs)
        if not deterministic:
            log_probs = log_probs + jax.random.gumbel(unrolled(key), log_probs.shape, jnp.float32)
        return jnp.argmax(log_probs, axis=1).astype(jnp.int32)

    def noise(self, key: jax.Array, num: int, batch_size: int) -> list[tuple[()]]:
        """Exact expectations need no randomness."""
        return [()] * num

    def expect(self, actor: PyTree, critics: PyTree, obs: PyTree, noise: Any) -> tuple[jax.Array, jax.Array]:
        """Return `sum_a pi(a) min_j Q_j(a)` and `sum_a pi(a) log pi(a)`, `float32[B]` each."""
        q = self._all_values(critics, obs)
        return jax.vmap(losses.exact_expectations, in_axes=(1, 0))(q, self._log_probs(actor, obs))

    def values(self, critics: PyTree, obs: PyTree, action: jax.Array) -> jax.Array:
        """Return values `float32[C, B]` of actions `int32[B]`."""
        return jnp.take_along_axis(self._all_values(critics, obs), action[None, :, None], axis=2)[..., 0]

    def _all_values(self, critics: PyTree, obs: PyTree) -> jax.Array:
        return apply_stack(self._critic, critics, obs)

    def distribution(self, actor: PyTree, obs: PyTree) -> distributions.Categorical:
        """Return the distributions at observations `[B, ...]`."""
        return distributions.Categorical(self._log_probs(actor, obs))

    def features(self, actor: PyTree, obs: PyTree) -> jax.Array:
        """Return the features `float32[B, F]` below the policy."""
        return torso_features(self._actor, actor, obs)

    def _log_probs(self, actor: PyTree, obs: PyTree) -> jax.Array:
        return apply_batch(self._actor, actor, obs)

    @property
    def _actor(self) -> CategoricalActor:
        return CategoricalActor(self.action_space.num_actions, self.torso)

    @property
    def _critic(self) -> QNetwork:
        return QNetwork(self.action_space.num_actions, self.torso)


# Actions `[B, A]` and log-densities `[B]` of as many distributions, from standard normal noise `[B, A]`.
_transform = jax.vmap(TanhNormal.transform)
