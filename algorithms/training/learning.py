"""How one iteration learns: from new rows, from a replay buffer, or from rows that were stored before the run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from algorithms.environments import Finished
from algorithms.training import faults, off_policy, on_policy
from algorithms.training.keys import Keys
from algorithms.training.metrics import COUNT, Scalars
from algorithms.training.off_policy import Replay
from algorithms.training.plan import Plan
from algorithms.types import Agent, OnPolicyAgent
from jaxrl_buffers import Mixture, MixtureState, Transition
from jaxrl_buffers import _mesh as mesh
from jaxrl_buffers._mesh import Axis
from jaxrl_buffers._random.hashing import split
from jaxrl_buffers.rollouts import Rollout
from jaxrl_buffers.types import PyTree

Buffer = Replay | Rollout
BLOCK_ROWS = 1_024  # the number of stored rows that an agent observes at once


def learn(
    agent: Agent,
    buffer: Buffer,
    agent_state: PyTree,
    buffer_state: PyTree,
    chunk: Transition,
    finished: Finished,
    keys: Keys,
    plan: Plan,
) -> tuple[PyTree, PyTree, Scalars]:
    """Store the rows that an iteration collected, and make its updates.

    Args:
        agent: the algorithm.
        buffer: the buffer that the agent learns from. With a `Rollout` nothing is stored.
        agent_state: the agent's state.
        buffer_state: the buffer's state.
        chunk: the rows `[K, N, ...]` that were collected.
        finished: the episodes `[K, N]` that ended in these rows.
        keys: the keys of the iteration.
        plan: the number of updates and the size of a batch.

    Returns:
        The agent's state and the buffer's state after the updates, and the metrics of all `U` updates.
    """
    if isinstance(buffer, Rollout):
        if not isinstance(agent, OnPolicyAgent):
            raise ValueError(
                f"{type(agent).__name__} does not learn from a Rollout; give it a replay buffer, such as "
                "jb.uniform(100_000), or train an on-policy agent, such as PPO."
            )
        agent_state, metrics = on_policy.learn(agent, buffer, agent_state, chunk, keys.sample[0], plan)
        # The agent observes the rows after the updates. Updates need the policy that acted, with its old statistics.
        return observe(agent, agent_state, chunk, plan), buffer_state, _with_info(metrics, chunk, finished)
    agent_state = observe(agent, agent_state, chunk, plan)
    added: Any = buffer.add(buffer_state, chunk)
    buffer_state = buffer.report_return(added, _mean_return(finished, plan.axis))
    states = agent_state, buffer_state
    *after, metrics = off_policy.learn(agent, buffer, *states, keys.sample, keys.gradients, plan)
    return after[0], after[1], _with_info(metrics, chunk, finished)


def _with_info(metrics: Scalars, chunk: Transition, finished: Finished) -> Scalars:
    """Add the `info` numbers of rows `[K, N]` to the metrics: the means over steps, and over the ends of episodes.

    A number is NaN where the `info` of a step did not have it. Such a step does not count.
    """
    info = chunk.extras.get("info", {}) if isinstance(chunk.extras, dict) else {}
    if not info:
        return metrics
    sums = {}
    for name, values in info.items():
        is_known = ~jnp.isnan(values)
        for label, counts in ((f"info_{name}", is_known), (f"info_{name}_at_end", is_known & finished.ended)):
            sums[label], sums[label + COUNT] = jnp.sum(jnp.where(counts, values, 0)), jnp.sum(counts)
    values = jnp.stack([jnp.asarray(value, jnp.float32) for value in sums.values()])
    num_updates = metrics.values.shape[0]
    once = jnp.where(jnp.arange(num_updates)[:, None] == 0, values[None], 0)  # the sums over updates are the sums here
    return Scalars((*metrics.names, *sums), jnp.concatenate([metrics.values, once], axis=-1))


def observe(agent: Agent, agent_state: PyTree, chunk: Transition, plan: Plan) -> PyTree:
    """Return the agent's state after it observed rows `[K, N, ...]`.

    With `plan.skip_nonfinite`, the state stays unchanged if an observation is not finite.
    """
    after = agent.observe(agent_state, chunk)
    return faults.skip_observing(agent_state, after, chunk, plan.axis) if plan.skip_nonfinite else after


def learn_offline(
    agent: Agent, buffer: Replay, agent_state: PyTree, buffer_state: PyTree, key: jax.Array, plan: Plan
) -> tuple[PyTree, PyTree, Scalars]:
    """Make one update from rows that were stored before the run; consumes `key`.

    In a `Mixture`, these rows are in all buffers except the first. The first buffer is for the rows of the run.

    Returns:
        The agent's state and the buffer's state after the update, and its metrics, with a leading axis of size 1.
    """
    if isinstance(buffer, Mixture):
        stored, (online, *parts) = Mixture(buffer.buffers[1:], buffer.ratios[1:]), buffer_state.parts
        agent_state, after, metrics = _learn_once(agent, stored, agent_state, MixtureState(tuple(parts)), key, plan)
        return agent_state, MixtureState((online, *after.parts)), metrics
    return _learn_once(agent, buffer, agent_state, buffer_state, key, plan)


def _learn_once(
    agent: Agent, buffer: Replay, agent_state: PyTree, buffer_state: PyTree, key: jax.Array, plan: Plan
) -> tuple[PyTree, Any, Scalars]:
    key_sample, key_gradients = split(key)
    agent_state, buffer_state, metrics = off_policy.train_step(
        agent,
        buffer,
        agent_state,
        buffer_state,
        key_sample,
        key_gradients,
        plan.batch_of_device,
        skip_nonfinite=plan.skip_nonfinite,
    )
    return agent_state, buffer_state, jax.tree.map(lambda values: values[None], Scalars.of(metrics))


def observe_stored(agent: Agent, agent_state: PyTree, buffer: Replay, state: PyTree) -> PyTree:
    """Return the agent's state after it observed all stored rows, as `Normalized` needs it."""
    if isinstance(buffer, Mixture):
        for part, part_state in zip(buffer.buffers, state.parts, strict=True):
            agent_state = observe_stored(agent, agent_state, part, part_state)
        return agent_state

    def observed(num_rows: int, first: jax.Array, count: jax.Array, agent_state: PyTree) -> PyTree:
        def step(number: jax.Array, agent_state: PyTree) -> PyTree:
            rows, _ = buffer.slice(state, first + number * num_rows, num_rows)
            return agent.observe(agent_state, rows)

        return jax.lax.fori_loop(0, count, step, agent_state)

    size = jnp.min(state.storage.size)
    block = min(BLOCK_ROWS, buffer.length)
    agent_state = observed(block, jnp.zeros((), jnp.int32), size // block, agent_state)
    return observed(1, size // block * block, size % block, agent_state)


def _mean_return(finished: Finished, axis: Axis = None) -> jax.Array:
    """Return the mean return of the episodes that ended. If none ended it is NaN, which buffers ignore."""
    sums = jnp.sum(finished.episode_return), jnp.sum(finished.ended, dtype=jnp.float32)
    sum_of_returns, num_episodes = mesh.total(sums, axis)
    return sum_of_returns / num_episodes
