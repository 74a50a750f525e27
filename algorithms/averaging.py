"""Parameters averaged over the updates, around any agent, to act by when it counts.

    average <- rate * average + (1 - rate) * params

Late in training a policy wavers from update to update; the average of its parameters does not. Learning and exploring
go by the parameters themselves, deterministic acting by their average; Polyak and Juditsky (1992),
https://doi.org/10.1137/0330046.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from algorithms import optimization
from algorithms.distributions import Distribution
from algorithms.types import StepInfo
from jaxrl_buffers._checks import require_number
from jaxrl_buffers.types import PyTree, Sample, Scalar, Transition


class AveragedState(NamedTuple):
    """The agent's state, and the average of its parameters."""

    agent: Any
    params: PyTree


class Averaged(struct.PyTreeNode):
    """Any agent, whose deterministic actions are those of its averaged parameters.

    The hyper-parameters of the agent are found below `agent`.

    Args:
        agent: any agent, also a `Recurrent` one; `Normalized` goes around.
        rate: the weight of the old average at every update; about `1 / (1 - rate)` updates count.

    Example:
        >>> from algorithms import DDQN, Discrete
        >>> agent = Averaged(DDQN(Discrete(2)), rate=0.99)
        >>> state = agent.init(jax.random.key(0), jnp.zeros(3), Discrete(2).example)
        >>> action, _, _ = agent.act(state, jnp.zeros((5, 3)), (), jax.random.key(1), deterministic=True)
        >>> action.shape
        (5,)
    """

    agent: Any
    rate: Scalar = 0.999

    def __post_init__(self):
        require_number(self, "rate", self.rate, 0, 1)

    @property
    def num_passes(self) -> int:
        """As often as the agent."""
        return self.agent.num_passes

    @property
    def action_space(self) -> Any:
        """That of the agent."""
        return self.agent.action_space

    @property
    def learns_from_columns(self) -> bool:
        """As the agent does, if it is one that learns from rollouts."""
        return self.agent.learns_from_columns

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> AveragedState:
        """Return the state for observations and actions like these; consumes `key`."""
        state = self.agent.init(key, obs, action)
        return AveragedState(state, jax.tree.map(jnp.copy, state.params))  # else one buffer could not be donated twice

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return what the agent remembers between steps."""
        return self.agent.initial_carry(num_envs)

    def act(
        self, state: AveragedState, obs: PyTree, carry: PyTree, key: jax.Array, deterministic: bool = False
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return the agent's actions `[N, ...]`, the next carry and extras; consumes `key`."""
        acting = state.agent._replace(params=state.params) if deterministic else state.agent
        return self.agent.act(acting, obs, carry, key, deterministic)

    def distribution(self, state: AveragedState, obs: PyTree) -> Distribution:
        """Return the distributions of the averaged policy at observations `[B, ...]`."""
        return self.agent.distribution(state.agent._replace(params=state.params), obs)

    def values(self, state: AveragedState, chunk: Transition) -> tuple[jax.Array, jax.Array]:
        """Return the values `float32[K, N]` of a chunk's observations, and of their successors."""
        return self.agent.values(state.agent, chunk)

    def observe(self, state: AveragedState, chunk: Transition) -> AveragedState:
        """Let the agent take note of collected rows."""
        return state._replace(agent=self.agent.observe(state.agent, chunk))

    def gradients(
        self, state: AveragedState, sample: Sample, key: jax.Array, pass_index: int
    ) -> tuple[PyTree, StepInfo]:
        """Return the agent's gradients; consumes `key`."""
        return self.agent.gradients(state.agent, sample, key, pass_index)

    def apply(self, state: AveragedState, grads: PyTree) -> AveragedState:
        """Let the agent take a step, and follow it."""
        after = self.agent.apply(state.agent, grads)
        return AveragedState(after, optimization.polyak(state.params, after.params, self.rate))
