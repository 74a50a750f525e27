"""Training in environments that are stepped on the host; acting and learning stay compiled programs.

An iteration is that of `training.loop`, with the same keys: collect `update_every` steps, learn from them. While a
chunk is learned from, the next one is collected already, with the policy from before that learning. So chunk `i + 1` is
acted by the policy that has learned from chunks up to `i - 1`, however the run is cut into pieces. `lock_step=True`
collects only when all learning is done, as `train` does.

Learning runs in a thread: on CPU, JAX runs programs that one thread starts one after the other, so an action would wait
for the updates. Seen on: jaxlib 0.10.2.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.environments import Finished
from algorithms.environments.gymnasium import HostEnvironment, Stepper
from algorithms.runs._rows import Rows
from algorithms.runs.host_evaluation import act_in_test, play, seed_of
from algorithms.training import loop
from algorithms.training.collection import where_env
from algorithms.training.evaluation import time_limit
from algorithms.training.loop import Buffer, TrainState
from algorithms.training.plan import Plan
from algorithms.types import Agent, Metrics
from jaxrl_buffers import Transition
from jaxrl_buffers._random.hashing import fold_in, split
from jaxrl_buffers.rollouts import Rollout
from jaxrl_buffers.types import PyTree

LAST = 2**31 - 1  # no iteration has this number, nor a split so many keys


def train_on_host(
    key: jax.Array,
    agent: Agent,
    buffer: Buffer,
    env: HostEnvironment,
    plan: Plan,
    buffer_state: PyTree = None,
    state: TrainState | None = None,
    lock_step: bool = False,
    agent_state: PyTree = None,
) -> tuple[TrainState, Metrics]:
    """Train as `train` does, in environments that are stepped on the host; consumes `key`.

    Args:
        key: a PRNG key.
        agent: the algorithm.
        buffer: what is learned from.
        env: such as `environments.make("gymnasium:HalfCheetah-v5")`.
        plan: how much is collected, learned and tested.
        buffer_state: what is stored already, such as offline data; it is used up.
        state: where an earlier call ended, to go on with its agent, buffer and counters; it is used up. Environments
            begin anew, and stored episodes that were under way count as cut off there.
        lock_step: collect and learn one after the other, in the place of both at once.
        agent_state: what was learned already, to go on with a new buffer and new counters of steps; see `train`.

    Returns:
        The last state, whose `collector` is (), and metrics `[E, ...]`, as those of `train`.

    Example:
        >>> import jaxrl_buffers as jb
        >>> from algorithms import DDQN, environments
        >>> env = environments.make("gymnasium:CartPole-v1")
        >>> plan = Plan(total_steps=300, start_steps=100, update_every=50, num_updates=1, test_every=100)
        >>> state, metrics = train_on_host(jax.random.key(0), DDQN(env.action_space), jb.uniform(1_000), env, plan)
        >>> metrics["returns"].shape
        (2, 5)
    """
    key_train, key_test = split(key)
    with HostLoop(agent, buffer, env, plan, lock_step) as host:
        state = host.init(key_train, buffer_state, agent_state) if state is None else host.begin_anew(state)
        history = []
        while (done := int(state.iteration)) < plan.num_iterations:
            _, next_test = plan.interval(done)
            state = host.run(state, next_test - done)
            state, metrics = loop.read_metrics(state, plan)
            key_now = fold_in(key_test, plan.num_tests(next_test) - 1)
            returns, _ = host.evaluate(state.agent, key_now, plan.num_test_episodes)
            history.append({**metrics, "returns": returns})
    if not history:
        raise ValueError(f"the state has made all {plan.total_steps} steps of the plan; raise its `total_steps`.")
    return state, jax.tree.map(lambda *leaves: jnp.stack(leaves), *history)


class HostLoop:
    """The environments of one training run and its compiled programs; `train_on_host` shows how to use it.

    States that `run`, `begin_anew` and `init` are given are used up: only what they return may be used afterwards.
    """

    def __init__(self, agent: Agent, buffer: Buffer, env: HostEnvironment, plan: Plan, lock_step: bool = False):
        plan.check_buffer(buffer, is_filled=True)  # more is known at `init`
        self._agent, self._buffer, self._env, self._plan = agent, buffer, env, plan
        self._overlaps = not lock_step and not isinstance(buffer, Rollout)  # which must be of the present policy
        self._learner = ThreadPoolExecutor(1, "learner")
        self._collector: _Collector | None = None
        self._tests: dict[int, Stepper] = {}  # by number of environments
        self._waiting: tuple[int, Any] | None = None  # an iteration, and the chunk that was collected for it
        self._keys = jax.jit(lambda key, i: loop.iteration_keys(fold_in(key, i), plan).act)
        self._act = jax.jit(functools.partial(_act, agent, env.action_space), static_argnames=("is_random",))
        self._test = jax.jit(functools.partial(act_in_test, agent), static_argnames=("num_envs", "deterministic"))
        # The agent's state is not given away: environments are acted in with it meanwhile.
        self._learn = jax.jit(self._learn_from, donate_argnums=0)
        self._store = jax.jit(self._store_rows, donate_argnums=0)
        self._offline = jax.jit(self._learn_offline, donate_argnums=0, static_argnums=2)
        self._break = jax.jit(buffer.mark_break, donate_argnums=0) if not isinstance(buffer, Rollout) else None

    def __enter__(self) -> HostLoop:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """End all environments."""
        self._learner.shutdown()
        for steps in [*self._tests.values(), *([self._collector.steps] if self._collector else [])]:
            steps.close()
        self._tests, self._collector = {}, None

    def init(self, key: jax.Array, buffer_state: PyTree = None, agent_state: PyTree = None) -> TrainState:
        """Return the state after `start_steps`, before the first update; consumes `key`. See `train`."""
        key_agent, key_env, key_warmup, key_train = split(key, 4)
        agent, buffer, env, plan = self._agent, self._buffer, self._env, self._plan
        state = loop.before_steps(key_agent, key_train, agent, buffer, env, plan, buffer_state, agent_state)
        self._begin(key_env)
        if not isinstance(buffer, Rollout) and plan.start_steps and not plan.offline_updates:
            state = self._warm_up(state, key_warmup, is_random=agent_state is None)
        return state._replace(sums=state.sums.with_names(loop.metric_names(state, agent, buffer, env, plan)))

    def begin_anew(self, state: TrainState) -> TrainState:
        """Begin new episodes in all environments; rows that are stored are never continued by those that follow."""
        self._begin(fold_in(fold_in(state.key, state.iteration), LAST))
        return state if self._break is None else state._replace(buffer=self._break(state.buffer))

    def run(self, state: TrainState, num_iterations: int) -> TrainState:
        """Run iterations, each of which collects `update_every` steps and then makes `num_updates` updates.

        Offline updates, and iterations behind them, are run by calls of their own.
        """
        first, offline = int(state.iteration), self._plan.offline_updates
        if first < offline:
            return jax.block_until_ready(self._offline(state.buffer, state._replace(buffer=()), num_iterations))
        if first == offline > 0 and self._plan.start_steps:
            state = self._warm_up(state, loop.key_of_first_steps(state), is_random=False)
        for iteration in range(first, first + num_iterations):
            chunk = self._take(iteration) or self._collect(state, iteration)
            learning = self._learner.submit(self._finish, state, chunk)
            if self._overlaps and iteration + 1 < self._plan.num_iterations:
                self._waiting = iteration + 1, self._collect(state, iteration + 1)
            state = learning.result()
        return state

    def evaluate(
        self, agent_state: Any, key: jax.Array, num_episodes: int, deterministic: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the returns `float32[E]` and lengths `int32[E]` of complete episodes; see `evaluate_on_host`."""
        key_reset, key_play = split(key)
        if num_episodes not in self._tests:
            self._tests[num_episodes] = self._env.start(num_episodes, seed_of(key_reset))
        steps, limit = self._tests[num_episodes], time_limit(self._env, None)
        steps.reset(seed_of(key_reset))
        act = functools.partial(self._test, num_envs=num_episodes, deterministic=deterministic)
        return play(steps, lambda *inputs: act(agent_state, *inputs, key_play), self._agent, limit)

    def _begin(self, key: jax.Array) -> None:
        """Begin new episodes; consumes `key`."""
        if self._collector is None:
            steps = self._env.start(self._plan.num_envs, seed_of(key))
            self._collector = _Collector(steps, self._agent)
        self._collector.reset(seed_of(key))
        self._waiting = None

    def _warm_up(self, state: TrainState, key: jax.Array, is_random: bool) -> TrainState:
        """Collect `start_steps`, with random actions or with those of the agent, a chunk at a time; consumes `key`."""
        assert self._collector is not None
        num_envs = self._plan.num_envs
        num_rows, chunk_rows = self._plan.start_steps // num_envs, self._plan.update_every // num_envs
        keys = split(split(key)[0], (num_rows, 1))[:, 0]
        for begin in range(0, num_rows, chunk_rows):
            part = keys[begin : begin + chunk_rows]
            chunk, _ = self._collector.collect(self._act, state.agent, part, is_random)
            step = (begin + len(part)) * num_envs
            state = self._store(state.buffer, state._replace(buffer=()), chunk, np.int32(step))
        return state

    def _collect(self, state: TrainState, iteration: int) -> tuple[Transition, Finished]:
        assert self._collector is not None
        return self._collector.collect(self._act, state.agent, self._keys(state.key, np.int32(iteration)))

    def _take(self, iteration: int) -> Any:
        """Return the chunk that waits to be learned from, if it is that of this iteration."""
        waiting, self._waiting = self._waiting, None
        return waiting[1] if waiting is not None and waiting[0] == iteration else None

    def _finish(self, state: TrainState, chunk: tuple[Transition, Finished]) -> TrainState:
        return jax.block_until_ready(self._learn(state.buffer, state._replace(buffer=()), *chunk))

    def _learn_from(self, buffer_state: PyTree, state: TrainState, chunk: Transition, finished: Finished) -> TrainState:
        keys = loop.iteration_keys(fold_in(state.key, state.iteration), self._plan)
        state = state._replace(buffer=buffer_state)
        return loop.learn(state, chunk, finished, keys, self._agent, self._buffer, self._plan)

    def _learn_offline(self, buffer_state: PyTree, state: TrainState, num_updates: int) -> TrainState:
        state = state._replace(buffer=buffer_state)
        return loop.run_offline(state, self._agent, self._buffer, self._plan, num_updates)

    def _store_rows(self, buffer_state: PyTree, state: TrainState, chunk: Transition, step: jax.Array) -> TrainState:
        buffer: Any = self._buffer  # no rollout: those have no warm-up
        return loop.store(state._replace(buffer=buffer_state), chunk, step, self._agent, buffer, self._plan)


class _Collector:
    """Environments with what acting remembers and the rows that wait."""

    def __init__(self, steps: Stepper, agent: Agent):
        self.steps, self._agent, self._rows = steps, agent, Rows(steps.num_envs)

    def reset(self, seed: int) -> None:
        """Begin new episodes."""
        self.steps.reset(seed)
        self._carry = self._agent.initial_carry(self.steps.num_envs)
        self._is_fresh = np.ones(self.steps.num_envs, bool)
        self._rows.clear()

    def collect(
        self, act: Any, agent_state: Any, keys: jax.Array, is_random: bool = False
    ) -> tuple[Transition, Finished]:
        """Return `K` rows of every environment, for as many keys, which are consumed."""
        num_rows, number = keys.shape[0], 0
        while len(self._rows) < num_rows:
            if number == num_rows:  # some steps were mere resets
                keys, number = split(fold_in(keys[-1], LAST), num_rows), 0
            inputs = agent_state, self.steps.obs, self._carry, self._is_fresh, keys, np.int32(number)
            action, self._carry, extras = act(*inputs, is_random=is_random)
            action, extras = jax.tree.map(np.asarray, (action, extras))
            transition, finished, is_row = self.steps.step(action)
            self._is_fresh = finished.ended | ~is_row
            self._rows.add((transition._replace(extras=extras), finished), is_row)
            number += 1
        return self._rows.take(num_rows)


def _act(
    agent: Agent,
    action_space: Any,
    agent_state: Any,
    obs: PyTree,
    carry: PyTree,
    is_fresh: jax.Array,
    keys: jax.Array,
    number: jax.Array,
    is_random: bool = False,
) -> tuple[jax.Array, PyTree, PyTree]:
    """Act as `loop.collect` does, with the key of a number, where `is_fresh` with nothing remembered."""
    num_envs = is_fresh.shape[0]
    fresh = agent.initial_carry(num_envs)
    carry = jax.tree.map(lambda new, old: where_env(is_fresh, new, old), fresh, carry)
    key = keys[number]
    key, key_random = split(key) if is_random else (key, None)
    action, carry, extras = agent.act(agent_state, obs, carry, key)
    return (action if key_random is None else action_space.sample(key_random, num_envs)), carry, extras
