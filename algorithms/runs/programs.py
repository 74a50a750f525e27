"""The parts of a run that step and learn, for compiled environments and for those on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.environments import Environment
from algorithms.environments.goals import Goal
from algorithms.runs import data_set
from algorithms.runs.build import Experiment, build
from algorithms.runs.host_loop import HostLoop
from algorithms.runs.settings import Settings
from algorithms.runs.side_by_side import Alone, InOneProgram, way_for
from algorithms.runs.varied import Varied
from algorithms.training import loop, train_state
from algorithms.training.evaluation import evaluate
from algorithms.training.learning import Buffer
from algorithms.training.train_state import TrainState
from algorithms.types import Agent
from jaxrl_buffers import ReplayBuffer
from jaxrl_buffers.types import PyTree


class Programs(NamedTuple):
    """The parts of a run that step and learn, each for all seeds at once."""

    shapes: Callable[[], TrainState]  # of the state that `init` returns
    init: Callable[..., TrainState]  # takes the agent of another run, if there is one
    begin_anew: Callable[[TrainState], TrainState]
    adopt: Callable[[PyTree, PyTree, int], TrainState]  # agent and buffer of another run
    run: Callable[..., Callable[[TrainState], TrainState]]  # compiled for a number of iterations of a phase
    read_metrics: Callable[[TrainState], tuple[TrainState, PyTree]]  # with statistics of the buffer
    evaluate: Callable[[Any, int, int], PyTree]  # with the number of the test and of its episodes
    split: Callable[[TrainState], Iterable[TrainState]] = lambda state: [state]  # into the states of a sweep's points
    join: Callable[[list[TrainState]], TrainState] = lambda states: states[0]  # the opposite of `split`
    goal: Goal | None = None  # of the environment
    keeps_episodes: bool = True  # whether the state holds the environments, too
    end: Callable[[], None] = lambda: None  # ends what is left running

    def close(self) -> None:
        """End what is left running."""
        self.end()


class Own(NamedTuple):
    """The values that each seed of each point has for itself."""

    key_train: jax.Array
    key_test: jax.Array
    values: list[jax.Array]  # of the hyper-parameters in which points differ


def compile_programs(settings: Settings, cores: int | None = None) -> Programs:
    """Return the programs of a run.

    Args:
        settings: of the run.
        cores: how many seeds run at a time on a CPU; None for as many as there are cores.
    """
    return compile_points([settings], cores)


def compile_points(points: Sequence[Settings], cores: int | None = None) -> Programs:
    """Return the programs of runs side by side; the runs may differ only in hyper-parameters and seeds.

    Args:
        points: the settings of each run; only one if environments are stepped on the host.
        cores: how many seeds of all points run at a time on a CPU; None for as many as there are cores.
    """
    experiments = [build(point) for point in points]
    _, buffer, env, plan = experiments[0]
    varied = Varied([(experiment.agent, experiment.buffer) for experiment in experiments])
    num_seeds, dataset = points[0].num_seeds, points[0].dataset
    keys = jnp.concatenate([jax.random.split(jax.random.key(point.seed), num_seeds) for point in points])
    values = [jnp.repeat(jnp.asarray(of_points), num_seeds) for of_points in varied.values]
    key_train, key_test = jax.vmap(jax.random.split, out_axes=1)(keys)
    own = Own(key_train, key_test, values)
    if not isinstance(env, Environment):
        return _on_host(points[0], experiments[0], own)
    way = way_for(len(points) * num_seeds, cores)
    own = way.split(own)

    def parts(own: Own) -> tuple[Agent, Buffer]:
        return varied.at(own.values)

    def begin(own: Own, agent_state: PyTree, stored: PyTree) -> TrainState:
        return loop.init(own.key_train, *parts(own), env, plan, stored, agent_state)

    def begin_like(own: Own) -> TrainState:
        return begin(own, None, None if dataset is None else buffer.init(env.transition()))

    def init(agent_state: PyTree = None) -> TrainState:
        stored = None if dataset is None else data_set.load(dataset, buffer, env)
        return begun(own, stored) if agent_state is None else begun_from(own, agent_state, stored)

    def begin_anew(own: Own, state: TrainState) -> TrainState:
        return loop.begin_anew(state, *parts(own), env)

    def adopt(own: Own, agent_state: PyTree, buffer_state: PyTree, iteration: jax.Array) -> TrainState:
        return loop.adopt(own.key_train, agent_state, buffer_state, iteration, *parts(own), env, plan)

    def advance(count: int) -> Callable[[Own, TrainState], TrainState]:
        return lambda own, state: loop.run(state, *parts(own), env, plan, count)

    def advance_offline(count: int) -> Callable[[Own, TrainState], TrainState]:
        return lambda own, state: loop.run_offline(state, *parts(own), plan, count)

    @functools.cache
    def run(count: int, phase: str = "online") -> Callable[[TrainState], TrainState]:
        if phase == "first":
            return lambda state: run(count)(gone_online(own, state))
        return way.repeated(advance_offline if phase == "offline" else advance, count, own, like)

    def go_online(own: Own, state: TrainState) -> TrainState:
        return loop.go_online(state, *parts(own), env, plan)

    def look(own: Own, state: TrainState) -> PyTree:
        # A rollout is empty between chunks: its rows are used up in their iteration.
        _, buffer = parts(own)
        stats = buffer.stats(state.buffer) if isinstance(buffer, ReplayBuffer) else {}
        return train_state.read_metrics(state, plan)[1] | {f"buffer_{name}": value for name, value in stats.items()}

    @functools.cache
    def tests(num_episodes: int) -> Any:
        def test(own: Own, agent_state: Any, number: jax.Array) -> PyTree:
            agent, _ = parts(own)
            return evaluate(agent, agent_state, env, jax.random.fold_in(own.key_test, number), num_episodes)

        return way.compiled(test, num_shared=1)

    def read_metrics(state: TrainState) -> tuple[TrainState, PyTree]:
        metrics = way.gathered(looked(own, state))
        return forgotten(state), metrics

    like = way.shapes(begin_like, own)
    # All members have the same data set. Each gets its own copy, but a single member takes over the memory.
    donated = (1,) if len(points) * num_seeds == 1 else ()
    begun = way.compiled(lambda own, stored: begin(own, None, stored), donated, num_shared=1)
    begun_from = way.compiled(begin, num_shared=1)
    gone_online = way.compiled(go_online, (1,))
    looked, adopted = way.compiled(look), way.compiled(adopt, (1, 2), num_shared=1)
    begun_anew = way.compiled(begin_anew, (1,))
    forgotten = way.compiled(lambda state: train_state.read_metrics(state, plan)[0], (0,))
    return Programs(
        shapes=lambda: like,
        init=init,
        begin_anew=lambda state: begun_anew(own, state),
        adopt=lambda agent, buffer, iteration: adopted(own, agent, buffer, np.int32(iteration)),
        run=run,
        read_metrics=read_metrics,
        evaluate=lambda agent, number, count: way.gathered(tests(count)(own, agent, np.int32(number))),
        split=lambda state: way.apart(state, num_seeds),
        join=lambda states: way.joined(states, num_seeds),
        goal=env.goal,
    )


def _on_host(settings: Settings, experiment: Experiment, own: Own) -> Programs:
    """Return the programs of a run whose environments are stepped on the host, those of all seeds side by side."""
    way = Alone() if settings.num_seeds == 1 else InOneProgram()
    num_seeds = None if settings.num_seeds == 1 else settings.num_seeds
    host = HostLoop(*experiment, lock_step=settings.lock_step, actors=settings.actors, num_seeds=num_seeds)
    own = way.split(own)
    key_of_test = way.compiled(jax.random.fold_in, num_shared=1)

    def init(agent_state: PyTree = None) -> TrainState:
        stored = None
        if settings.dataset is not None:
            stored = data_set.load(settings.dataset, experiment.buffer, experiment.env)
        if num_seeds is not None:  # each has a copy of its own
            stored = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_seeds, *leaf.shape)), stored)
        return host.init(own.key_train, stored, agent_state)

    def compiled_run(num_iterations: int, phase: str = "online") -> Callable[[TrainState], TrainState]:
        if phase != "offline":
            host.compile()
        return lambda state: host.run(state, num_iterations)

    def read_metrics(state: TrainState) -> tuple[TrainState, PyTree]:
        stats = {f"buffer_{name}": value for name, value in host.stats(state).items()}
        state, means = host.read_metrics(state)
        return state, way.gathered(means | stats)

    def test(agent_state: Any, number: int, num_episodes: int) -> PyTree:
        return way.gathered(host.evaluate(agent_state, key_of_test(own.key_test, np.int32(number)), num_episodes))

    return Programs(
        shapes=lambda: host.shapes(own.key_train),
        init=init,
        begin_anew=host.begin_anew,
        adopt=lambda agent, buffer, iteration: host.adopt(own.key_train, agent, buffer, iteration),
        run=compiled_run,
        read_metrics=read_metrics,
        evaluate=test,
        keeps_episodes=False,
        end=host.close,
    )
