"""Policies made of a network, the actor, which turns observations into distributions over actions."""

from __future__ import annotations

import abc
import dataclasses

import jax
import jax.numpy as jnp

from algorithms.agents.exploration import Noise
from algorithms.environments.spaces import Discrete, Space
from algorithms.networks import (
    CategoricalActor,
    GaussianActor,
    Network,
    Torso,
    apply_batch,
    init_network,
    torso_features,
)
from algorithms.networks.distributions import Categorical, Distribution, Normal
from jaxrl_buffers.types import PyTree


class PolicyNetworks(abc.ABC):
    """A policy for one kind of action. It holds no parameters. Callers pass the parameters of the actor."""

    @property
    @abc.abstractmethod
    def actor(self) -> Network:
        """The network of the policy, for one unbatched observation."""

    @abc.abstractmethod
    def distribution(self, params: PyTree, obs: PyTree) -> Distribution:
        """Return the distributions at observations `[B, ...]`."""

    def init_actor(self, key: jax.Array, obs: PyTree) -> PyTree:
        """Return the initial parameters of the actor, for observations like `obs`; consumes `key`."""
        return init_network(self.actor, key, obs)

    def features(self, params: PyTree, obs: PyTree) -> jax.Array:
        """Return the outputs `float32[B, F]` of the actor's torso for observations `[B, ...]`."""
        return torso_features(self.actor, params, obs)


@dataclasses.dataclass(frozen=True)
class StochasticPolicy(PolicyNetworks):
    """A `Categorical` over discrete actions, or a `Normal` over continuous ones.

    Continuous actions should be in `[-1, 1]`. Draws from a normal distribution may be outside of this range, so
    `to_environment` clips them.

    Example:
        >>> policy = StochasticPolicy(Discrete(3), Torso((8,)))
        >>> params = policy.init_actor(jax.random.key(0), jnp.zeros(4))
        >>> policy.distribution(params, jnp.zeros((5, 4))).mode().shape
        (5,)
    """

    action_space: Space
    torso: Torso

    @property
    def actor(self) -> CategoricalActor | GaussianActor:
        """The network of the policy."""
        if isinstance(self.action_space, Discrete):
            return CategoricalActor(self.action_space.num_actions, self.torso)
        return GaussianActor(self.action_space.size, self.torso)

    def distribution(self, params: PyTree, obs: PyTree) -> Categorical | Normal:
        """Return the distributions at observations `[B, ...]`."""
        outputs = apply_batch(self.actor, params, obs)
        return Categorical(outputs) if isinstance(self.action_space, Discrete) else Normal.of(*outputs)

    def act(
        self, params: PyTree, obs: PyTree, noise: Noise, carry: PyTree, key: jax.Array, deterministic: bool
    ) -> tuple[jax.Array, jax.Array, PyTree]:
        """Return actions `[N, ...]`, their log-probabilities `[N]`, and the noise's memory after it; consumes `key`.

        Actions are drawn from the policy, continuous ones by means of `noise`. With `deterministic` they are the most
        probable ones. They are not clipped.
        """
        policy = self.distribution(params, obs)
        if deterministic:
            action = policy.mode()
        elif isinstance(policy, Categorical):
            action = policy.sample(key)
        else:
            drawn, carry = noise.draw(carry, key, *policy.mean.shape)
            action = policy.transform(drawn)
        return action, policy.log_prob(action), carry

    def to_environment(self, action: jax.Array) -> jax.Array:
        """Return actions of `act` in the environment's units, clipped to its bounds."""
        return action if isinstance(self.action_space, Discrete) else self.action_space.scale(jnp.clip(action, -1, 1))
