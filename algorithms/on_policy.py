"""Learning from a rollout of the present policy, as the training loop does when its buffer is a `Rollout`."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from algorithms import faults
from algorithms.metrics import Scalars
from algorithms.plan import Plan
from algorithms.types import Agent
from jaxrl_buffers._random.hashing import fold_in, split
from jaxrl_buffers.iteration import scan_minibatches
from jaxrl_buffers.rollouts import Rollout, RolloutBatch
from jaxrl_buffers.types import Sample, Transition


class OnPolicyAgent(Agent, Protocol):
    """An agent that also tells what observations are worth; `gradients` gets a `RolloutBatch` as the batch.

    It holds shuffled rows `[B, ...]`, or, if the agent learns from columns, whole environments `[B, K, ...]`.
    """

    learns_from_columns: bool

    def values(self, state: Any, chunk: Transition) -> tuple[jax.Array, jax.Array]:
        """Return the values `float32[K, N]` of a chunk's observations, and of their successors."""
        ...


def learn(
    agent: OnPolicyAgent, rollout: Rollout, agent_state: Any, chunk: Transition, key: jax.Array, plan: Plan
) -> tuple[Any, Scalars]:
    """Go through a chunk `[K, N, ...]` in shuffled minibatches; consumes `key`.

    Returns:
        The agent's state, and metrics `[plan.num_updates]`.
    """
    key_order, key_gradients = split(key)

    def update(carry: tuple[Any, jax.Array], minibatch: RolloutBatch) -> tuple[Any, Scalars]:
        state, number = carry
        handle: Any = ()  # nothing goes back to a rollout
        sample = Sample(minibatch, handle, weights=minibatch.mask.astype(jnp.float32))
        grads, info = agent.gradients(state, sample, fold_in(key_gradients, number), 0)
        after, counts = agent.apply(state, grads), faults.of_update(grads, info.metrics)
        if plan.skips_nonfinite:
            after, counts = faults.skip(state, after, counts)
        return (after, number + 1), Scalars.of(info.metrics | counts)

    (agent_state, _), metrics = scan_minibatches(
        update,
        (agent_state, jnp.zeros((), jnp.int32)),
        _batch(agent, rollout, agent_state, chunk),
        key_order,
        num_epochs=plan.num_epochs,
        num_minibatches=plan.num_minibatches,
    )
    return agent_state, metrics


def _batch(agent: OnPolicyAgent, rollout: Rollout, agent_state: Any, chunk: Transition) -> RolloutBatch:
    value, next_value = agent.values(agent_state, chunk)
    extras = {**chunk.extras, "value": value, "reward": chunk.reward}
    batch = rollout.advantages(chunk._replace(extras=extras), next_value)
    if agent.learns_from_columns:
        batch = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1)[None], batch)
    return batch
