"""The parts of a run that step and learn, for compiled environments and for those on the host."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.environments.goals import Goal
from algorithms.environments.gymnasium import HostEnvironment
from algorithms.runs import data_set, pace
from algorithms.runs._member import Member, Own
from algorithms.runs.build import Experiment, build
from algorithms.runs.host_loop import HostLoop
from algorithms.runs.on_devices import OnDevices
from algorithms.runs.saved_states import SavedStates
from algorithms.runs.settings import Settings
from algorithms.runs.side_by_side import Alone, InOneProgram, Way, way_for
from algorithms.runs.varied import Varied
from algorithms.training.metrics import Sums
from algorithms.training.train_state import TrainState
from jaxrl_buffers.types import PyTree


class Programs(NamedTuple):
    """The parts of a run that step and learn, each for all seeds at once."""

    saved: SavedStates  # the shapes of states, and the form in which states are saved
    init: Callable[..., TrainState]  # takes the agent of another run, if there is one
    begin_anew: Callable[[TrainState], TrainState]
    adopt: Callable[[PyTree, PyTree, int], TrainState]  # agent and buffer of another run
    run: Callable[..., Callable[[TrainState], TrainState]]  # compiled for a number of iterations of a phase
    read_metrics: Callable[[TrainState], tuple[TrainState, PyTree]]  # with statistics of the buffer
    evaluate: Callable[[Any, int, int], PyTree]  # with the number of the test and of its episodes
    read_sums: Callable[[TrainState], Sums] = lambda state: state.sums  # of metrics, on all devices together
    split: Callable[[TrainState], Iterable[TrainState]] = lambda state: [state]  # into the states of a sweep's points
    join: Callable[[list[TrainState]], TrainState] = lambda states: states[0]  # the opposite of `split`
    goal: Goal | None = None  # of the environment
    has_episodes: bool = True  # whether the state holds the environments, too
    most_iterations: int | None = None  # that should be made at a time; see `pace`
    end: Callable[[], None] = lambda: None  # ends what is left running

    def shapes(self) -> Any:
        """Return the shapes of the state that `init` returns."""
        return self.saved.like

    def close(self) -> None:
        """End what is left running."""
        self.end()


def compile_programs(settings: Settings, cores: int | None = None, experiment: Experiment | None = None) -> Programs:
    """Return the programs of a run.

    Args:
        settings: of the run.
        cores: how many seeds run at a time on a CPU; None for as many as there are cores.
        experiment: the components that `build` makes from the settings, if they are there already.
    """
    return _compile([settings], [experiment or build(settings)], cores)


def compile_points(points: Sequence[Settings], cores: int | None = None) -> Programs:
    """Return the programs of runs side by side; the runs may differ only in hyper-parameters and seeds.

    Args:
        points: the settings of each run; only one if environments are stepped on the host.
        cores: how many seeds of all points run at a time on a CPU; None for as many as there are cores, and for
            environments on the host.
    """
    return _compile(points, [build(point) for point in points], cores)


def _compile(points: Sequence[Settings], experiments: Sequence[Experiment], cores: int | None) -> Programs:
    _, _, env, plan = experiments[0]
    varied = Varied([(experiment.agent, experiment.buffer) for experiment in experiments])
    own = _own_values(points, varied)
    if isinstance(env, HostEnvironment):
        if cores is not None:
            raise ValueError(
                f"cores: got {cores}, but {env.name} is stepped on the host, where all seeds learn in one program; "
                "leave it out."
            )
        return _on_host(points[0], experiments[0], env, own)
    way = way_for(len(own.key_train), cores, plan.devices)
    programs = _in_program(points, Member(varied, env, plan), own, way)
    return _of_devices(programs, Member(varied, env, plan), own, way) if isinstance(way, OnDevices) else programs


def _own_values(points: Sequence[Settings], varied: Varied) -> Own:
    """Return the values of all members, beginning with the seeds of the first point: leaves `[S, ...]`."""
    num_seeds = points[0].num_seeds
    keys = jnp.concatenate([jax.random.split(jax.random.key(point.seed), num_seeds) for point in points])
    key_train, key_test = jax.vmap(jax.random.split, out_axes=1)(keys)
    return Own(key_train, key_test, [jnp.repeat(jnp.asarray(values), num_seeds) for values in varied.values])


def _in_program(points: Sequence[Settings], member: Member, own: Own, way: Way) -> Programs:
    """Return the programs of runs whose environments are stepped inside of the compiled program."""
    num_seeds, dataset, num_members = points[0].num_seeds, points[0].dataset, len(own.key_train)
    own = way.split(own)
    like = way.shapes(member.begin if dataset is None else member.begin_filled, own)
    # All members have the same data set. Each gets its own copy, but a single member takes over the memory.
    of_state = functools.partial(way.compiled, gives_state=True)
    begun = of_state(member.begin, (1,) if num_members == 1 else (), num_shared=1)
    begun_from = of_state(member.begin_from, num_shared=1)
    begun_anew, gone_online = of_state(member.begin_anew, (1,)), of_state(member.go_online, (1,))
    adopted, looked = of_state(member.adopt, (1, 2), num_shared=1), way.compiled(member.read_metrics)
    forgotten = of_state(member.forget_metrics, (0,))
    tests = functools.cache(lambda num_episodes: way.compiled(member.test(num_episodes), num_shared=1))

    def init(agent_state: PyTree = None) -> TrainState:
        stored = None if dataset is None else data_set.load(dataset, member.buffer, member.env, member.agent)
        return begun(own, stored) if agent_state is None else begun_from(own, agent_state, stored)

    @functools.cache
    def run(count: int, phase: str = "online") -> Callable[[TrainState], TrainState]:
        if phase == "first":
            return lambda state: run(count)(gone_online(own, state))
        return way.repeated(member.run_offline if phase == "offline" else member.run, count, own, like)

    def read_metrics(state: TrainState) -> tuple[TrainState, PyTree]:
        metrics = way.gathered(looked(own, state))
        return forgotten(state), metrics

    return Programs(
        saved=SavedStates.of_one_device(like),
        init=init,
        begin_anew=lambda state: begun_anew(own, state),
        adopt=lambda agent, buffer, iteration: adopted(own, agent, buffer, np.int32(iteration)),
        run=run,
        read_metrics=read_metrics,
        evaluate=lambda agent, number, count: way.gathered(tests(count)(own, agent, np.int32(number))),
        split=lambda state: way.apart(state, num_seeds),
        join=lambda states: way.joined(states, num_seeds),
        goal=member.env.goal,
        most_iterations=pace.most_iterations(member.agent, member.buffer, like, member.plan),
    )


def _of_devices(programs: Programs, member: Member, own: Own, way: OnDevices) -> Programs:
    """Return programs that save and read states which are spread over devices."""
    alone = dataclasses.replace(member, plan=dataclasses.replace(member.plan, devices=1))
    summed = way.compiled(member.read_sums)
    return programs._replace(
        saved=way.saved_states(alone.begin, way.split(own), programs.shapes()),
        read_sums=lambda state: way.gathered(summed(state)),
    )


def _on_host(settings: Settings, experiment: Experiment, env: HostEnvironment, own: Own) -> Programs:
    """Return the programs of a run whose environments are stepped on the host, those of all seeds side by side."""
    way = Alone() if settings.num_seeds == 1 else InOneProgram()
    num_seeds = None if settings.num_seeds == 1 else settings.num_seeds
    agent, buffer, _, plan = experiment
    host = HostLoop(agent, buffer, env, plan, settings.collect_then_learn, settings.actors, num_seeds)
    own = way.split(own)
    key_of_test = way.compiled(jax.random.fold_in, num_shared=1)

    def init(agent_state: PyTree = None) -> TrainState:
        stored = None
        if settings.dataset is not None:
            stored = data_set.load(settings.dataset, buffer, env, agent)
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

    def test(agent_state: PyTree, number: int, num_episodes: int) -> PyTree:
        return way.gathered(host.evaluate(agent_state, key_of_test(own.key_test, np.int32(number)), num_episodes))

    return Programs(
        saved=SavedStates.of_one_device(host.shapes(own.key_train)),
        init=init,
        begin_anew=host.begin_anew,
        adopt=lambda agent, buffer, iteration: host.adopt(own.key_train, agent, buffer, iteration),
        run=compiled_run,
        read_metrics=read_metrics,
        evaluate=test,
        has_episodes=False,
        end=host.close,
    )
