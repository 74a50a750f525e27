"""What agents have in common: abstract bases, each a part of an agent.

An algorithm implements what its base leaves open, and overrides nothing. Bases declare no fields of their own. Each
algorithm lists all its hyper-parameters itself, in the order that suits it.
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
    """The parameters of a policy and its critics, or their gradients, or the states of their optimizers."""

    actor: PyTree
    critic: PyTree  # leaves [C, ...] if there is a stack of C critics
    addons: tuple[PyTree, ...] = ()


class BaseAgent:
    """An agent that learns from samples only: collecting rows does not change its state."""

    def observe(self, state: State, chunk: Transition) -> State:
        """Return the state as it is."""
        return state


class ActorAgent(BaseAgent, abc.ABC):
    """An agent whose policy is a network: `state.params.actor` are the parameters of `policy`."""

    @property
    @abc.abstractmethod
    def policy(self) -> ActorPolicy:
        """The policy, without its parameters."""

    def distribution(self, state: HasParams, obs: PyTree) -> Distribution:
        """Return the policy's distributions at observations `[B, ...]`."""
        return self.policy.distribution(state.params.actor, obs)

    def features(self, state: HasParams, obs: PyTree) -> jax.Array:
        """Return what the policy's torso makes of observations `[B, ...]`: `float32[B, F]`."""
        return self.policy.features(state.params.actor, obs)


class StochasticAgent(ActorAgent):
    """An agent that explores by drawing each action from its policy, independently of all others."""

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return `()`: acting remembers nothing."""
        return ()
