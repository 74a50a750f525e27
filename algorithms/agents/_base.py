"""Abstract base classes with the parts that several agents share.

An algorithm implements the abstract methods of its base class, and overrides no other method. Base classes only name
the fields that they use. Each algorithm lists all of its hyper-parameters itself, in its own order.
"""

from __future__ import annotations

import abc
from typing import ClassVar, NamedTuple, TypeVar

import jax

from algorithms.addons import Addon, addon
from algorithms.agents import exploration
from algorithms.agents._policies import PolicyNetworks
from algorithms.environments.spaces import Box, Discrete, Space
from algorithms.networks.distributions import Distribution
from algorithms.types import HasParams, Roles
from jaxrl_buffers._checks import require_positive
from jaxrl_buffers.types import PyTree, Scalar, Transition

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
    def policy(self) -> PolicyNetworks:
        """The policy, without its parameters."""

    def distribution(self, state: HasParams, obs: PyTree) -> Distribution:
        """Return the policy's distributions at observations `[B, ...]`."""
        return self.policy.distribution(state.params.actor, obs)

    def features(self, state: HasParams, obs: PyTree) -> jax.Array:
        """Return the outputs `float32[B, F]` of the policy's torso for observations `[B, ...]`."""
        return self.policy.features(state.params.actor, obs)


class StochasticAgent(ActorAgent):
    """An agent that explores by drawing actions from its policy.

    Continuous actions are made from `noise`. If it is correlated in time, so are the actions of successive steps. A
    subclass declares the fields below.
    """

    action_space: Space
    noise: str
    noise_theta: Scalar
    max_grad_norm: Scalar
    addons: tuple[Addon, ...]

    critic_axes: ClassVar[tuple[int, ...]] = ()  # the sizes of the axes along which critics are stacked

    @property
    def roles(self) -> Roles:
        """One policy, and one critic or a stack of critics."""
        return (("actor", ()), ("critic", self.critic_axes))

    def check(self) -> None:
        """Refuse bad values of the fields above."""
        owner = type(self).__name__
        if not isinstance(self.action_space, (Box, Discrete)):
            raise ValueError(f"{owner} needs Box or Discrete actions, but the action space is {self.action_space!r}.")
        exploration.check(self, self.noise, self.noise_theta)
        if isinstance(self.action_space, Discrete) and self.noise != "gaussian":
            raise ValueError(
                f"{owner}(noise={self.noise!r}): noise needs continuous actions, but the action space is "
                f"{self.action_space!r}; leave `noise` out."
            )
        require_positive(self, "max_grad_norm")
        addon.check(owner, self.addons)

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return what the noise remembers at the start of an episode; `()` if draws are independent."""
        if isinstance(self.action_space, Discrete):
            return ()
        return self._noise.initial_carry(num_envs, self.action_space.size)

    @property
    def _noise(self) -> exploration.Noise:
        """The noise from which continuous actions are made."""
        return exploration.make(self.noise, self.noise_theta)
