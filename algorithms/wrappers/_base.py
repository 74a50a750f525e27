"""What wrappers have in common: an agent inside, to which they hand on what they do not change.

Bases are no components themselves: the classes derived from them choose the places of their fields. Nothing of a base
is overridden.
"""

from __future__ import annotations

from algorithms.environments.spaces import Space
from algorithms.types import Agent, OnPolicyAgent, PolicyAgent
from jaxrl_buffers.types import PyTree


class Wrapper:
    """An agent around another one, which is its field `agent`. Both act in the same space.

    The hyper-parameters of the agent inside are found below `agent`, as in
    `jb.with_parameters(normalized, {"agent.learning_rate": 1e-3})`.
    """

    agent: Agent

    @property
    def action_space(self) -> Space:
        """That of the agent inside."""
        return self.agent.action_space

    @property
    def policy_agent(self) -> PolicyAgent:
        """The agent inside, as one whose policy is a distribution."""
        if not isinstance(self.agent, PolicyAgent):
            raise AttributeError(f"{type(self.agent).__name__} has no `distribution`; add-ons need an agent that has.")
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
    """A wrapper that acts with the memory of the agent inside, and learns from the same parts of a rollout."""

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return what the agent inside remembers from step to step."""
        return self.agent.initial_carry(num_envs)

    @property
    def learns_from_columns(self) -> bool:
        """As the agent inside does."""
        return self.on_policy_agent.learns_from_columns
