"""Training as one compiled program: the only place where agent, buffer and environment meet.

`train(key, agent, buffer, env, plan)` is a pure function of a key. Scripts run its parts in chunks: `init`, then `run`
as often as they like, with `evaluate` in between. One long `run` and many short ones give the same bits, because the
randomness of iteration `i` is `fold_in(key, i)` and everything else is in the state. (Inside `train` XLA may round the
same sums in another order.)

The buffer decides how an iteration learns: from samples of a replay buffer (`off_policy.learn`), or, if it is a
`Rollout`, in epochs over the rows just collected (`on_policy.learn`). Everything else is the same.

With `plan.offline_updates`, `run_offline` comes first, as often as one likes, and then `go_online`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from algorithms.environments import Described, Environment, Finished
from algorithms.training import learning, structure
from algorithms.training.collection import Collector, collect
from algorithms.training.evaluation import evaluate
from algorithms.training.keys import Keys, iteration_keys
from algorithms.training.learning import Buffer, metric_names
from algorithms.training.metrics import Sums
from algorithms.training.off_policy import Replay
from algorithms.training.plan import Plan
from algorithms.types import Agent, Metrics
from jaxrl_buffers import Transition
from jaxrl_buffers._random.hashing import fold_in, split
from jaxrl_buffers.rollouts import Rollout
from jaxrl_buffers.types import PyTree, Scalar


class TrainState(NamedTuple):
    """Everything that a training run remembers."""

    agent: PyTree
    buffer: PyTree  # the state of the replay buffer; () with a rollout
    collector: Any  # a `Collector`; () where environments are stepped on the host
    key: jax.Array  # of the training iterations
    iteration: jax.Array  # int32[]
    sums: Sums


def train(
    key: jax.Array,
    agent: Agent,
    buffer: Buffer,
    env: Environment,
    plan: Plan,
    buffer_state: PyTree = None,
    agent_state: PyTree = None,
) -> tuple[TrainState, Metrics]:
    """Train from scratch, or go on with what was stored or learned before; consumes `key`.

    Args:
        key: a PRNG key.
        agent: the algorithm.
        buffer: what is learned from.
        env: the environment.
        plan: how much is collected, learned and tested.
        buffer_state: what is stored already, such as offline data.
        agent_state: what was learned already, such as `TrainState.agent` of an earlier call: parameters, optimizers,
            targets and counters go on as they are. The first steps are then those of its policy, not random ones.

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
    state = init(key_train, agent, buffer, env, plan, buffer_state, agent_state)

    def epochs(state: TrainState, advance: Any, num_iterations: int, per_test: int, first: int) -> tuple[Any, Metrics]:
        def epoch(state: TrainState, test: jax.Array, num_iterations: int) -> tuple[TrainState, Metrics]:
            state = advance(state, num_iterations=num_iterations)
            state, metrics = read_metrics(state, plan)
            returns, _ = evaluate(agent, state.agent, env, fold_in(key_test, test), plan.num_test_episodes)
            return state, {**metrics, "returns": returns}

        num_tests, rest = divmod(num_iterations, per_test)
        tests = first + jnp.arange(num_tests, dtype=jnp.int32)
        state, metrics = jax.lax.scan(lambda state, test: epoch(state, test, per_test), state, tests)
        if rest:
            state, last = epoch(state, jnp.asarray(first + num_tests, jnp.int32), rest)
            metrics = jax.tree.map(lambda many, one: jnp.concatenate([many, one[None]]), metrics, last)
        return state, metrics

    history, offline = [], plan.offline_updates
    if offline:
        advance = functools.partial(run_offline, agent=agent, buffer=buffer, plan=plan)
        state, metrics = epochs(state, advance, offline, plan.updates_per_test, 0)
        history.append(metrics)
    if plan.total_steps:
        state = go_online(state, agent, buffer, env, plan) if offline else state
        advance = functools.partial(run, agent=agent, buffer=buffer, env=env, plan=plan)
        rest, first = plan.num_iterations - offline, plan.num_tests(offline)
        state, metrics = epochs(state, advance, rest, plan.iterations_per_test, first)
        history.append(metrics)
    return state, jax.tree.map(lambda *parts: jnp.concatenate(parts), *history)


def init(
    key: jax.Array,
    agent: Agent,
    buffer: Buffer,
    env: Environment,
    plan: Plan,
    buffer_state: PyTree = None,
    agent_state: PyTree = None,
) -> TrainState:
    """Return the state after `start_steps`, before the first update; consumes `key`. See `train`."""
    key_agent, key_env, key_warmup, key_train = split(key, 4)
    state = before_steps(key_agent, key_train, agent, buffer, env, plan, buffer_state, agent_state)
    collector = Collector(env.reset(key_env, plan.num_envs), agent.initial_carry(plan.num_envs))
    state = state._replace(collector=collector)
    if not isinstance(buffer, Rollout) and plan.start_steps and not plan.offline_updates:
        state = _warm_up(state, agent, buffer, env, plan, key_warmup, is_random=agent_state is None)
    return state._replace(sums=state.sums.with_names(metric_names(state, agent, buffer, env, plan)))


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
    plan.check_buffer(buffer, is_filled=buffer_state is not None)
    if plan.offline_updates and buffer_state is None:
        raise ValueError(
            f"Plan(offline_updates={plan.offline_updates}): nothing is stored to learn from; give `buffer_state`, such "
            "as a data set."
        )
    if agent_state is None:
        agent_state = agent.init(key_agent, env.obs, env.action_space.example)
        if plan.offline_updates:
            agent_state = learning.observe_stored(agent, agent_state, buffer, buffer_state)
    else:
        structure.check_agent(agent, agent_state, env)
    if isinstance(buffer, Rollout):  # which is learned from at once and not kept
        buffer_state = ()
    elif buffer_state is None:
        buffer_state = buffer.init(env.transition(structure.extras(agent, agent_state, env, key_train)))
    return TrainState(agent_state, buffer_state, (), key_train, jnp.zeros((), jnp.int32), Sums.zero(()))


def run(
    state: TrainState, agent: Agent, buffer: Buffer, env: Environment, plan: Plan, num_iterations: int
) -> TrainState:
    """Run iterations, each of which collects `update_every` steps and then makes `num_updates` updates."""

    def iterate(state: TrainState, keys: Keys) -> tuple[TrainState, None]:
        collector, chunk, finished = collect(agent, state.agent, env, state.collector, keys.act, keys.env)
        return learn(state._replace(collector=collector), chunk, finished, keys, agent, buffer, plan), None

    # All keys at once: inside the loop every derivation of a key would be a small kernel of its own.
    iterations = state.iteration + jnp.arange(num_iterations, dtype=jnp.int32)
    keys = jax.vmap(lambda i: iteration_keys(fold_in(state.key, i), plan))(iterations)
    return jax.lax.scan(iterate, state, keys)[0]


def phase_of(plan: Plan, iteration: int) -> str:
    """Return what an iteration belongs to: `offline` updates, the `first` ones behind them, or `online` ones."""
    if iteration < plan.offline_updates:
        return "offline"
    return "first" if iteration == plan.offline_updates > 0 else "online"


def run_offline(state: TrainState, agent: Agent, buffer: Buffer, plan: Plan, num_iterations: int) -> TrainState:
    """Run iterations, each of which makes one update from what was stored before the run."""

    def iterate(state: TrainState, key: jax.Array) -> tuple[TrainState, None]:
        agent_state, buffer_state, metrics = learning.learn_offline(agent, buffer, state.agent, state.buffer, key, plan)
        sums = state.sums.add(jnp.zeros((), jnp.int32), None, updates=metrics)
        return TrainState(agent_state, buffer_state, state.collector, state.key, state.iteration + 1, sums), None

    iterations = state.iteration + jnp.arange(num_iterations, dtype=jnp.int32)
    return jax.lax.scan(iterate, state, jax.vmap(lambda i: fold_in(state.key, i))(iterations))[0]


def go_online(state: TrainState, agent: Agent, buffer: Buffer, env: Environment, plan: Plan) -> TrainState:
    """Take the first steps behind offline updates, which are those of the agent's policy."""
    key = key_of_first_steps(state)
    return _warm_up(state, agent, buffer, env, plan, key, is_random=False) if plan.start_steps else state


def key_of_first_steps(state: TrainState) -> jax.Array:
    """Return the randomness of the first steps behind offline updates."""
    return fold_in(fold_in(state.key, state.iteration), 2**31 - 2)  # no iteration splits its key into that many


def learn(
    state: TrainState, chunk: Transition, finished: Finished, keys: Keys, agent: Agent, buffer: Buffer, plan: Plan
) -> TrainState:
    """Make the updates of one iteration, which collected `chunk` `[K, N, ...]`, and count what happened."""
    agent_state, buffer_state, metrics = learning.learn(
        agent, buffer, state.agent, state.buffer, chunk, finished, keys, plan
    )
    sums = state.sums.add(plan.steps(state.iteration + 1), chunk, finished, metrics)
    return TrainState(agent_state, buffer_state, state.collector, state.key, state.iteration + 1, sums)


def store(state: TrainState, chunk: Transition, step: Scalar, agent: Agent, buffer: Replay, plan: Plan) -> TrainState:
    """Keep the first rows `[K, N, ...]`, after which `step` steps have been taken, and learn nothing."""
    learner = learning.observe(agent, state.agent, chunk, plan), buffer.add(state.buffer, chunk)
    sums = state.sums.add(jnp.asarray(step), chunk)
    return TrainState(*learner, state.collector, state.key, state.iteration, sums)


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
    state, key_env = taken_over(key, agent_state, buffer_state, iteration, agent, buffer, env, plan)
    collector = Collector(env.reset(key_env, plan.num_envs), agent.initial_carry(plan.num_envs))
    return begin_anew(state._replace(collector=collector), agent, buffer, env)


def taken_over(
    key: jax.Array,
    agent_state: PyTree,
    buffer_state: PyTree,
    iteration: jax.Array,
    agent: Agent,
    buffer: Buffer,
    env: Described,
    plan: Plan,
) -> tuple[TrainState, jax.Array]:
    """Return the state of `adopt` before its episodes begin, without a collector, and a key for them."""
    plan.check_buffer(buffer)
    # Neither `init` nor another run that goes on from another iteration has these keys.
    key_train, key_env = split(fold_in(fold_in(key, 2**31 - 1), iteration))
    iteration = jnp.asarray(iteration, jnp.int32)
    state = TrainState(agent_state, buffer_state, (), key_train, iteration, Sums.zero(()))
    return state._replace(sums=Sums.zero(metric_names(state, agent, buffer, env, plan))), key_env


def read_metrics(state: TrainState, plan: Plan) -> tuple[TrainState, Metrics]:
    """Return means and counts since the last reading, and the state from which the next ones begin."""
    steps = plan.steps(state.iteration)
    return state._replace(sums=Sums.zero(state.sums.names)), {"steps": steps, **state.sums.read()}


def _warm_up(
    state: TrainState, agent: Agent, buffer: Any, env: Environment, plan: Plan, key: jax.Array, is_random: bool
) -> TrainState:
    """Collect `start_steps`, with random actions or with those of the agent; consumes `key`."""

    def step(state: TrainState, inputs: tuple[jax.Array, ...]) -> tuple[TrainState, None]:
        number, *keys = inputs
        collector, chunk, _ = collect(agent, state.agent, env, state.collector, *keys, is_random=is_random)
        state = state._replace(collector=collector)
        return store(state, chunk, (number + 1) * plan.num_envs, agent, buffer, plan), None

    num_rows = plan.start_steps // plan.num_envs
    key_act, key_step = split(key)
    keys = split(key_act, (num_rows, 1)), split(key_step, (num_rows, 1, plan.num_envs))
    return jax.lax.scan(step, state, (jnp.arange(num_rows, dtype=jnp.int32), *keys))[0]
