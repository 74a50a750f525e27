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
        buffer: the buffer that the agent learns from.
        agent_state: the agent's state.
        buffer_state: the buffer's state.
        keys_sample: keys `[U]`, consumed.
        keys_gradients: keys `[U]`, consumed.
        plan: the number of updates, `num_updates`, and the number of samples in each, `mini_batch_size`.

    Returns:
        The agent's state and the buffer's state after the updates, and the metrics of all `U` updates.
    """

    def update(learner: tuple[PyTree, PyTree], inputs: tuple[jax.Array, ...]) -> tuple[tuple[PyTree, PyTree], Scalars]:
        key_sample, key_gradients, progress = inputs
        agent_state, buffer_state, metrics = train_step(
            agent, buffer, *learner, key_sample, key_gradients, plan.batch_of_device, progress, plan.skip_nonfinite
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
    """Make one update: `sample`, `gradients`, `update_priorities`, `apply`; consumes both keys.

    Args:
        agent: the algorithm.
        buffer: the buffer that the agent learns from.
        agent_state: the agent's state.
        buffer_state: the buffer's state.
        key_sample: a PRNG key for the sample.
        key_gradients: a PRNG key for the agent.
        batch_size: the number of samples, or of sequences, in the batch.
        progress: the share of the iteration's updates that are already made, from 0 to 1. Only the sampler `Recent`
            uses it.
        skip_nonfinite: whether to leave the agent's state unchanged if the update is not finite; see `faults.skip`.
            Samples whose error is not finite then get the priority 0, so that they are rarely drawn again.
        skips_nonfinite: the old name of `skip_nonfinite`.

    Returns:
        The states of agent and buffer, and metrics.

    Example:
        >>> import jaxrl_buffers as jb
        >>> from algorithms import DDQN, environments
        >>> env, buffer = environments.make("CartPole-v1"), jb.prioritized(100)
        >>> agent = DDQN(env.action_space)
        >>> agent_state = agent.init(jax.random.key(0), env.obs, env.action_space.example)
        >>> rows = jax.tree.map(lambda leaf: jnp.ones((50, 1, *leaf.shape), leaf.dtype), env.transition())
        >>> buffer_state = buffer.add(buffer.init(env.transition()), rows)
        >>> key_sample, key_gradients = jax.random.split(jax.random.key(1))
        >>> agent_state, buffer_state, metrics = train_step(
        ...     agent, buffer, agent_state, buffer_state, key_sample, key_gradients, batch_size=8
        ... )
        >>> int(agent_state.num_updates)
        1
    """
    if skips_nonfinite is not None:
        message = (
            "`skips_nonfinite` of train_step() is now called `skip_nonfinite`; "
            "the old name will be removed in version 2."
        )
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        skip_nonfinite = skips_nonfinite
    sample = buffer.sample(buffer_state, key_sample, batch_size, progress)
    grads, info = agent.gradients(agent_state, sample, key_gradients)
    errors = info.priorities
    mask = sample.batch.mask if errors.ndim == 2 else None  # errors of sequences are [B, L]
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
