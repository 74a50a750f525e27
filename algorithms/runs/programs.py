"""The compiled parts of a run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms.runs.build import build
from algorithms.runs.settings import Settings
from algorithms.training import loop
from algorithms.training.evaluation import evaluate
from algorithms.training.loop import TrainState
from jaxrl_buffers import ReplayBuffer
from jaxrl_buffers.types import PyTree


class Programs(NamedTuple):
    """The compiled parts of a run, each for all seeds at once."""

    init: Callable[[], TrainState]
    begin_anew: Callable[[TrainState], TrainState]
    adopt: Callable[[PyTree, PyTree, int], TrainState]  # agent and buffer of another run
    run: Callable[[int], Callable[[TrainState], TrainState]]  # compiled for a number of iterations
    read_metrics: Callable[[TrainState], tuple[TrainState, PyTree]]  # with statistics of the buffer
    evaluate: Callable[[Any, int, int], PyTree]  # with the number of the test and of its episodes


def compile_programs(settings: Settings) -> Programs:
    """Return the programs of a run; one seed alone runs without an axis of seeds, which is faster."""
    agent, buffer, env, plan = build(settings)
    keys = jax.random.split(jax.random.key(settings.seed), settings.num_seeds)
    keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    is_one = settings.num_seeds == 1
    key_train, key_test = (keys[0][0], keys[1][0]) if is_one else keys
    over_seeds = (lambda function: function) if is_one else jax.vmap

    def with_axis(values: PyTree) -> PyTree:
        return jax.tree.map(lambda value: np.asarray(value)[None] if is_one else np.asarray(value), values)

    init = jax.jit(over_seeds(lambda key: loop.init(key, agent, buffer, env, plan)))
    begin_anew = jax.jit(over_seeds(lambda state: loop.begin_anew(state, agent, buffer, env)), donate_argnums=0)
    read = jax.jit(over_seeds(lambda state: loop.read_metrics(state, plan)), donate_argnums=0)
    # A rollout is used up in its iteration: between chunks there is nothing in it to look at.
    stats = jax.jit(over_seeds(lambda state: buffer.stats(state.buffer) if isinstance(buffer, ReplayBuffer) else {}))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def adopt(agent_state: PyTree, buffer_state: PyTree, iteration: jax.Array) -> TrainState:
        def of_seed(key: jax.Array, agent_state: PyTree, buffer_state: PyTree) -> TrainState:
            return loop.adopt(key, agent_state, buffer_state, iteration, agent, buffer, env, plan)

        return over_seeds(of_seed)(key_train, agent_state, buffer_state)

    @functools.cache
    def compiled_run(num_iterations: int) -> Callable[[TrainState], TrainState]:
        run = over_seeds(lambda state: loop.run(state, agent, buffer, env, plan, num_iterations))
        return jax.jit(run, donate_argnums=0).lower(jax.eval_shape(init, key_train)).compile()

    @functools.partial(jax.jit, static_argnums=2)
    def test(agent_state: Any, number: jax.Array, num_episodes: int) -> PyTree:
        def of_seed(agent_state: Any, key: jax.Array) -> PyTree:
            return evaluate(agent, agent_state, env, jax.random.fold_in(key, number), num_episodes)

        return over_seeds(of_seed)(agent_state, key_test)

    def read_metrics(state: TrainState) -> tuple[TrainState, PyTree]:
        metrics = {f"buffer_{name}": value for name, value in stats(state).items()}
        state, means = read(state)
        return state, with_axis({**means, **metrics})

    return Programs(
        init=lambda: init(key_train),
        begin_anew=begin_anew,
        adopt=adopt,
        run=compiled_run,
        read_metrics=read_metrics,
        evaluate=lambda agent_state, number, num_episodes: with_axis(test(agent_state, number, num_episodes)),
    )
