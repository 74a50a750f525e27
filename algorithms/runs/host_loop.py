"""Training in environments that are stepped on the host; acting and learning stay compiled programs.

An iteration is the same as in `training.loop`, with the same keys: it collects `update_every` steps and learns from
them. While the agent learns from one chunk, the next chunk is collected with the policy from before this learning. So
chunk `i + 1` is collected by the policy that has learned from chunks up to `i - 1`. This does not depend on how the run
is cut into pieces, or on how many threads step the environments. With `collect_then_learn=True`, a chunk is collected
only when all learning is done, as `train` does.

Environments are stepped by separate threads. On CPU, JAX runs the programs that one thread starts one after the other,
so an action computed in the thread that starts learning would wait for the updates. Seen on: jaxlib 0.10.2.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.environments.gymnasium import HostEnvironment
from algorithms.environments.stepping import Stepper
from algorithms.runs._collecting import Act, Collector, Worker
from algorithms.runs._host_compiled import HostCompiled, Part, PolicyLeaves
from algorithms.runs.host_evaluation import in_rounds, play, side_by_side
from algorithms.training.evaluation import time_limit
from algorithms.training.learning import Buffer
from algorithms.training.plan import Plan
from algorithms.training.train_state import TrainState
from algorithms.types import Agent, Metrics
from jaxrl_buffers._checks import require_integer
from jaxrl_buffers._random.hashing import is_typed
from jaxrl_buffers.rollouts import Rollout
from jaxrl_buffers.types import PyTree


class HostLoop:
    """The environments of one training run and its compiled programs; `train_on_host` shows how to use it.

    `run`, `begin_anew` and `init` use up the states that they are given: afterwards use only what they return. With
    `num_seeds`, keys, states, metrics, returns and lengths have a leading axis of seeds.

    Args:
        agent: the algorithm.
        buffer: the buffer to learn from.
        env: the environment.
        plan: how much is collected, learned and tested.
        collect_then_learn: collect and learn one after the other.
        actors: threads that step the environments.
        num_seeds: independent runs side by side; None for one, without an axis.
    """

    def __init__(
        self,
        agent: Agent,
        buffer: Buffer,
        env: HostEnvironment,
        plan: Plan,
        collect_then_learn: bool = False,
        actors: int = 1,
        num_seeds: int | None = None,
    ):
        plan.check_buffer(buffer, is_filled=True)  # more is known at `init`
        check_actors(actors, plan.num_envs)
        self._env, self._plan = env, plan
        self._num_actors, self._num_seeds = actors, num_seeds
        self._has_overlap = not (collect_then_learn or isinstance(buffer, Rollout))  # rollouts need the present policy
        self._has_first_steps = not isinstance(buffer, Rollout) and plan.start_steps > 0
        self._programs = HostCompiled(agent, buffer, env, plan, actors, num_seeds)
        self._collectors: list[Collector] = []
        self._workers: list[Worker] = []
        self._tests: dict[int, Stepper] = {}  # by number of environments
        self._waiting: tuple[int, int] | None = None  # the iteration of the rows, and of the policy that acts
        self._is_compiled = False
        self._lags: list[int] = []  # for each chunk since the last reading, how many updates its policy was behind

    def __enter__(self) -> HostLoop:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close all environments and threads when their present work is done."""
        with contextlib.ExitStack() as stack:  # closes the rest even if one of them raises an error
            for steps in [*self._tests.values(), *(collector.steps for collector in self._collectors)]:
                stack.callback(steps.close)
            for worker in self._workers:
                stack.callback(worker.close)  # before the environments, which it steps
            self._workers, self._tests, self._collectors, self._waiting = [], {}, [], None

    def shapes(self, key: jax.Array) -> TrainState:
        """Return the shapes and dtypes of the state that `init` would return."""
        return self._programs.shapes(key)

    def init(self, key: jax.Array, buffer_state: PyTree = None, agent_state: PyTree = None) -> TrainState:
        """Return the state after `start_steps`, before the first update; consumes `key`. See `train`."""
        key = key if is_typed(key) else jax.random.wrap_key_data(key)
        state, key_env, key_warmup = self._programs.begin(key, buffer_state, agent_state)
        self._begin_episodes(key_env)
        if self._has_first_steps and not self._plan.offline_updates:
            state = self._warm_up(state, key_warmup, random=agent_state is None)
        return state

    def begin_anew(self, state: TrainState) -> TrainState:
        """Begin new episodes in all environments; stored episodes that were not finished count as cut off."""
        self._begin_episodes(self._programs.key_of_restart(state.key, state.iteration))
        return state._replace(buffer=self._programs.mark_break(state.buffer))

    def adopt(self, key: jax.Array, agent_state: PyTree, buffer_state: PyTree, iteration: int) -> TrainState:
        """Return a state with the agent and the buffer of another run, which continues in new episodes."""
        return self.begin_anew(self._programs.adopt(key, agent_state, buffer_state, np.int32(iteration)))

    def compile(self) -> None:
        """Compile what `run` needs, if it is not compiled yet. Without this, the first iterations do it."""
        if not self._is_compiled:
            self._programs.compile()
        self._is_compiled = True

    def run(self, state: TrainState, num_iterations: int) -> TrainState:
        """Run iterations, each of which collects `update_every` steps and then makes `num_updates` updates.

        Use separate calls for offline updates and for the iterations after them.
        """
        first, offline = int(np.ravel(state.iteration)[0]), self._plan.offline_updates
        if first < offline:
            return self._programs.learn_offline(state, num_iterations)
        if first == offline > 0 and self._has_first_steps:
            state = self._warm_up(state, self._programs.key_of_first_steps(state), random=False)
        key, state = state.key, state._replace(key=())
        policy = self._programs.policy(state.agent)
        for iteration in range(first, first + num_iterations):
            if self._waiting is None:
                self._begin_collecting(policy, key, iteration, iteration)
            chunk = self._collected(iteration)
            # This call returns at once. Code that acts with the new policy, or reads the state, waits for the result.
            state, newest = self._programs.learn(state, key, chunk)
            if self._has_overlap and iteration + 1 < self._plan.num_iterations:
                self._begin_collecting(policy, key, iteration + 1, iteration)
            policy = newest
        return state._replace(key=key)

    def read_metrics(self, state: TrainState) -> tuple[TrainState, Metrics]:
        """Return means and counts since the last reading, and the state from which the next ones begin."""
        metrics = self._programs.read(state)
        lag = np.full_like(metrics["episodes"], np.mean(self._lags) if self._lags else np.nan)
        self._lags = []
        return state._replace(sums=jax.tree.map(jnp.zeros_like, state.sums)), {**metrics, "policy_lag": lag}

    def stats(self, state: TrainState) -> Metrics:
        """Return statistics of the buffer."""
        return self._programs.stats(state)

    def evaluate(
        self, agent_state: PyTree, key: jax.Array, num_episodes: int, deterministic: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the returns `float32[E]` and lengths `int32[E]` of complete episodes; see `evaluate_on_host`."""
        limit, num_envs = time_limit(self._env, None), side_by_side(num_episodes, self._num_seeds or 1)
        if num_envs not in self._tests:
            self._tests[num_envs] = self._env.start_tests(num_envs * (self._num_seeds or 1))
        steps, carry = self._tests[num_envs], self._programs.first_carry(num_envs)

        def play_round(number: int) -> tuple[np.ndarray, np.ndarray]:
            key_round = self._programs.fold_in(key, np.int32(number)) if number else key
            key_reset, key_play = self._programs.split(key_round)
            steps.reset(self._env_seeds(key_reset, 0, num_envs))
            act = functools.partial(self._programs.test, agent_state, key_play, deterministic=deterministic)
            returns, lengths = play(steps, act, carry, limit)
            shape = (num_envs,) if self._num_seeds is None else (self._num_seeds, num_envs)
            return returns.reshape(shape), lengths.reshape(shape)

        return in_rounds(play_round, num_envs, num_episodes)

    def _begin_episodes(self, key: jax.Array) -> None:
        """Begin new episodes everywhere; consumes `key`."""
        if self._waiting is not None:
            self._collected(self._waiting[0])
        num_envs = self._plan.num_envs // self._num_actors  # of one seed, for each actor
        for actor in range(self._num_actors):
            seed = self._env_seeds(key, actor * num_envs, num_envs)
            if actor == len(self._collectors):
                steps = self._env.start(num_envs * (self._num_seeds or 1))
                self._collectors.append(Collector(steps, self._programs.first_carry(num_envs)))
                self._workers.append(Worker(f"actor {actor} of {self._env.name}"))
            self._collectors[actor].reset(seed)
        self._lags = []

    def _env_seeds(self, key: jax.Array, first: int, num_envs: int) -> int | list[int]:
        """Return the seeds of environments: `num_envs` consecutive numbers for each seed of the run."""
        bases = np.ravel(self._programs.seeds(key)).astype(int) + first
        return int(bases[0]) if len(bases) == 1 else [int(base) + env for base in bases for env in range(num_envs)]

    def _warm_up(self, state: TrainState, key: jax.Array, random: bool) -> TrainState:
        """Collect `start_steps`, with random actions or with those of the agent, a chunk at a time; consumes `key`."""
        num_envs = self._plan.num_envs
        num_rows, chunk_rows = self._plan.start_steps // num_envs, self._plan.update_every // num_envs
        keys, key_train, state = self._programs.warm_up_keys(key), state.key, state._replace(key=())
        act = functools.partial(self._programs.act_first, random=random)
        for begin in range(0, num_rows, chunk_rows):
            part = keys[..., begin : begin + chunk_rows]
            self._begin_all(
                [functools.partial(act, state.agent, part, actor) for actor in self._actors], part.shape[-1]
            )
            step = (begin + part.shape[-1]) * num_envs
            state = self._programs.store(state, np.int32(step), self._results())
        return state._replace(key=key_train)

    def _begin_collecting(self, policy: PolicyLeaves, key: jax.Array, iteration: int, of_policy: int) -> None:
        inputs = policy, key, np.int32(iteration)
        acts = [functools.partial(self._programs.act, *inputs, actor) for actor in self._actors]
        self._begin_all(acts, self._plan.update_every // self._plan.num_envs)
        self._waiting = iteration, of_policy

    def _collected(self, iteration: int) -> list[Part]:
        """Wait for the chunk of an iteration."""
        assert self._waiting is not None
        assert self._waiting[0] == iteration
        self._lags.append((iteration - self._waiting[1]) * self._plan.num_updates)
        self._waiting = None
        return self._results()

    @property
    def _actors(self) -> list[np.int32]:
        return [np.int32(number) for number in range(self._num_actors)]

    def _begin_all(self, acts: Sequence[Act], num_rows: int) -> None:
        for worker, collector, act in zip(self._workers, self._collectors, acts, strict=True):
            worker.begin(functools.partial(collector.collect, act, num_rows))

    def _results(self) -> list[Part]:
        """Wait for all actors, and only then raise the error of one that failed, so that no result stays in a queue."""
        parts, errors = [], []
        for worker in self._workers:
            try:
                parts.append(worker.result())
            except BaseException as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return parts


def check_actors(actors: int, num_envs: int) -> None:
    """Refuse a number of actors that cannot share the environments evenly."""
    require_integer("train_on_host", "actors", actors, 1)
    if num_envs % actors:
        raise ValueError(
            f"train_on_host(actors={actors}): {num_envs} environments cannot be shared evenly among {actors} actors; "
            f"take a multiple of {actors} environments (num_envs)."
        )
