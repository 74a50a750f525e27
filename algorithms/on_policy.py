"""Learning from a rollout of the present policy, as the training loop does when its buffer is a `Rollout`."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from algorithms.metrics import Scalars
from algorithms.plan import Plan
from algorithms.types import Agent
from jaxrl_buffers.iteration import scan_minibatches
from jaxrl_buffers.rollouts import Rollout, RolloutBatch
from jaxrl_buffers.types import PyTree, Sample, Transition


class OnPolicyAgent(Agent, Protocol):
    """An agent that also tells what observations are worth; `gradients` gets a flat `RolloutBatch` as the batch."""

    def value(self, state: Any, obs: PyTree) -> jax.Array:
        """Return the values `float32[N]` of observations `[N, ...]`."""
        ...


def learn(
    agent: OnPolicyAgent, rollout: Rollout, agent_state: Any, chunk: Transition, key: jax.Array, plan: Plan
) -> tuple[Any, Scalars]:
    """Go through a chunk `[K, N, ...]` in shuffled minibatches; consumes `key`.

    Returns:
        The agent's state, and metrics `[plan.num_updates]`.
    """
    key_order, key_gradients = jax.random.split(key)

    def update(carry: tuple[Any, jax.Array], minibatch: RolloutBatch) -> tuple[Any, Scalars]:
        state, number = carry
        handle: Any = ()  # nothing goes back to a rollout
        sample = Sample(minibatch, handle, weights=minibatch.mask.astype(jnp.float32))
        grads, info = agent.gradients(state, sample, jax.random.fold_in(key_gradients, number), 0)
        return (agent.apply(state, grads), number + 1), Scalars.of(info.metrics)

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
    # The values of all rows at once: one large product, where acting would need many small ones.
    both = jax.tree.map(
        lambda *leaves: jnp.concatenate(leaves).reshape(-1, *leaves[0].shape[2:]), chunk.obs, chunk.next_obs
    )
    value, next_value = agent.value(agent_state, both).reshape(2, *chunk.reward.shape)
    extras = {**chunk.extras, "value": value, "reward": chunk.reward}
    return rollout.advantages(chunk._replace(extras=extras), next_value)
