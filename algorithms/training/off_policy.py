"""Learning from samples of a replay buffer."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp

from algorithms.training import faults
from algorithms.training.metrics import Scalars
from algorithms.training.plan import Plan
from algorithms.types import Agent, Metrics
from jaxrl_buffers import Mixture, ReplayBuffer
from jaxrl_buffers.types import PyTree, Sample, Scalar

Replay = ReplayBuffer | Mixture


def learn(
    agent: Agent,
    buffer: Replay,
    agent_state: PyTree,
    buffer_state: PyTree,
    keys_sample: jax.Array,
    keys_gradients: jax.Array,
    plan: Plan,
) -> tuple[PyTree, PyTree, Scalars]:
    """Make the updates of one iteration.

    Args:
        agent: the algorithm.
        buffer: what is learned from.
        agent_state: the state of the agent.
        buffer_state: the state of the buffer.
        keys_sample: `[U]`, consumed.
        keys_gradients: `[U]`, consumed.
        plan: how many updates there are, and of how many samples.

    Returns:
        Both states, and metrics `[U]`.
    """

    def update(learner: tuple[PyTree, PyTree], inputs: tuple[jax.Array, ...]) -> tuple[tuple[PyTree, PyTree], Scalars]:
        key_sample, key_gradients, progress = inputs
        agent_state, buffer_state, metrics = train_step(
            agent, buffer, *learner, key_sample, key_gradients, plan.mini_batch_size, progress, plan.skip_nonfinite
        )
        return (agent_state, buffer_state), Scalars.of(metrics)

    progress = jnp.arange(plan.num_updates, dtype=jnp.float32) / plan.num_updates
    learner, metrics = jax.lax.scan(update, (agent_state, buffer_state), (keys_sample, keys_gradients, progress))
    return *learner, metrics


def train_step(
    agent: Agent,
    buffer: Replay,
    agent_state: PyTree,
    buffer_state: PyTree,
    key_sample: jax.Array,
    key_gradients: jax.Array,
    batch_size: int,
    progress: Scalar = 0.0,
    skip_nonfinite: bool = False,
    skips_nonfinite: bool | None = None,
) -> tuple[PyTree, PyTree, Metrics]:
    """Learn from one batch: sample, gradients, `update_priorities`, apply; consumes both keys.

    With `skip_nonfinite` an update whose gradients are not finite leaves the agent's state exactly as it was, with all
    that it counts. Samples whose error is not finite get the priority 0, so that they are rarely drawn again.
    `skips_nonfinite` is the old name of that option.
    """
    if skips_nonfinite is not None:
        message = "`skips_nonfinite` of train_step() is now called `skip_nonfinite`; the old name will go."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        skip_nonfinite = skips_nonfinite
    sample = buffer.sample(buffer_state, key_sample, batch_size, progress)
    grads, info = agent.gradients(agent_state, sample, key_gradients)
    errors = info.priorities
    mask = sample.batch.mask if errors.ndim == 2 else None  # of sequences
    priorities = jnp.where(jnp.isfinite(errors), errors, 0) if skip_nonfinite else errors
    buffer_state = buffer.update_priorities(buffer_state, sample.handle, priorities, mask)
    metrics = _sample_metrics(buffer, buffer_state, sample, errors) | info.metrics
    after, counts = agent.apply(agent_state, grads), faults.of_update(grads, info.metrics)
    if skip_nonfinite:
        after, counts = faults.skip(agent_state, after, counts)
    return after, buffer_state, metrics | counts


def _sample_metrics(buffer: Replay, state: PyTree, sample: Sample, priorities: jax.Array) -> Metrics:
    age = buffer.age(state, sample.handle)
    return {
        "priority": jnp.mean(priorities),
        "weight": jnp.mean(sample.weights),
        "sample_age": jnp.mean(age.astype(jnp.float32)),
    }
