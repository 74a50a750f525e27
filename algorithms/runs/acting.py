"""Acting by a trained agent, outside of training."""

from __future__ import annotations

import jax

from algorithms.training.collection import where_env
from algorithms.types import Agent, WrapperAgent
from algorithms.wrappers.recurrence import Recurrent
from jaxrl_buffers.types import PyTree


def act(
    agent: Agent,
    state: PyTree,
    obs: PyTree,
    carry: PyTree,
    is_first: jax.Array,
    key: jax.Array,
    deterministic: bool,
) -> tuple[PyTree, PyTree]:
    """Return actions `[N, ...]` and the next carry; consumes `key`.

    Args:
        agent: the algorithm.
        state: its state.
        obs: `[N, ...]`.
        carry: the memory or the noise from earlier steps, `[N, ...]`.
        is_first: `bool[N]`, True where an episode begins; there the carry is ignored.
        key: a PRNG key.
        deterministic: act without exploration.
    """
    fresh = agent.initial_carry(is_first.shape[0])
    carry = jax.tree.map(lambda new, old: where_env(is_first, new, old), fresh, carry)
    action, carry, _ = agent.act(state, obs, carry, key, deterministic)
    return action, carry


def needs_carry(agent: Agent, deterministic: bool) -> bool:
    """Return whether actions depend on earlier steps: through a memory, or through noise that spans steps."""
    if not jax.tree.leaves(jax.eval_shape(lambda: agent.initial_carry(1))):
        return False
    return not deterministic or _is_recurrent(agent)


def _is_recurrent(agent: Agent) -> bool:
    """Return whether one of the wrappers around an agent is `Recurrent`."""
    while isinstance(agent, WrapperAgent):
        if isinstance(agent, Recurrent):
            return True
        agent = agent.agent
    return False
