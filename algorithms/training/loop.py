"""The training loop as one compiled program. It connects agent, buffer and environment.

`train(key, agent, buffer, env, plan)` is a pure function of a key:

    init:  reset the environments, and collect the first steps
    run:   repeat   collect `update_every` steps   ->   `learn`: store them, and make `num_updates` updates

Runs in folders call these parts one by one: first `init`, then `run` for some iterations at a time, with `evaluate` in
between. One long `run` and many short ones give exactly the same results: the random numbers of iteration `i` come from
`fold_in(key, i)`, and everything else is in the state. (Inside of `train`, XLA may add numbers in another order.)

The buffer decides how an iteration learns. With a replay buffer, it learns from samples (`off_policy.learn`). With a
`Rollout`, it learns in epochs over the rows that it has just collected (`on_policy.learn`). Everything else is the
same.

If `plan.offline_updates` is not 0, `run_offline` and then `go_online` come between `init` and `run`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from algorithms.environments import Environment
from algorithms.training import learning, train_state
from algorithms.training.collection import Collector, collect
from algorithms.training.evaluation import evaluate
from algorithms.training.keys import Keys, env_keys, iteration_keys, own_keys
from algorithms.training.learning import Buffer
from algorithms.training.plan import Plan
from algorithms.training.train_state import TrainState
from algorithms.types import Agent, Metrics
from jaxrl_buffers._random.hashing import fold_in, split
from jaxrl_buffers.rollouts import Rollout
from jaxrl_buffers.types import PyTree


def train(
    key: jax.Array,
    agent: Agent,
    buffer: Buffer,
    env: Environment,
    plan: Plan,
    buffer_state: PyTree = None,
    agent_state: PyTree = None,
) -> tuple[TrainState, Metrics]:
    """Train an agent from scratch, or continue from stored data or a trained agent; consumes `key`.

    Args:
        key: a PRNG key.
        agent: the algorithm.
        buffer: the buffer that the agent learns from, or a `Rollout` for on-policy agents.
        env: the environment.
        plan: how much the run collects, learns and tests.
        buffer_state: a state of the buffer with stored rows, such as offline data. None begins with an empty buffer.
        agent_state: a state of the agent, such as `TrainState.agent` of an earlier call. Training continues with its
            parameters, optimizers, targets and counters. The first steps are then taken by its policy, instead of at
            random. None begins with a new agent.

    Returns:
        The last state, and metrics with an entry for each of `E` evaluations. The metrics are means and counts since
        the last evaluation, the number `steps` of environment steps so far, and the `returns` of the test episodes,
        `float32[E, num_test_episodes]`.

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

    def test(state: TrainState, number: jax.Array) -> tuple[TrainState, Metrics]:
        state, metrics = train_state.read_metrics(state, plan)
        returns, _ = evaluate(agent, state.agent, env, fold_in(key_test, number), plan.num_test_episodes)
        return state, {**metrics, "returns": returns}

    history, offline = [], plan.offline_updates
    if offline:
        advance = functools.partial(run_offline, agent=agent, buffer=buffer, plan=plan)
        state, metrics = _run_with_tests(state, advance, test, offline, plan.updates_per_test, 0)
        history.append(metrics)
    if plan.total_steps:
        state = go_online(state, agent, buffer, env, plan) if offline else state
        advance = functools.partial(run, agent=agent, buffer=buffer, env=env, plan=plan)
        rest, first = plan.num_iterations - offline, plan.num_tests(offline)
        state, metrics = _run_with_tests(state, advance, test, rest, plan.iterations_per_test, first)
        history.append(metrics)
    return state, jax.tree.map(lambda *parts: jnp.concatenate(parts), *history)


def _run_with_tests(
    state: TrainState,
    advance: Callable[..., TrainState],
    test: Callable[[TrainState, jax.Array], tuple[TrainState, Metrics]],
    num_iterations: int,
    per_test: int,
    first: int,
) -> tuple[TrainState, Metrics]:
    """Run iterations, with a test after every `per_test` iterations and at the end.

    Args:
        state: the state before the iterations.
        advance: `run` or `run_offline`, with all arguments but the state and `num_iterations`.
        test: returns the next state and metrics, given a state and the number of the test.
        num_iterations: how many iterations to run.
        per_test: the number of iterations between two tests.
        first: the number of the first test.

    Returns:
        The last state, and the metrics of all `E` tests: leaves `[E, ...]`.
    """
    num_tests, rest = divmod(num_iterations, per_test)
    numbers = first + jnp.arange(num_tests, dtype=jnp.int32)
    state, metrics = jax.lax.scan(
        lambda state, number: test(advance(state, num_iterations=per_test), number), state, numbers
    )
    if rest:
        state, last = test(advance(state, num_iterations=rest), jnp.asarray(first + num_tests, jnp.int32))
        metrics = jax.tree.map(lambda many, one: jnp.concatenate([many, one[None]]), metrics, last)
    return state, metrics


def init(
    key: jax.Array,
    agent: Agent,
    buffer: Buffer,
    env: Environment,
    plan: Plan,
    buffer_state: PyTree = None,
    agent_state: PyTree = None,
) -> TrainState:
    """Return the state after the first steps, before the first update; consumes `key`. See `train`."""
    key_agent, key_env, key_warmup, key_train = split(key, 4)
    state = train_state.before_steps(key_agent, key_train, agent, buffer, env, plan, buffer_state, agent_state)
    state = train_state.spread(state._replace(collector=_begun(agent, env, key_env, plan)), plan)
    if not plan.offline_updates:
        state = _warm_up(state, agent, buffer, env, plan, key_warmup, random=agent_state is None)
    names = train_state.metric_names(state, agent, buffer, env, plan)
    return state._replace(sums=state.sums.with_names(names))


def run(
    state: TrainState, agent: Agent, buffer: Buffer, env: Environment, plan: Plan, num_iterations: int
) -> TrainState:
    """Run some iterations. Each collects `update_every` steps, and then makes `num_updates` updates."""

    def iterate(state: TrainState, keys: Keys) -> tuple[TrainState, None]:
        collector, chunk, finished = collect(agent, state.agent, env, state.collector, keys.act, keys.env)
        return train_state.learn(state._replace(collector=collector), chunk, finished, keys, agent, buffer, plan), None

    # All keys are derived before the loop. Inside of it, each key would need its own small kernel.
    iterations = state.iteration + jnp.arange(num_iterations, dtype=jnp.int32)
    keys = jax.vmap(lambda i: iteration_keys(fold_in(state.key, i), plan))(iterations)
    return jax.lax.scan(iterate, state, keys)[0]


def run_offline(state: TrainState, agent: Agent, buffer: Buffer, plan: Plan, num_iterations: int) -> TrainState:
    """Run some offline iterations. Each makes one update from rows that were stored before the run."""
    assert not isinstance(buffer, Rollout)  # `Plan.check_buffer` refuses offline updates with a rollout

    def iterate(state: TrainState, key: jax.Array) -> tuple[TrainState, None]:
        agent_state, buffer_state, metrics = learning.learn_offline(agent, buffer, state.agent, state.buffer, key, plan)
        sums = state.sums.add(-(state.iteration + 1), None, updates=metrics)
        return TrainState(agent_state, buffer_state, state.collector, state.key, state.iteration + 1, sums), None

    iterations = state.iteration + jnp.arange(num_iterations, dtype=jnp.int32)
    return jax.lax.scan(iterate, state, jax.vmap(lambda i: fold_in(state.key, i))(iterations))[0]


def go_online(state: TrainState, agent: Agent, buffer: Buffer, env: Environment, plan: Plan) -> TrainState:
    """Collect the first steps after offline updates, with the actions of the agent."""
    return _warm_up(state, agent, buffer, env, plan, train_state.key_of_first_steps(state), random=False)


def begin_anew(
    state: TrainState, agent: Agent, buffer: Buffer, env: Environment, plan: Plan | None = None
) -> TrainState:
    """Begin new episodes in all environments. The rows that follow do not continue any stored episode.

    Only a state without a collector, and several devices, need the `plan`.
    """
    if plan is None:
        plan = Plan(0, state.collector.env.episode_length.shape[0], offline_updates=1)
    key = fold_in(fold_in(state.key, state.iteration), 2**31 - 1)  # no iteration splits its key into so many parts
    buffer_state = state.buffer if isinstance(buffer, Rollout) else buffer.mark_break(state.buffer)
    return train_state.spread(state._replace(collector=_begun(agent, env, key, plan), buffer=buffer_state), plan)


def _begun(agent: Agent, env: Environment, key: jax.Array, plan: Plan) -> Collector:
    """Begin episodes in all environments of the device; consumes `key`."""
    keys = key if plan.devices == 1 else env_keys(key, 1, plan)[0]
    return Collector(env.reset(keys, plan.envs_of_device), agent.initial_carry(plan.envs_of_device))


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
    """Return a state that continues with the agent and the buffer of another run, in new episodes; consumes `key`."""
    state = train_state.taken_over(key, agent_state, buffer_state, iteration, agent, buffer, env, plan)
    return begin_anew(state, agent, buffer, env, plan)


def _warm_up(
    state: TrainState, agent: Agent, buffer: Buffer, env: Environment, plan: Plan, key: jax.Array, random: bool
) -> TrainState:
    """Collect `start_steps` steps, with random actions or with actions of the agent; consumes `key`."""
    if isinstance(buffer, Rollout) or not plan.start_steps:
        return state

    def step(state: TrainState, inputs: tuple[jax.Array, ...]) -> tuple[TrainState, None]:
        number, *keys = inputs
        collector, chunk, _ = collect(agent, state.agent, env, state.collector, *keys, random=random)
        state = state._replace(collector=collector)
        return train_state.store(state, chunk, (number + 1) * plan.num_envs, agent, buffer, plan), None

    num_rows = plan.start_steps // plan.num_envs
    key_act, key_step = split(key)
    keys = own_keys(key_act, num_rows, plan)[:, None], env_keys(key_step, num_rows, plan)[:, None]
    return jax.lax.scan(step, state, (jnp.arange(num_rows, dtype=jnp.int32), *keys))[0]
