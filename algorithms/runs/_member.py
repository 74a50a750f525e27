"""The functions of one member of a run, which `programs` compiles for all members."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from algorithms.environments import Environment
from algorithms.runs.varied import Varied
from algorithms.training import loop, parallel, structure, train_state
from algorithms.training.evaluation import evaluate
from algorithms.training.learning import Buffer
from algorithms.training.metrics import Sums
from algorithms.training.plan import Plan
from algorithms.training.train_state import TrainState
from algorithms.types import Agent
from jaxrl_buffers import ReplayBuffer, Sharded
from jaxrl_buffers.types import PyTree


class Own(NamedTuple):
    """The values that each member has for itself."""

    key_train: jax.Array
    key_test: jax.Array
    values: list[jax.Array]  # of the hyper-parameters in which points differ


@dataclasses.dataclass(frozen=True)
class Member:
    """One seed of one point of a sweep, as functions of its own values.

    Args:
        varied: agent and buffer of all points.
        env: the environment.
        plan: how much is collected, learned and tested.
    """

    varied: Varied
    env: Environment
    plan: Plan

    @property
    def agent(self) -> Agent:
        """The agent of the first point. All agents have states of the same shapes."""
        return self.varied.first[0]

    @property
    def buffer(self) -> Buffer:
        """The buffer of the first point. All buffers have states of the same shapes."""
        return self.varied.first[1]

    def begin(self, own: Own, stored: PyTree = None, agent_state: PyTree = None) -> TrainState:
        """Return the state after the first steps; see `train`."""
        return loop.init(own.key_train, *self._parts(own), self.env, self.plan, stored, agent_state)

    def begin_filled(self, own: Own) -> TrainState:
        """Return a state like `begin` for a buffer that holds a data set; only its shapes are of use."""
        return self.begin(own, self.buffer.init(structure.row(self.agent, self.env)))

    def begin_from(self, own: Own, agent_state: PyTree, stored: PyTree) -> TrainState:
        """Return the state after the first steps of an agent that was trained before."""
        return self.begin(own, stored, agent_state)

    def begin_anew(self, own: Own, state: TrainState) -> TrainState:
        """Begin new episodes in all environments."""
        return loop.begin_anew(state, *self._parts(own), self.env, self.plan)

    def adopt(self, own: Own, agent_state: PyTree, buffer_state: PyTree, iteration: jax.Array) -> TrainState:
        """Return a state that continues with the agent and the buffer of another run."""
        return loop.adopt(own.key_train, agent_state, buffer_state, iteration, *self._parts(own), self.env, self.plan)

    def run(self, count: int) -> Callable[[Own, TrainState], TrainState]:
        """Return the function that runs so many iterations."""
        return lambda own, state: loop.run(state, *self._parts(own), self.env, self.plan, count)

    def run_offline(self, count: int) -> Callable[[Own, TrainState], TrainState]:
        """Return the function that makes so many offline updates."""
        return lambda own, state: loop.run_offline(state, *self._parts(own), self.plan, count)

    def go_online(self, own: Own, state: TrainState) -> TrainState:
        """Collect the first steps after offline updates."""
        return loop.go_online(state, *self._parts(own), self.env, self.plan)

    def read_metrics(self, own: Own, state: TrainState) -> PyTree:
        """Return the metrics since they were last forgotten, with statistics of the buffer."""
        # A rollout is empty between chunks: its rows are used up in their iteration.
        _, buffer = self._parts(own)
        stats = buffer.stats(state.buffer) if isinstance(buffer, ReplayBuffer | Sharded) else {}
        metrics = train_state.read_metrics(state, self.plan)[1]
        return metrics | {f"buffer_{name}": value for name, value in stats.items()}

    def read_sums(self, state: TrainState) -> Sums:
        """Return the sums of metrics, over all devices that share the member."""
        return state.sums.across(self.plan.axis)

    def forget_metrics(self, state: TrainState) -> TrainState:
        """Set the sums of all metrics to zero."""
        return train_state.read_metrics(state, self.plan)[0]

    def test(self, num_episodes: int) -> Callable[[Own, Any, jax.Array], PyTree]:
        """Return the function that plays so many episodes, given the number of the test."""

        def play(own: Own, agent_state: PyTree, number: jax.Array) -> PyTree:
            agent, _ = self.varied.at(own.values)
            return evaluate(agent, agent_state, self.env, jax.random.fold_in(own.key_test, number), num_episodes)

        return play

    def _parts(self, own: Own) -> tuple[Agent, Buffer]:
        """Return agent and buffer, those of one device if several share the member."""
        agent, buffer = self.varied.at(own.values)
        return parallel.parts(agent, buffer, self.plan)
