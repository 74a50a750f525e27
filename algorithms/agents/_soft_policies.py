"""The two kinds of policy that soft actor-critic learns, each with its critics.

Both kinds compute `E[min_j Q_j(s, a)]` and `E[log pi(a | s)]`, where `a` is drawn from the policy. All losses of the
algorithm are made of these two expectations. For discrete actions they are exact. For continuous actions they are
estimated from one draw, and gradients pass through this draw.
"""

from __future__ import annotations

import abc
import dataclasses

import jax
import jax.numpy as jnp

from algorithms.agents import losses
from algorithms.agents._policies import PolicyNetworks
from algorithms.agents.exploration import Noise
from algorithms.environments.spaces import Box, Discrete
from algorithms.networks import (
    CategoricalActor,
    Critic,
    GaussianActor,
    QNetwork,
    Torso,
    apply_batch,
    apply_stack,
    init_stack,
)
from algorithms.networks.distributions import Categorical, TanhNormal
from jaxrl_buffers._random.hashing import unrolled
from jaxrl_buffers.types import PyTree


class SoftPolicy(PolicyNetworks):
    """A policy and `C` stacked critics for one kind of action. Callers pass the parameters of actor and critics."""

    @abc.abstractmethod
    def init_critics(self, key: jax.Array, num_critics: int, obs: PyTree, action: PyTree) -> PyTree:
        """Return the initial parameters `[C, ...]` of the critics; consumes `key`."""

    @abc.abstractmethod
    def act(
        self, actor: PyTree, obs: PyTree, noise: Noise, carry: PyTree, key: jax.Array, deterministic: bool
    ) -> tuple[jax.Array, PyTree]:
        """Return actions `[N, ...]` in the environment's units, and the noise's memory after it; consumes `key`.

        Actions are drawn from the policy, continuous ones by means of `noise`, unless `deterministic`.
        """

    @abc.abstractmethod
    def noise(self, key: jax.Array, num: int, batch_size: int) -> PyTree:
        """Return random numbers for `num` calls of `expect`; consumes `key`. Call `i` gets `noise[i]`."""

    @abc.abstractmethod
    def expect(self, actor: PyTree, critics: PyTree, obs: PyTree, noise: PyTree) -> tuple[jax.Array, jax.Array]:
        """Return `E[min_j Q_j(s, a)]` and `E[log pi(a | s)]` at observations `[B, ...]`, `float32[B]` each."""

    @abc.abstractmethod
    def values(self, critics: PyTree, obs: PyTree, action: jax.Array) -> jax.Array:
        """Return values `float32[C, B]` of actions in the environment's units."""


@dataclasses.dataclass(frozen=True)
class ContinuousSoftPolicy(SoftPolicy):
    """Continuous actions `tanh(u)`, where `u` is normally distributed."""

    action_space: Box
    torso: Torso

    @property
    def actor(self) -> GaussianActor:
        """The network of the policy."""
        return GaussianActor(self.action_space.size, self.torso)

    def init_critics(self, key: jax.Array, num_critics: int, obs: PyTree, action: PyTree) -> PyTree:
        """Return the initial parameters `[C, ...]` of the critics; consumes `key`."""
        return init_stack(Critic(self.torso), key, num_critics, obs, action)

    def act(
        self, actor: PyTree, obs: PyTree, noise: Noise, carry: PyTree, key: jax.Array, deterministic: bool
    ) -> tuple[jax.Array, PyTree]:
        """Return drawn actions `float32[N, A]`, or `tanh` of the mean if `deterministic`; consumes `key`."""
        policy = self.distribution(actor, obs)
        if deterministic:
            return self.action_space.scale(jax.vmap(TanhNormal.mode)(policy)), carry
        drawn, carry = noise.draw(carry, key, *policy.mean.shape)
        action, _ = _transform(policy, drawn)
        return self.action_space.scale(action), carry

    def noise(self, key: jax.Array, num: int, batch_size: int) -> jax.Array:
        """Return standard normal noise `float32[num, B, A]`; consumes `key`."""
        return jax.random.normal(unrolled(key), (num, batch_size, self.action_space.size), jnp.float32)

    def expect(self, actor: PyTree, critics: PyTree, obs: PyTree, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return `min_j Q_j` and `log pi`, `float32[B]` each, of the actions made from noise `float32[B, A]`."""
        action, log_prob = _transform(self.distribution(actor, obs), noise)
        return jnp.min(self._normalized_values(critics, obs, action), axis=0), log_prob

    def values(self, critics: PyTree, obs: PyTree, action: jax.Array) -> jax.Array:
        """Return values `float32[C, B]` of actions `[B, A]`."""
        return self._normalized_values(critics, obs, self.action_space.normalize(action))

    def _normalized_values(self, critics: PyTree, obs: PyTree, action: jax.Array) -> jax.Array:
        return apply_stack(Critic(self.torso), critics, obs, action)

    def distribution(self, params: PyTree, obs: PyTree) -> TanhNormal:
        """Return the distributions at observations `[B, ...]`."""
        return TanhNormal.of(*apply_batch(self.actor, params, obs))


@dataclasses.dataclass(frozen=True)
class DiscreteSoftPolicy(SoftPolicy):
    """Discrete actions. A critic returns the values of all actions at once."""

    action_space: Discrete
    torso: Torso

    @property
    def actor(self) -> CategoricalActor:
        """The network of the policy."""
        return CategoricalActor(self.action_space.num_actions, self.torso)

    def init_critics(self, key: jax.Array, num_critics: int, obs: PyTree, action: PyTree) -> PyTree:
        """Return the initial parameters `[C, ...]` of the critics; consumes `key`."""
        return init_stack(self._critic, key, num_critics, obs)

    def act(
        self, actor: PyTree, obs: PyTree, noise: Noise, carry: PyTree, key: jax.Array, deterministic: bool
    ) -> tuple[jax.Array, PyTree]:
        """Return drawn actions `int32[N]`, or the most probable ones if `deterministic`; consumes `key`."""
        log_probs = self.distribution(actor, obs).log_probs
        if not deterministic:
            log_probs = log_probs + jax.random.gumbel(unrolled(key), log_probs.shape, jnp.float32)
        return jnp.argmax(log_probs, axis=1).astype(jnp.int32), carry

    def noise(self, key: jax.Array, num: int, batch_size: int) -> list[tuple[()]]:
        """Return a list of `num` empty tuples, because exact expectations need no random numbers."""
        return [()] * num

    def expect(self, actor: PyTree, critics: PyTree, obs: PyTree, noise: PyTree) -> tuple[jax.Array, jax.Array]:
        """Return `sum_a pi(a) min_j Q_j(a)` and `sum_a pi(a) log pi(a)`, `float32[B]` each."""
        q = self._all_values(critics, obs)
        return jax.vmap(losses.exact_expectations, in_axes=(1, 0))(q, self.distribution(actor, obs).log_probs)

    def values(self, critics: PyTree, obs: PyTree, action: jax.Array) -> jax.Array:
        """Return values `float32[C, B]` of actions `int32[B]`."""
        return jnp.take_along_axis(self._all_values(critics, obs), action[None, :, None], axis=2)[..., 0]

    def _all_values(self, critics: PyTree, obs: PyTree) -> jax.Array:
        return apply_stack(self._critic, critics, obs)

    def distribution(self, params: PyTree, obs: PyTree) -> Categorical:
        """Return the distributions at observations `[B, ...]`."""
        return Categorical(apply_batch(self.actor, params, obs))

    @property
    def _critic(self) -> QNetwork:
        return QNetwork(self.action_space.num_actions, self.torso)


# Turns standard normal noise `[B, A]` into one action for each of `B` distributions: actions `[B, A]` and their
# log-densities `[B]`.
_transform = jax.vmap(TanhNormal.transform)
