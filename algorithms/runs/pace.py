"""How many iterations a program should make at a time, so that a slow one can be watched and stopped."""

from __future__ import annotations

import jax
from jax.tree_util import GetAttrKey

from algorithms.training.learning import Buffer
from algorithms.training.plan import Plan
from algorithms.types import Agent, WrapperAgent
from algorithms.wrappers.recurrence import Recurrent
from jaxrl_buffers import Mixture, ReplayBuffer
from jaxrl_buffers.types import PyTree

MOST_OPERATIONS = 1e11  # of floating-point numbers: one to five seconds on a core


def most_iterations(agent: Agent, buffer: Buffer, states: PyTree, plan: Plan) -> int | None:
    """Return a number of iterations that takes a CPU some seconds; None on accelerators, which are fast enough.

    An update computes about six operations for each parameter and each row of its batch: two for the result, and four
    for the gradients. Convolutions compute more.

    Args:
        agent: the agent of each member.
        buffer: the buffer of each member.
        states: the shapes of the agents' states, of all members.
        plan: the plan of each member.
    """
    if jax.default_backend() != "cpu":
        return None
    rows = plan.num_updates * plan.mini_batch_size * _num_steps(agent, buffer)
    return max(int(MOST_OPERATIONS / max(6 * _num_parameters(states) * rows, 1)), 1)


def _num_steps(agent: Agent, buffer: Buffer) -> int:
    """Return the number of steps through which an agent with a memory goes for each start of a batch."""
    if isinstance(agent, Recurrent):
        buffers = buffer.buffers if isinstance(buffer, Mixture) else (buffer,)
        return max(one.view.span if isinstance(one, ReplayBuffer) else 1 for one in buffers)
    return _num_steps(agent.agent, buffer) if isinstance(agent, WrapperAgent) else 1


def _num_parameters(states: PyTree) -> int:
    params = GetAttrKey("params")
    return sum(leaf.size for path, leaf in jax.tree_util.tree_leaves_with_path(states) if params in path)
