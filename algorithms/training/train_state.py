"""The state of a training run, and how it begins, learns and is read.

Nothing here steps an environment. `training.loop` adds this for environments inside of the compiled program, and
`runs.host_loop` for environments on the host.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from algorithms.environments import Described, Finished
from algorithms.training import learning, structure
from algorithms.training.keys import Keys, iteration_keys
from algorithms.training.learning import Buffer
from algorithms.training.metrics import Scalars, Sums
from algorithms.training.off_policy import Replay
from algorithms.training.plan import Plan
from algorithms.types import Agent, Metrics
from jaxrl_buffers import Transition
from jaxrl_buffers._mesh import vary, vary_like
from jaxrl_buffers._random.hashing import fold_in, split
from jaxrl_buffers.rollouts import Rollout
from jaxrl_buffers.types import PyTree, Scalar


class TrainState(NamedTuple):
    """Everything that a training run keeps from one iteration to the next."""

    agent: PyTree  # the agent's state
    buffer: PyTree  # the replay buffer's state; () with a rollout
    collector: PyTree  # a `Collector`; () if environments are stepped on the host
    key: jax.Array  # iteration i has the key fold_in(key, i)
    iteration: jax.Array  # int32[], the number of iterations so far
    sums: Sums  # the sums of metrics since they were last read


def before_steps(
    key_agent: jax.Array,
    key_train: jax.Array,
    agent: Agent,
    buffer: Buffer,
    env: Described,
    plan: Plan,
    buffer_state: PyTree = None,
    agent_state: PyTree = None,
) -> TrainState:
    """Return the state before any step, without a collector; consumes both keys. See `train`."""
    _check_buffer(plan, buffer, is_filled=buffer_state is not None)
    if plan.offline_updates and buffer_state is None:
        raise ValueError(
            f"Plan(offline_updates={plan.offline_updates}): offline updates learn from stored rows, but there are "
            "none; give `buffer_state`, such as one from `jaxrl_buffers.datasets`."
        )
    if agent_state is None:
        agent_state = agent.init(key_agent, env.obs, env.action_space.example)
        if plan.offline_updates:
            assert not isinstance(buffer, Rollout)  # `Plan.check_buffer` refuses offline updates with a rollout
            agent_state = learning.observe_stored(agent, agent_state, buffer, buffer_state)
    else:
        structure.check_agent(agent, agent_state, env)
    if isinstance(buffer, Rollout):  # nothing is stored, because the agent learns from rows at once
        buffer_state = ()
    elif buffer_state is None:
        buffer_state = buffer.init(env.transition(structure.extras(agent, agent_state, env, key_train)))
    return TrainState(agent_state, buffer_state, (), key_train, jnp.zeros((), jnp.int32), Sums.zero(()))


def taken_over(
    key: jax.Array,
    agent_state: PyTree,
    buffer_state: PyTree,
    iteration: jax.Array,
    agent: Agent,
    buffer: Buffer,
    env: Described,
    plan: Plan,
) -> TrainState:
    """Return the state of `adopt` without a collector; consumes `key`."""
    _check_buffer(plan, buffer, is_filled=True)
    # This key differs from that of `init`, and from those of a run that is taken over at another iteration.
    key_train, _ = split(fold_in(fold_in(key, 2**31 - 1), iteration))
    iteration = jnp.asarray(iteration, jnp.int32)
    state = TrainState(agent_state, buffer_state, (), key_train, iteration, Sums.zero(()))
    return state._replace(sums=Sums.zero(metric_names(state, agent, buffer, env, plan)))


def _check_buffer(plan: Plan, buffer: Buffer, is_filled: bool = False) -> None:
    """Refuse a buffer that does not fit. With several devices, it is the part of one device and was checked before."""
    if plan.devices == 1:
        plan.check_buffer(buffer, is_filled=is_filled)


def spread(state: TrainState, plan: Plan) -> TrainState:
    """Declare what differs between the devices of a mesh, which a loop inside of `shard_map` must know.

    Buffer, environments and sums differ between the devices that share a seed. Everything differs between seeds, and so
    does the key. Without a mesh nothing is changed.
    """
    own = vary((state.buffer, state.collector, state.sums), plan.axis)
    buffer, collector, sums = vary_like(own, state.key)
    rest = vary_like((state.agent, state.iteration), state.key)
    return TrainState(rest[0], buffer, collector, state.key, rest[1], sums)


def learn(
    state: TrainState, chunk: Transition, finished: Finished, keys: Keys, agent: Agent, buffer: Buffer, plan: Plan
) -> TrainState:
    """Return the state after the updates of an iteration that collected these rows; see `learning.learn`."""
    agent_state, buffer_state, metrics = learning.learn(
        agent, buffer, state.agent, state.buffer, chunk, finished, keys, plan
    )
    sums = state.sums.add(plan.steps(state.iteration + 1), chunk, finished, metrics)
    return TrainState(agent_state, buffer_state, state.collector, state.key, state.iteration + 1, sums)


def store(state: TrainState, chunk: Transition, step: Scalar, agent: Agent, buffer: Replay, plan: Plan) -> TrainState:
    """Store rows `[K, N, ...]` without learning; `step` is the number of steps taken so far."""
    learner = learning.observe(agent, state.agent, chunk, plan), buffer.add(state.buffer, chunk)
    sums = state.sums.add(jnp.asarray(step), chunk)
    return TrainState(*learner, state.collector, state.key, state.iteration, sums)


def metric_names(state: TrainState, agent: Agent, buffer: Buffer, env: Described, plan: Plan) -> tuple[str, ...]:
    """Return the names of the metrics that every update reports."""
    rows = plan.update_every // plan.num_envs, plan.envs_of_device
    row = env.transition(structure.extras(agent, state.agent, env, state.key)), jax.eval_shape(_no_episode)
    chunk, finished = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*rows, *leaf.shape), leaf.dtype), row)

    def metrics(state: TrainState, chunk: Transition, finished: Finished) -> Scalars:
        keys = iteration_keys(state.key, plan)
        chunk, finished = vary_like(vary((chunk, finished), plan.axis), state.key)
        return learning.learn(agent, buffer, state.agent, state.buffer, chunk, finished, keys, plan)[2]

    return jax.eval_shape(metrics, state, chunk, finished).names


def _no_episode() -> Finished:
    return Finished(jnp.zeros((), bool), jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))


def read_metrics(state: TrainState, plan: Plan) -> tuple[TrainState, Metrics]:
    """Return the state with all sums set to zero, and the metrics since the last call."""
    steps = plan.steps(state.iteration)
    zero = vary_like(Sums.zero(state.sums.names), state.sums)
    return state._replace(sums=zero), {"steps": steps, **state.sums.across(plan.axis).read()}


def phase_of(plan: Plan, iteration: int) -> str:
    """Return the phase of an iteration.

    The phase is `offline` for offline updates, `first` for the iteration directly after them, and `online` for all
    other iterations.
    """
    if iteration < plan.offline_updates:
        return "offline"
    return "first" if iteration == plan.offline_updates > 0 else "online"


def key_of_first_steps(state: TrainState) -> jax.Array:
    """Return the key for the first steps after offline updates."""
    return fold_in(fold_in(state.key, state.iteration), 2**31 - 2)  # no iteration splits its key into so many parts
