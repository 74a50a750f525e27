"""What wrappers have in common: an agent inside, to which they pass on everything that they do not change.

These bases are partial implementations, of which nothing is overridden. They declare no fields: each wrapper lists its
own.
"""

from __future__ import annotations

from algorithms.environments.spaces import Space
from algorithms.types import Agent, OnPolicyAgent, PolicyAgent
from jaxrl_buffers.types import PyTree


class Wrapper:
    """An agent with another one inside, in its field `agent`.

    The hyper-parameters of the agent inside have names that begin with `agent.`, as in
    `jb.with_parameters(normalized, {"agent.learning_rate": 1e-3})`.
    """

    agent: Agent

    @property
    def action_space(self) -> Space:
        """The action space of the agent inside."""
        return self.agent.action_space

    @property
    def policy_agent(self) -> PolicyAgent:
        """The agent inside, as one whose policy is a distribution."""
        if not isinstance(self.agent, PolicyAgent):
            raise AttributeError(f"{type(self.agent).__name__} has no `distribution`, which add-ons need.")
        return self.agent

    @property
    def on_policy_agent(self) -> OnPolicyAgent:
        """The agent inside, as one that learns from rollouts."""
        if not isinstance(self.agent, OnPolicyAgent):
            raise AttributeError(
                f"{type(self.agent).__name__} cannot learn from a rollout: it has no `values`; give a replay buffer, "
                "or an agent such as PPO."
            )
        return self.agent


class SameCarry(Wrapper):
    """A wrapper that acts with the carry of the agent inside, and learns from the same kind of minibatches."""

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return the memory with which the agent inside begins an episode."""
        return self.agent.initial_carry(num_envs)

    @property
    def learns_from_columns(self) -> bool:
        """Whether the agent inside needs all rows of an environment, in order."""
        return self.on_policy_agent.learns_from_columns
