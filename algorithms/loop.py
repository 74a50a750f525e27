"""Training as one compiled program: the only place where agent, buffer and environment meet.

`train(key, agent, buffer, env, plan)` is a pure function of a key. Scripts run its parts in chunks: `init`, then `run`
as often as they like, with `evaluate` in between. One long `run` and many short ones give the same bits, because the
randomness of iteration `i` is `fold_in(key, i)` and everything else is in the state. (Inside `train` XLA may round the
same sums in another order.)

The buffer decides how an iteration learns: from samples of a replay buffer (`train_step`), or, if it is a `Rollout`, in
epochs over the rows just collected (`on_policy.learn`). Everything else is the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import faults, on_policy
from algorithms.environments import Environment, EnvironmentState, Finished
from algorithms.evaluation import evaluate
from algorithms.metrics import Scalars, Sums
from algorithms.plan import Plan
from algorithms.types import Agent, Metrics
from jaxrl_buffers import Mixture, ReplayBuffer, Transition
from jaxrl_buffers._random.hashing import fold_in, split
from jaxrl_buffers.rollouts import Rollout
from jaxrl_buffers.types import PyTree, Sample, Scalar

Replay = ReplayBuffer | Mixture  # to learn off-policy
Buffer = Replay | Rollout  # a rollout to learn on-policy


class Collector(NamedTuple):
    """Environments in the middle of their episodes, with what acting remembers."""

    env: EnvironmentState
    carry: PyTree  # [N, ...]


class TrainState(NamedTuple):
    """Everything that a training run remembers."""

    agent: PyTree
    buffer: PyTree  # the state of the replay buffer; () with a rollout
    collector: Collector
    key: jax.Array  # of the training iterations
    iteration: jax.Array  # int32[]
    sums: Sums


class Keys(NamedTuple):
    """The randomness of one iteration."""

    act: jax.Array  # keys [K]
    env: jax.Array  # keys [K, N]
    sample: jax.Array  # keys [U]
    gradients: jax.Array  # keys [U]


def train(
    key: jax.Array, agent: Agent, buffer: Buffer, env: Environment, plan: Plan, buffer_state: PyTree = None
) -> tuple[TrainState, Metrics]:
    """Train from scratch, or with what `buffer_state` already holds, such as offline data; consumes `key`.

    Returns:
        The last state and metrics `[E, ...]`: one entry for each of `E` evaluations, with the means and the counts of
        faults since the one before, the number of environment `steps`, and `returns` `[E, num_test_episodes]`.

    Example:
        >>> import jaxrl_buffers as jb
        >>> from algorithms import DDQN, environments
        >>> env = environments.make("CartPole-v1")
        >>> plan = Plan(total_steps=300, start_steps=100, update_every=50, num_updates=1, test_every=100)
        >>> args = DDQN(env.action_space), jb.uniform(1_000), env, plan
        >>> state, metrics = jax.jit(jax.vmap(lambda key: train(key, *args)))(jax.random.split(jax.random.key(0), 2))
        >>> metrics["returns"].shape
        (2, 2, 5)
    """
    key_train, key_test = split(key)
    state = init(key_train, agent, buffer, env, plan, buffer_state)

    def epoch(state: TrainState, test: jax.Array, num_iterations: int) -> tuple[TrainState, Metrics]:
        state = run(state, agent, buffer, env, plan, num_iterations)
        state, metrics = read_metrics(state, plan)
        returns, _ = evaluate(agent, state.agent, env, fold_in(key_test, test), plan.num_test_episodes)
        return state, {**metrics, "returns": returns}

    num_tests, rest = divmod(plan.num_iterations, plan.iterations_per_test)
    state, metrics = jax.lax.scan(
        lambda state, test: epoch(state, test, plan.iterations_per_test), state, jnp.arange(num_tests, dtype=jnp.int32)
    )
    if rest:
        state, last = epoch(state, jnp.asarray(num_tests, jnp.int32), rest)
        metrics = jax.tree.map(lambda many, one: jnp.concatenate([many, one[None]]), metrics, last)
    return state, metrics


def init(
    key: jax.Array, agent: Agent, buffer: Buffer, env: Environment, plan: Plan, buffer_state: PyTree = None
) -> TrainState:
    """Return the state after `start_steps` random steps, before the first update; consumes `key`."""
    plan.check_buffer(buffer)
    key_agent, key_env, key_warmup, key_train = split(key, 4)
    agent_state = agent.init(key_agent, env.obs, env.action_space.example)
    collector = Collector(env.reset(key_env, plan.num_envs), agent.initial_carry(plan.num_envs))
    extras = jax.eval_shape(agent.act, agent_state, collector.env.obs, collector.carry, key_env)[2]
    row_extras = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), extras)
    if isinstance(buffer, Rollout):  # which is learned from at once and not kept
        buffer_state = ()
    elif buffer_state is None:
        buffer_state = buffer.init(env.transition(row_extras))
    state = TrainState(agent_state, buffer_state, collector, key_train, jnp.zeros((), jnp.int32), Sums.zero(()))
    if not isinstance(buffer, Rollout) and plan.start_steps:
        state = _warm_up(state, agent, buffer, env, plan, key_warmup)
    return state._replace(sums=state.sums.renamed(_metric_names(state, agent, buffer, env, plan)))


def run(
    state: TrainState, agent: Agent, buffer: Buffer, env: Environment, plan: Plan, num_iterations: int
) -> TrainState:
    """Run iterations, each of which collects `update_every` steps and then makes `num_updates` updates."""

    def iterate(state: TrainState, keys: Keys) -> tuple[TrainState, None]:
        collector, chunk, finished = collect(agent, state.agent, env, state.collector, keys.act, keys.env)
        agent_state, buffer_state, metrics = _learn(
            agent, buffer, state.agent, state.buffer, chunk, finished, keys, plan
        )
        step = plan.start_steps + (state.iteration + 1) * plan.update_every
        sums = state.sums.add(step, chunk, finished, metrics)
        return TrainState(agent_state, buffer_state, collector, state.key, state.iteration + 1, sums), None

    # All keys at once: inside the loop every derivation of a key would be a small kernel of its own.
    iterations = state.iteration + jnp.arange(num_iterations, dtype=jnp.int32)
    keys = jax.vmap(lambda i: _iteration_keys(fold_in(state.key, i), plan))(iterations)
    return jax.lax.scan(iterate, state, keys)[0]


def begin_anew(state: TrainState, agent: Agent, buffer: Buffer, env: Environment) -> TrainState:
    """Begin new episodes in all environments; rows that are stored are never continued by those that follow."""
    num_envs = state.collector.env.episode_length.shape[0]
    # No iteration splits its key into that many.
    key = fold_in(fold_in(state.key, state.iteration), 2**31 - 1)
    collector = Collector(env.reset(key, num_envs), agent.initial_carry(num_envs))
    # A rollout was used up in its iteration.
    buffer_state = state.buffer if isinstance(buffer, Rollout) else buffer.mark_break(state.buffer)
    return state._replace(collector=collector, buffer=buffer_state)


def adopt(
    key: jax.Array,
    agent_state: PyTree,
    buffer_state: PyTree,
    iteration: jax.Array,
    agent: Agent,
    buffer: Buffer,
    env: Environment,
    plan: Plan,
) -> TrainState:
    """Return a state that goes on, in new episodes, with what another run has learned and stored; consumes `key`."""
    plan.check_buffer(buffer)
    # Neither `init` nor another run that goes on from another iteration has these keys.
    key_train, key_env = split(fold_in(fold_in(key, 2**31 - 1), iteration))
    collector = Collector(env.reset(key_env, plan.num_envs), agent.initial_carry(plan.num_envs))
    iteration = jnp.asarray(iteration, jnp.int32)
    state = TrainState(agent_state, buffer_state, collector, key_train, iteration, Sums.zero(()))
    state = begin_anew(state, agent, buffer, env)
    return state._replace(sums=Sums.zero(_metric_names(state, agent, buffer, env, plan)))


def collect(
    agent: Agent,
    agent_state: Any,
    env: Environment,
    collector: Collector,
    keys_act: jax.Array,
    keys_env: jax.Array,
    is_random: bool = False,
) -> tuple[Collector, Transition, Finished]:
    """Take `K` steps in every environment, with uniformly random actions if `is_random`.

    Args:
        agent: the algorithm.
        agent_state: its state.
        env: the environment.
        collector: where the environments are.
        keys_act: `[K]`, consumed.
        keys_env: `[K, N]`, consumed.
        is_random: leave the choice of actions to chance instead of the agent.

    Returns:
        The environments afterwards, the transitions and the finished episodes, both `[K, N, ...]`.
    """
    num_envs = collector.env.episode_length.shape[0]
    fresh_carry = agent.initial_carry(num_envs)

    def step(collector: Collector, keys: Any) -> tuple[Collector, tuple[Transition, Finished]]:
        key_act, keys_env = keys
        key_act, key_random = split(key_act) if is_random else (key_act, None)
        action, carry, extras = agent.act(agent_state, collector.env.obs, collector.carry, key_act)
        if key_random is not None:
            action = env.action_space.sample(key_random, num_envs)
        env_state, transition, finished = env.step(collector.env, action, keys_env)
        carry = jax.tree.map(lambda fresh, old: _where(finished.ended, fresh, old), fresh_carry, carry)
        return Collector(env_state, carry), (transition._replace(extras=extras), finished)

    collector, (chunk, finished) = jax.lax.scan(step, collector, (keys_act, keys_env))
    return collector, chunk, finished


def train_step(
    agent: Agent,
    buffer: Replay,
    agent_state: Any,
    buffer_state: PyTree,
    key_sample: jax.Array,
    key_gradients: jax.Array,
    batch_size: int,
    progress: Scalar = 0.0,
    skips_nonfinite: bool = False,
) -> tuple[Any, PyTree, Metrics]:
    """Learn from one batch: sample, gradients, `update_priorities`, apply; consumes both keys.

    With `skips_nonfinite` a batch with gradients that are not finite, in any pass, leaves the agent's state exactly as
    it was, with all that it counts. Samples whose error is not finite get the priority 0, so that they soon are rare.
    """
    sample = buffer.sample(buffer_state, key_sample, batch_size, progress)
    after, metrics, found = agent_state, {}, []
    for index in range(agent.num_passes):
        key = jax.random.clone(key_gradients) if index else key_gradients
        grads, info = agent.gradients(after, sample, key, index)
        if index == 0:
            mask = sample.batch.mask if info.priorities.ndim == 2 else None  # of sequences
            told = info.priorities
            told = jnp.where(jnp.isfinite(told), told, 0) if skips_nonfinite else told
            buffer_state = buffer.update_priorities(buffer_state, sample.handle, told, mask)
            metrics = _sample_metrics(buffer, buffer_state, sample, info.priorities)
        after = agent.apply(after, grads)
        metrics |= info.metrics
        found.append(faults.of_update(grads, info.metrics))
    counts = jax.tree.map(lambda *passes: sum(passes), *found)
    if skips_nonfinite:
        after, counts = faults.skip(agent_state, after, counts)
    return after, buffer_state, metrics | counts


def read_metrics(state: TrainState, plan: Plan) -> tuple[TrainState, Metrics]:
    """Return means and counts since the last reading, and the state from which the next ones begin."""
    steps = plan.start_steps + state.iteration * plan.update_every
    return state._replace(sums=Sums.zero(state.sums.names)), {"steps": steps, **state.sums.read()}


def _learn(
    agent: Any,
    buffer: Buffer,
    agent_state: Any,
    buffer_state: PyTree,
    chunk: Transition,
    finished: Finished,
    keys: Keys,
    plan: Plan,
) -> tuple[Any, PyTree, Scalars]:
    """Make the updates of one iteration: from all that is stored, or from the new rows alone if they are a rollout."""
    if isinstance(buffer, Rollout):
        agent_state, metrics = on_policy.learn(agent, buffer, agent_state, chunk, keys.sample[0], plan)
        # Behind the updates, which need the policy as it was when it acted.
        return _observe(agent, agent_state, chunk, plan), buffer_state, metrics

    def update(learner: Any, inputs: Any) -> tuple[Any, Scalars]:
        key_sample, key_gradients, progress = inputs
        agent_state, buffer_state = learner
        keys_step = key_sample, key_gradients
        agent_state, buffer_state, metrics = train_step(
            agent, buffer, agent_state, buffer_state, *keys_step, plan.mini_batch_size, progress, plan.skips_nonfinite
        )
        return (agent_state, buffer_state), Scalars.of(metrics)

    progress = jnp.arange(plan.num_updates, dtype=jnp.float32) / plan.num_updates
    agent_state = _observe(agent, agent_state, chunk, plan)
    buffer_state = buffer.add(buffer_state, chunk)
    learner = agent_state, buffer.observe(buffer_state, _mean_return(finished))
    learner, metrics = jax.lax.scan(update, learner, (keys.sample, keys.gradients, progress))
    return *learner, metrics


def _observe(agent: Agent, agent_state: Any, chunk: Transition, plan: Plan) -> Any:
    after = agent.observe(agent_state, chunk)
    return faults.skip_observing(agent_state, after, chunk) if plan.skips_nonfinite else after


def _warm_up(
    state: TrainState, agent: Agent, buffer: Replay, env: Environment, plan: Plan, key: jax.Array
) -> TrainState:
    """Collect `start_steps` with random actions; consumes `key`."""

    def step(state: TrainState, inputs: Any) -> tuple[TrainState, None]:
        number, *keys = inputs
        collector, chunk, _ = collect(agent, state.agent, env, state.collector, *keys, is_random=True)
        learner = _observe(agent, state.agent, chunk, plan), buffer.add(state.buffer, chunk)
        sums = state.sums.add((number + 1) * plan.num_envs, chunk)
        return TrainState(*learner, collector, state.key, state.iteration, sums), None

    num_rows = plan.start_steps // plan.num_envs
    key_act, key_step = split(key)
    keys = split(key_act, (num_rows, 1)), split(key_step, (num_rows, 1, plan.num_envs))
    return jax.lax.scan(step, state, (jnp.arange(num_rows, dtype=jnp.int32), *keys))[0]


def _metric_names(state: TrainState, agent: Agent, buffer: Buffer, env: Environment, plan: Plan) -> tuple[str, ...]:
    """Return the names of what every update reports, by tracing one iteration."""

    def metrics(state: TrainState) -> Scalars:
        keys = _iteration_keys(state.key, plan)
        _, chunk, finished = collect(agent, state.agent, env, state.collector, keys.act, keys.env)
        return _learn(agent, buffer, state.agent, state.buffer, chunk, finished, keys, plan)[2]

    return jax.eval_shape(metrics, state).names


def _iteration_keys(key: jax.Array, plan: Plan) -> Keys:
    num_rows = plan.update_every // plan.num_envs
    keys = split(key, num_rows * (1 + plan.num_envs) + 2 * plan.num_updates)
    limits = np.cumsum([num_rows, num_rows * plan.num_envs, plan.num_updates])
    act, env, sample, gradients = jnp.split(keys, limits)
    return Keys(act, env.reshape(num_rows, plan.num_envs, *env.shape[1:]), sample, gradients)


def _mean_return(finished: Finished) -> jax.Array:
    """Return the mean return of the episodes that ended; NaN, which buffers ignore, if none did."""
    return jnp.sum(finished.episode_return) / jnp.sum(finished.ended, dtype=jnp.float32)


def _sample_metrics(buffer: Replay, state: PyTree, sample: Sample, priorities: jax.Array) -> Metrics:
    age = buffer.age(state, sample.handle)
    return {
        "priority": jnp.mean(priorities),
        "weight": jnp.mean(sample.weights),
        "sample_age": jnp.mean(age.astype(jnp.float32)),
    }


def _where(condition: jax.Array, chosen: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.where(condition.reshape(-1, *[1] * (chosen.ndim - 1)), chosen, other)
