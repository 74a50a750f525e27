"""What agents have in common. Each base leaves some methods to its classes, and nothing of it is overridden.

Bases are no components themselves: the classes derived from them choose the places of their fields.
"""

from __future__ import annotations

import abc
from typing import NamedTuple, TypeVar

import jax

from algorithms.agents._policies import ActorPolicy
from algorithms.networks.distributions import Distribution
from algorithms.types import HasParams
from jaxrl_buffers.types import PyTree, Transition

State = TypeVar("State")


class ActorCritic(NamedTuple):
    """The parameters of a policy and of values, their gradients, or their optimizers."""

    actor: PyTree
    critic: PyTree  # leaves [C, ...] where there are C critics
    addons: tuple[PyTree, ...] = ()


class BaseAgent:
    """An agent that learns from samples only, and not from rows as they are collected."""

    def observe(self, state: State, chunk: Transition) -> State:
        """Return the state as it is."""
        return state


class ActorAgent(BaseAgent, abc.ABC):
    """An agent with a policy of its own: `state.params.actor` are the parameters of `policy`."""

    @property
    @abc.abstractmethod
    def policy(self) -> ActorPolicy:
        """The policy, without its parameters."""

    def distribution(self, state: HasParams, obs: PyTree) -> Distribution:
        """Return the policy's distributions at observations `[B, ...]`."""
        return self.policy.distribution(state.params.actor, obs)

    def features(self, state: HasParams, obs: PyTree) -> jax.Array:
        """Return the outputs `float32[B, F]` of the policy's torso at observations `[B, ...]`."""
        return self.policy.features(state.params.actor, obs)


class StochasticAgent(ActorAgent):
    """An agent that explores by drawing from its policy, each step for itself."""

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return `()`: acting remembers nothing."""
        return ()
