"""Abstract base classes with the parts that several agents share.

An algorithm implements the abstract methods of its base class, and overrides no other method. Base classes declare no
fields. Each algorithm lists all of its hyper-parameters itself, in its own order.
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
    """An agent whose state changes only when it learns from samples, and not when rows are collected."""

    def observe(self, state: State, chunk: Transition) -> State:
        """Return the state unchanged."""
        return state


class ActorAgent(BaseAgent, abc.ABC):
    """An agent whose policy is a network. The parameters of `policy` are `state.params.actor`."""

    @property
    @abc.abstractmethod
    def policy(self) -> ActorPolicy:
        """The policy, without its parameters."""

    def distribution(self, state: HasParams, obs: PyTree) -> Distribution:
        """Return the policy's distributions at observations `[B, ...]`."""
        return self.policy.distribution(state.params.actor, obs)

    def features(self, state: HasParams, obs: PyTree) -> jax.Array:
        """Return the outputs `float32[B, F]` of the policy's torso for observations `[B, ...]`."""
        return self.policy.features(state.params.actor, obs)


class StochasticAgent(ActorAgent):
    """An agent that explores by drawing actions from its policy. Each action is drawn independently."""

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return `()`, because acting needs no memory."""
        return ()
