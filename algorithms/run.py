"""A training run in a folder: chunks of one compiled program, with everything else between them on the host.

The outcome is the same, bit for bit, however the run is cut into chunks and however often it is stopped and continued,
and also if its budget is changed on the way (unless learning rates are annealed over that budget).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms import environments, loop, memory_need
from algorithms.evaluation import evaluate
from algorithms.loop import TrainState
from algorithms.plan import MAX_EPISODES, Plan
from algorithms.run_folder import RunFolder
from algorithms.run_progress import Progress, check_total, read_origin
from algorithms.settings import Settings
from algorithms.signals import StopSignals
from algorithms.watch import Watch, num_nonfinite
from jaxrl_buffers import ReplayBuffer, config
from jaxrl_buffers.checks import require_integer, require_number
from jaxrl_buffers.types import PyTree


class Interrupted(Exception):
    """The run was asked to stop; what it had reached has been saved, and `resume` goes on from there."""

    def __init__(self, signal_number: int, steps: int):
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after {steps:,} steps")
        self.signal_number = signal_number

    @property
    def is_unseen(self) -> bool:
        """Whether nobody is there to be told: the terminal is closed, or the reader of a pipe gone."""
        return signal.Signals(self.signal_number).name in ("SIGHUP", "SIGPIPE")


class Report(NamedTuple):
    """What is known between chunks."""

    phase: str  # what comes next: "compiling", "training", or "testing" the last policy
    steps: int  # environment steps of each seed
    total_steps: int
    steps_per_second: float  # of all seeds together
    metrics: Mapping[str, Any] | None  # after an evaluation: arrays [S], returns [S, E]


def _warn(line: str) -> None:
    warnings.warn(line, RuntimeWarning, stacklevel=2)


class Options(NamedTuple):
    """What does not change the outcome.

    Args:
        on_chunk: called before the first chunk, between chunks, and before the last evaluation. A `BrokenPipeError`,
            from printing where nobody reads, stops the run as SIGTERM does.
        checkpoint_seconds: how often the state is saved; it also is at the end, on Ctrl-C and on SIGTERM. None for
            what the run was started with, and 60 for a new one.
        final_episodes: episodes of the last, deterministic evaluation of every seed. None for what the run was started
            with, and 100 for a new one.
        on_signal: called with the number of every signal that asks to stop, at once and from another thread.
        on_notice: called with a line for people, such as when a first number is not finite; a warning by default.
    """

    on_chunk: Callable[[Report], None] = lambda report: None
    checkpoint_seconds: float | None = None
    final_episodes: int | None = None
    on_signal: Callable[[int], None] | None = None
    on_notice: Callable[[str], None] = _warn


class Kept(NamedTuple):
    """The options that stay with a run, with their defaults."""

    checkpoint_seconds: float = 60.0
    final_episodes: int = 100

    def over(self, values: Mapping[str, Any]) -> Kept:
        """Return these options, but for the values that are given."""
        given = {name: values[name] for name in self._fields if values.get(name) is not None}
        kept = self._replace(**config.check(Kept, given, self._fields))
        require_number("run", "checkpoint_seconds", kept.checkpoint_seconds, 0)
        require_integer("run", "final_episodes", kept.final_episodes, 1, MAX_EPISODES)
        return kept


class _Programs(NamedTuple):
    """The compiled parts of a run, each for all seeds at once."""

    init: Callable[[], TrainState]
    begin_anew: Callable[[TrainState], TrainState]
    adopt: Callable[[PyTree, PyTree, int], TrainState]  # agent and buffer of another run
    run: Callable[[int], Callable[[TrainState], TrainState]]  # compiled for a number of iterations
    read_metrics: Callable[[TrainState], tuple[TrainState, PyTree]]  # with statistics of the buffer
    evaluate: Callable[[Any, int, int], PyTree]  # with the number of the test and of its episodes


def start(settings: Settings, folder: str | os.PathLike[str], options: Options = Options()) -> dict[str, Any]:
    """Train in a folder, which must not exist, and return the result.

    Raises:
        Interrupted: because of Ctrl-C, SIGTERM or SIGHUP; the run can be resumed.
        NotFinite: with `on_nan="stop"`, because of the first number that is not finite.
        ValueError: also when there is not enough memory.
    """
    kept = Kept().over(options._asdict())
    run_folder = RunFolder(folder)
    run_folder.require_new()  # which takes seconds less than what follows
    with _guarded(options) as signals:
        programs = _compile(settings)
        memory_need.check(jax.eval_shape(programs.init))  # also refuses bad settings before anything is written
        run_folder.create(settings, kept._asdict())
        with run_folder.lock():
            return _train(settings, run_folder, programs, None, Progress(), options, kept, signals)


def resume(
    folder: str | os.PathLike[str],
    options: Options = Options(),
    fresh_environments: bool = False,
    total_steps: int | None = None,
) -> dict[str, Any]:
    """Continue the run in a folder from its checkpoint, as if it had never stopped, and return the result.

    A run that was killed before its first checkpoint begins from scratch.

    Args:
        folder: of the run.
        options: what does not change the outcome.
        fresh_environments: restore agent and buffer only, and begin new episodes; the stored ones that were under way
            are closed as by a time limit. A finished run stays as it is.
        total_steps: a new budget of the run, also of a finished one: environment steps in all, not below those that
            were made. Evaluations are where they would be if it had been the budget from the beginning, and where the
            run had ended. Learning rates that are annealed go on along the line over the new budget.

    Raises:
        Interrupted: because of Ctrl-C, SIGTERM or SIGHUP; the run can be resumed.
        NotFinite: with `on_nan="stop"`, because of the first number that is not finite.
        ValueError: also when another process writes to the folder, when its checkpoint is gone or damaged, or when
            there is not enough memory.
    """
    run_folder = RunFolder(folder)
    with run_folder.lock(), _guarded(options) as signals:
        settings = run_folder.settings()
        kept = Kept().over(run_folder.options()).over(options._asdict())
        run_folder.metrics()  # refuses those that could not be drawn in the end
        if total_steps is not None:
            settings = dataclasses.replace(settings, plan=dataclasses.replace(settings.plan, total_steps=total_steps))
        programs = _compile(settings)
        like = jax.eval_shape(programs.init)
        memory_need.check(like)
        state, progress = None, Progress()
        if run_folder.has_checkpoint:
            state, saved = run_folder.restore(like, furthest=True)
            progress = Progress.of(saved)
        check_total(run_folder, settings.plan, progress.steps(settings.plan))
        if total_steps is not None:
            run_folder.change_settings(settings)
        run_folder.keep_metrics(progress.steps(settings.plan))
        if fresh_environments and state is not None and progress.iteration < settings.plan.num_iterations:
            state = programs.begin_anew(state)
        return _train(settings, run_folder, programs, state, progress, options, kept, signals)


def fork(
    source: str | os.PathLike[str],
    settings: Settings,
    folder: str | os.PathLike[str],
    options: Options = Options(),
) -> dict[str, Any]:
    """Train in a folder, which must not exist, from what another run has learned and stored; return the result.

    The new run takes over agent and buffer, begins new episodes, and goes on counting steps from where the other one
    is: `total_steps` are those of both together. The other run is only read.

    Args:
        source: the folder of the other run.
        settings: of the new run, such as `dataclasses.replace(RunFolder(source).settings(), gamma=0.9)`; anything may
            be changed that leaves the shapes of the agent's and the buffer's state as they are.
        folder: of the new run.
        options: what does not change the outcome; those of the other run where they are None.

    Raises:
        Interrupted: because of Ctrl-C, SIGTERM or SIGHUP; the new run can be resumed.
        NotFinite: with `on_nan="stop"`, because of the first number that is not finite.
        ValueError: also when the settings do not fit to the state.
    """
    origin, run_folder = RunFolder(source), RunFolder(folder)
    run_folder.require_new()
    kept = Kept().over(origin.options()).over(options._asdict())
    with _guarded(options) as signals:
        programs = _compile(settings)
        agent, buffer, progress = read_origin(origin, settings, _shapes(origin.settings()), _shapes(settings))
        state = programs.adopt(agent, buffer, progress.iteration)
        forked_from = {"run": str(origin.path.absolute()), "steps": progress.steps(settings.plan)}
        run_folder.create(settings, {**kept._asdict(), "forked_from": forked_from}, (state, progress._asdict()))
        with run_folder.lock():
            return _train(settings, run_folder, programs, state, progress, options, kept, signals)


def restore(folder: str | os.PathLike[str]) -> TrainState:
    """Return the state in the checkpoint of a run, the last finite one: leaves `[S, ...]`, also of one seed."""
    run_folder = RunFolder(folder)
    settings = run_folder.settings()
    state, _ = run_folder.restore(_shapes(settings))
    return jax.tree.map(lambda leaf: leaf[None], state) if settings.num_seeds == 1 else state


@contextlib.contextmanager
def _guarded(options: Options) -> Iterator[StopSignals]:
    """Remember signals, and explain a lack of memory."""
    with StopSignals(options.on_signal) as signals, memory_need.explained():
        yield signals


def _shapes(settings: Settings) -> TrainState:
    return jax.eval_shape(_compile(settings).init)


def _train(
    settings: Settings,
    folder: RunFolder,
    programs: _Programs,
    state: TrainState | None,  # None to begin from scratch
    progress: Progress,
    options: Options,
    kept: Kept,
    signals: StopSignals,
) -> dict[str, Any]:
    plan = settings.plan
    watch = Watch(options.on_notice, settings.environment, plan.on_nan, lambda: _kept_steps(folder, plan))

    def tell(phase: str, metrics: Mapping[str, Any] | None = None) -> None:
        speed = _summary(settings, progress)["steps_per_second"]
        try:
            options.on_chunk(Report(phase, progress.steps(plan), plan.total_steps, speed, metrics))
        except BrokenPipeError:
            signals.stop(getattr(signal, "SIGPIPE", signal.SIGTERM))  # the former is unknown to Windows

    tell("compiling")
    if state is None:
        if signals.received:
            raise Interrupted(signals.received, 0)
        state = programs.init()
    watch.look(state.sums, is_read=False)  # of the warm-up, before anything is saved
    saved = -math.inf  # the first save is due at once
    while True:
        is_done = progress.iteration >= plan.num_iterations
        stop = signals.received  # one that comes during the save is obeyed after the next chunk
        if stop or is_done or time.monotonic() - saved > kept.checkpoint_seconds:
            is_finite = num_nonfinite(state.agent) == 0
            folder.save(state, settings, progress._asdict(), is_finite)
            if not is_finite:
                watch.saved_nonfinite()
            saved = time.monotonic()
        if stop:
            raise Interrupted(stop, progress.steps(plan))
        if is_done:
            break
        state, progress, metrics = _advance(settings, programs, state, progress, watch)
        if metrics is not None:
            folder.append({**_summary(settings, progress), **metrics})
        tell("training" if progress.iteration < plan.num_iterations else "testing", metrics)
    returns, lengths = programs.evaluate(state.agent, progress.num_tests(plan), kept.final_episodes)
    result = {
        "algorithm": settings.algorithm,
        "environment": settings.environment,
        **_summary(settings, progress),
        "mean_return": float(np.mean(returns)),
        "return_of_seeds": np.mean(returns, axis=1).tolist(),
        "mean_length": float(np.mean(lengths)),
        "episodes": kept.final_episodes,
        "nonfinite_numbers": num_nonfinite(state.agent),
    }
    for success in _success(settings, returns, lengths).values():
        result |= {"mean_success": float(np.mean(success)), "success_of_seeds": success.tolist()}
    folder.finish(result)
    return result


def _kept_steps(folder: RunFolder, plan: Plan) -> int | None:
    iteration = folder.finite_iteration()
    return None if iteration is None else Progress(iteration).steps(plan)


def _advance(
    settings: Settings, programs: _Programs, state: TrainState, progress: Progress, watch: Watch
) -> tuple[TrainState, Progress, dict[str, np.ndarray] | None]:
    """Run one chunk, and the evaluation behind it if one is due."""
    plan = settings.plan
    chunk = _chunk(plan, progress.iteration)
    compiled = programs.run(chunk)
    begun = time.monotonic()
    state = jax.block_until_ready(compiled(state))
    seconds = progress.seconds + time.monotonic() - begun
    progress, metrics = Progress(progress.iteration + chunk, seconds), None
    is_test = progress.iteration % plan.iterations_per_test == 0 or progress.iteration == plan.num_iterations
    watch.look(state.sums, is_read=is_test)
    if is_test:
        state, means = programs.read_metrics(state)
        number = progress.num_tests(plan) - 1
        returns, lengths = programs.evaluate(state.agent, number, plan.num_test_episodes)
        metrics = {name: np.asarray(mean) for name, mean in means.items() if name != "steps"}
        metrics |= {**_success(settings, returns, lengths), "returns": returns}
    return state, progress, metrics


def _success(settings: Settings, returns: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """Return in which part of the episodes `[S, E]` of each seed the goal was reached, if there are goals."""
    goal = environments.make(settings.environment).goal
    return {} if goal is None else {"success": np.mean(goal.is_reached(returns, lengths), axis=1)}


def _chunk(plan: Plan, iteration: int) -> int:
    """Return how many iterations to run now: never across an evaluation, and about ten chunks between two of them."""
    tested = iteration // plan.iterations_per_test * plan.iterations_per_test
    interval = min(plan.iterations_per_test, plan.num_iterations - tested)
    # Even parts, so that one compiled program serves them all. A run whose budget was changed may be between them.
    part = next(interval // parts for parts in (10, 8, 12, 5, 4, 3, 2, 1) if interval % parts == 0)
    return min(part, tested + interval - iteration)


def _summary(settings: Settings, progress: Progress) -> dict[str, Any]:
    steps = progress.steps(settings.plan)
    trained = settings.num_seeds * (steps - settings.plan.start_steps)
    return {"steps": steps, "seconds": progress.seconds, "steps_per_second": trained / max(progress.seconds, 1e-9)}


def _compile(settings: Settings) -> _Programs:
    """Return the programs of a run; one seed alone runs without an axis of seeds, which is faster."""
    agent, buffer, env, plan = settings.build()
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

    return _Programs(
        init=lambda: init(key_train),
        begin_anew=begin_anew,
        adopt=adopt,
        run=compiled_run,
        read_metrics=read_metrics,
        evaluate=lambda agent_state, number, num_episodes: with_axis(test(agent_state, number, num_episodes)),
    )
