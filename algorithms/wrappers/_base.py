"""Base classes of wrappers. A wrapper has an agent inside, and passes on to it everything that it does not change.

Wrappers override no method of these classes. The classes declare no fields. Each wrapper lists its own fields.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from algorithms.environments.spaces import Space
from algorithms.types import Agent, OnPolicyAgent, PolicyAgent
from jaxrl_buffers._checks import shown
from jaxrl_buffers.types import PyTree

Inner = TypeVar("Inner", bound=Agent)


def require_agent(owner: str, agent: object) -> None:
    """Refuse anything but an agent, such as the class of an agent."""
    if isinstance(agent, type) or not isinstance(agent, Agent):
        raise ValueError(f"{owner}(agent={shown(agent)}): give an agent, such as DDQN(env.action_space).")


class Wrapper(Generic[Inner]):
    """An agent with another agent inside, in its field `agent`.

    The names of the inner agent's hyper-parameters begin with `agent.`, as in
    `jb.with_parameters(normalized, {"agent.learning_rate": 1e-3})`.
    """

    agent: Inner

    @property
    def action_space(self) -> Space:
        """The action space of the agent inside."""
        return self.agent.action_space

    @property
    def policy_agent(self) -> PolicyAgent:
        """The agent inside, checked to be a `PolicyAgent`."""
        if not isinstance(self.agent, PolicyAgent):
            raise AttributeError(
                f"{type(self.agent).__name__} has no method `distribution`, which add-ons need; use another agent."
            )
        return self.agent

    @property
    def on_policy_agent(self) -> OnPolicyAgent:
        """The agent inside, checked to be an `OnPolicyAgent`."""
        if not isinstance(self.agent, OnPolicyAgent):
            raise AttributeError(
                f"{type(self.agent).__name__} cannot learn from a rollout: it has no `values`; give a replay buffer, "
                "or an agent such as PPO."
            )
        return self.agent


class SameCarry(Wrapper[Agent]):
    """A wrapper that uses the carry of the agent inside, and learns from the same kind of minibatches."""

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return the carry of the agent inside at the start of an episode."""
        return self.agent.initial_carry(num_envs)

    @property
    def learns_from_columns(self) -> bool:
        """Whether the agent inside needs all rows of an environment, in order."""
        return self.on_policy_agent.learns_from_columns
