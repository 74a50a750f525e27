"""Learning from a rollout: the rows that the current policy has just collected."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from algorithms.training import faults
from algorithms.training.metrics import Scalars
from algorithms.training.plan import Plan
from algorithms.types import OnPolicyAgent
from jaxrl_buffers._random.hashing import fold_in, split
from jaxrl_buffers.iteration import scan_minibatches
from jaxrl_buffers.rollouts import Rollout, RolloutBatch
from jaxrl_buffers.types import Handle, PyTree, Sample, Transition


def learn(
    agent: OnPolicyAgent, rollout: Rollout, agent_state: PyTree, chunk: Transition, key: jax.Array, plan: Plan
) -> tuple[PyTree, Scalars]:
    """Make the updates of one iteration, in epochs over shuffled minibatches; consumes `key`.

    Args:
        agent: the algorithm.
        rollout: the buffer, which computes advantages.
        agent_state: the agent's state.
        chunk: the rows `[K, N, ...]` that were collected.
        key: a PRNG key.
        plan: the number of minibatches and epochs.

    Returns:
        The agent's state after the updates, and the metrics of all `U` updates.
    """
    key_order, key_gradients = split(key)

    def update(carry: tuple[PyTree, jax.Array], minibatch: RolloutBatch) -> tuple[PyTree, Scalars]:
        state, number = carry
        none = jnp.zeros(0, jnp.int32)  # no priorities are written back to a rollout
        sample = Sample(minibatch, Handle(none, none), weights=minibatch.mask.astype(jnp.float32))
        grads, info = agent.gradients(state, sample, fold_in(key_gradients, number))
        after, counts = agent.apply(state, grads), faults.of_update(grads, info.metrics)
        if plan.skip_nonfinite:
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


def _batch(agent: OnPolicyAgent, rollout: Rollout, agent_state: PyTree, chunk: Transition) -> RolloutBatch:
    """Return a chunk with its advantages and returns.

    Leaves are `[K, N, ...]`, or `[1, N, K, ...]` if the agent learns from columns.
    """
    value, next_value = agent.values(agent_state, chunk)
    extras = {**chunk.extras, "value": value, "reward": chunk.reward}
    batch = rollout.advantages(chunk._replace(extras=extras), next_value)
    if agent.learns_from_columns:
        batch = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1)[None], batch)
    return batch
