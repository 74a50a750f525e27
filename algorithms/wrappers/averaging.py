"""Deterministic acting by averaged parameters, around any agent.

    average <- rate * average + (1 - rate) * params

Late in training a policy changes back and forth from update to update; the average of its parameters changes less.
Learning and exploring use the parameters themselves. Deterministic acting uses their average. Polyak and Juditsky
(1992), https://doi.org/10.1137/0330046.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from algorithms.agents import optimization
from algorithms.networks.distributions import Distribution
from algorithms.types import Agent, HasParams, StepInfo
from algorithms.wrappers._base import SameCarry
from jaxrl_buffers._checks import require_number
from jaxrl_buffers.component import Component
from jaxrl_buffers.types import PyTree, Sample, Scalar, Transition


class AveragedState(NamedTuple):
    """The agent's state, and the average of its parameters."""

    agent: HasParams
    params: PyTree


class Averaged(SameCarry, Component):
    """Any agent, whose deterministic actions are those of its averaged parameters.

    Args:
        agent: any agent whose states have `params`, such as a `Recurrent` one. Those of `Normalized` have none; write
            `Normalized(Averaged(agent))`.
        rate: the weight of the old average at every update; about `1 / (1 - rate)` updates count.

    Example:
        >>> from algorithms import DDQN, Discrete
        >>> agent = Averaged(DDQN(Discrete(2)), rate=0.99)
        >>> state = agent.init(jax.random.key(0), jnp.zeros(3), Discrete(2).example)
        >>> action, _, _ = agent.act(state, jnp.zeros((5, 3)), (), jax.random.key(1), deterministic=True)
        >>> action.shape
        (5,)
    """

    agent: Agent
    rate: Scalar = 0.999

    def __post_init__(self):
        require_number(self, "rate", self.rate, 0, 1)

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> AveragedState:
        """Return the state for observations and actions like these; consumes `key`."""
        state = self.agent.init(key, obs, action)
        return AveragedState(state, jax.tree.map(jnp.copy, state.params))  # the same buffer twice could not be donated

    def act(
        self, state: AveragedState, obs: PyTree, carry: PyTree, key: jax.Array, deterministic: bool = False
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return the agent's actions `[N, ...]`, the next carry and extras; consumes `key`."""
        acting = state.agent._replace(params=state.params) if deterministic else state.agent
        return self.agent.act(acting, obs, carry, key, deterministic)

    def distribution(self, state: AveragedState, obs: PyTree) -> Distribution:
        """Return the distributions of the averaged policy at observations `[B, ...]`."""
        return self.policy_agent.distribution(state.agent._replace(params=state.params), obs)

    def values(self, state: AveragedState, chunk: Transition) -> tuple[jax.Array, jax.Array]:
        """Return the values `float32[K, N]` of a chunk's observations, and of their successors."""
        return self.on_policy_agent.values(state.agent, chunk)

    def observe(self, state: AveragedState, chunk: Transition) -> AveragedState:
        """Let the agent observe collected rows."""
        return state._replace(agent=self.agent.observe(state.agent, chunk))

    def gradients(self, state: AveragedState, sample: Sample, key: jax.Array) -> tuple[PyTree, StepInfo]:
        """Return the agent's gradients; consumes `key`."""
        return self.agent.gradients(state.agent, sample, key)

    def apply(self, state: AveragedState, grads: PyTree) -> AveragedState:
        """Let the agent make an update, then update the average."""
        after = self.agent.apply(state.agent, grads)
        return AveragedState(after, optimization.polyak(state.params, after.params, self.rate))
