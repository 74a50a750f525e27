"""A wrapper that averages the parameters of any agent, for deterministic acting.

    average <- rate * average + (1 - rate) * params

Late in training, parameters still change back and forth from update to update. Their average changes less. Learning and
exploring use the parameters. Deterministic acting uses the average. Polyak and Juditsky (1992),
https://doi.org/10.1137/0330046.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from algorithms.agents import optimization
from algorithms.networks.distributions import Distribution
from algorithms.types import Agent, HasParams, StepInfo
from algorithms.wrappers._base import SameCarry, require_agent
from jaxrl_buffers._checks import require_number
from jaxrl_buffers.component import Component
from jaxrl_buffers.types import PyTree, Sample, Scalar, Transition


class AveragedState(NamedTuple):
    """The agent's state, and the average of its parameters."""

    agent: HasParams
    params: PyTree


class Averaged(SameCarry, Component):
    """An agent that uses averaged parameters when it acts deterministically.

    Args:
        agent: an agent whose states have a field `params`: any algorithm of this library, or `Recurrent(...)`. States
            of `Normalized` have no such field, so write `Normalized(Averaged(agent))`.
        rate: the weight of the old average in every update. The average covers about the last `1 / (1 - rate)` updates.

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

    def __post_init__(self) -> None:
        require_agent("Averaged", self.agent)
        require_number(self, "rate", self.rate, 0, 1)

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> AveragedState:
        """Return the first state, for observations like `obs` and actions like `action`; consumes `key`."""
        state = self.agent.init(key, obs, action)
        if not isinstance(state, HasParams):
            raise ValueError(
                f"Averaged({type(self.agent).__name__}): states of this agent have no `params` to average; put "
                "Averaged around the agent that has them, as in Normalized(Averaged(agent))."
            )
        average = jax.tree.map(jnp.copy, state.params)  # a state that holds an array twice cannot be donated to `jit`
        return AveragedState(state, average)

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
        """Return the values of a chunk's `obs` and the values of its `next_obs`, `float32[K, N]` each."""
        return self.on_policy_agent.values(state.agent, chunk)

    def observe(self, state: AveragedState, chunk: Transition) -> AveragedState:
        """Return the state after rows `[K, N, ...]` were collected."""
        return state._replace(agent=self.agent.observe(state.agent, chunk))

    def gradients(self, state: AveragedState, sample: Sample, key: jax.Array) -> tuple[PyTree, StepInfo]:
        """Return the agent's gradients; consumes `key`."""
        return self.agent.gradients(state.agent, sample, key)

    def apply(self, state: AveragedState, grads: PyTree) -> AveragedState:
        """Return the state after one update of the agent and of the average."""
        after = self.agent.apply(state.agent, grads)
        return AveragedState(after, optimization.polyak(state.params, after.params, self.rate))
