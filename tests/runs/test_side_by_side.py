"""Seeds side by side: the same results however they are spread over cores, or over an axis of one program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import chex
import jax
import numpy as np
import pytest

from algorithms import Plan
from algorithms.runs import run, side_by_side
from algorithms.runs.build import complete
from algorithms.runs.on_devices import OnDevices
from algorithms.runs.programs import compile_programs
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings
from algorithms.runs.side_by_side import Alone, InOneProgram, OnCores, num_turns, shapes_of_all, way_for
from jaxrl_buffers import checkpoint
from jaxrl_buffers._saved_leaves import SideBySide

PLAN = Plan(
    total_steps=124, num_envs=2, start_steps=60, update_every=4, num_updates=1, mini_batch_size=8, num_test_episodes=2
)
SETTINGS = complete(
    Settings("ddqn", "CartPole-v1", PLAN, {"name": "prioritized"}, capacity=100, hidden_sizes=(8,), num_seeds=3)
)
FEW = run.Options(final_episodes=2)


def plain(state):
    """The state with leaves [S, ...] that NumPy can compare."""
    if isinstance(state, SideBySide):
        state = jax.tree.map(lambda *leaves: np.stack(leaves), *map(plain, state.states))
    is_key = lambda leaf: jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda leaf: np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf), state)


def trained(way, monkeypatch, num_iterations=8):
    """The state after some iterations, and what is seen of it."""
    monkeypatch.setattr("algorithms.runs.programs.way_for", lambda *_: way)
    programs = compile_programs(SETTINGS)
    state = programs.run(num_iterations)(programs.init())
    evaluated = programs.evaluate(state.agent, 1, 2)
    state, metrics = programs.read_metrics(state)
    return plain(state), metrics, evaluated


def test_every_way_gives_a_seed_the_same_results(monkeypatch):
    """One seed alone, on cores in any number, and in one program: the same, to rounding in the last case."""
    on_two = trained(OnCores(2), monkeypatch)
    chex.assert_trees_all_equal(trained(OnCores(1), monkeypatch), on_two)
    in_one = trained(InOneProgram(), monkeypatch)
    chex.assert_trees_all_close(in_one[0].agent, on_two[0].agent, rtol=1e-4, atol=1e-5)
    chex.assert_trees_all_close(in_one[1:], on_two[1:], rtol=1e-4, atol=1e-4)
    alone = trained(Alone(), monkeypatch)  # the first of the seeds
    chex.assert_trees_all_equal(alone[0], jax.tree.map(lambda leaf: leaf[0], on_two[0]))
    assert not np.array_equal(*(on_two[0].agent.params.critic["params"]["Dense_0"]["kernel"][seed] for seed in (0, 1)))


def test_which_way_is_taken(monkeypatch):
    assert isinstance(way_for(1), Alone)
    assert isinstance(way_for(2), OnCores)
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert isinstance(way_for(2), OnDevices)  # each on a device of its own
    assert isinstance(way_for(1, devices=2), OnDevices)
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert isinstance(way_for(2), InOneProgram)
    with pytest.raises(ValueError, match="cores"):
        way_for(2, cores=0)


def test_members_run_at_the_same_time():
    """Two members that wait for each other get on only if both are running."""
    barrier = threading.Barrier(2)

    def meet(value):
        barrier.wait(timeout=60)
        return np.asarray(value)

    def together(value):
        return jax.pure_callback(meet, jax.ShapeDtypeStruct((), np.float32), value)

    way = OnCores(2)
    values = way.split(np.arange(2, dtype=np.float32))
    np.testing.assert_array_equal(way.gathered(way.compiled(together)(values)), [0, 1])


@pytest.mark.parametrize(("num_members", "num_threads", "count"), [(5, 2, 12), (3, 2, 7), (5, 4, 8), (2, 2, 6)])
def test_members_that_take_turns_all_get_on(num_members, num_threads, count):
    way = OnCores(num_threads)
    own, states = (way.split(np.arange(num_members, dtype=np.float32)) for _ in range(2))
    advance = lambda count: lambda own, state: state + count * own  # noqa: E731
    for _ in range(3):
        after = way.gathered(way.repeated(advance, count, own, way.shapes(lambda own: own, own))(states))
        np.testing.assert_array_equal(after, np.arange(num_members) * (1 + count))
        states = way.split(np.arange(num_members, dtype=np.float32))


def test_a_thread_that_fails_is_heard():
    def fail(value):
        raise RuntimeError("no")

    way = OnCores(2)
    own = way.split(np.arange(3, dtype=np.float32))
    call = lambda own, state: jax.pure_callback(fail, jax.ShapeDtypeStruct((), np.float32), state)  # noqa: E731
    program = way.repeated(lambda count: call, 2, own, way.shapes(lambda own: own, own))
    with pytest.raises(jax.errors.JaxRuntimeError):
        program(way.split(np.arange(3, dtype=np.float32)))


def test_turns():
    """As few as keep all threads busy, and only such that divide the repetitions."""
    assert [num_turns(members, 2, 10) for members in (2, 3, 4, 5)] == [1, 2, 1, 2]
    assert num_turns(5, 2, 7) == 1 or num_turns(5, 2, 7) == 7
    assert num_turns(65, 64, 64) == 8


def test_states_are_moved_forward_in_place():
    programs = compile_programs(SETTINGS)
    state = programs.init()
    places = [ring.unsafe_buffer_pointer() for one in state.states for ring in jax.tree.leaves(one.buffer.storage.data)]
    state = programs.run(4)(state)
    state, _ = programs.read_metrics(state)
    after = [ring.unsafe_buffer_pointer() for one in state.states for ring in jax.tree.leaves(one.buffer.storage.data)]
    assert after == places


def test_a_run_goes_on_in_another_way(tmp_path, monkeypatch):
    """What is saved does not tell in which way the seeds were run; `restore` gives one state of all seeds."""

    def stop(report):
        if report.phase == "training":
            os.kill(os.getpid(), signal.SIGTERM)

    run.start(SETTINGS, tmp_path / "whole", FEW)
    with pytest.raises(run.Interrupted):
        run.start(SETTINGS, tmp_path / "parts", FEW._replace(on_chunk=stop, cores=2))
    assert checkpoint.read_metadata(tmp_path / "parts" / "checkpoint")["metadata"]["iteration"] < PLAN.num_iterations
    run.resume(tmp_path / "parts", FEW._replace(cores=1))
    whole, parts = (run.restore(tmp_path / name) for name in ("whole", "parts"))
    chex.assert_trees_all_equal(plain(whole), plain(parts))
    monkeypatch.setattr("algorithms.runs.programs.way_for", lambda *_: InOneProgram())
    like = compile_programs(SETTINGS).shapes()
    assert jax.tree.map(lambda leaf: leaf.shape, like) == jax.tree.map(lambda leaf: leaf.shape, whole)
    state, _ = RunFolder(tmp_path / "parts").restore(like)
    chex.assert_trees_all_equal(plain(state), plain(whole))


def test_states_side_by_side_are_saved_as_one(tmp_path, monkeypatch):
    """Both ways between a checkpoint and states: large arrays in blocks, keys, trees, empty arrays."""
    monkeypatch.setattr("jaxrl_buffers._saved_arrays.BLOCK_BYTES", 64)
    states = compile_programs(SETTINGS).init()
    whole = shapes_of_all(states)
    checkpoint.save(tmp_path / "apart", states)
    together = checkpoint.restore(tmp_path / "apart", whole)
    chex.assert_trees_all_equal(plain(together), plain(states))
    checkpoint.save(tmp_path / "together", together)
    apart = checkpoint.restore(tmp_path / "together", states)
    assert isinstance(apart, side_by_side.Members)
    chex.assert_trees_all_equal(plain(apart), plain(states))
    files = [tmp_path / name / "step_00000001" / "arrays.bin" for name in ("apart", "together")]
    assert files[0].read_bytes() == files[1].read_bytes()
    path = next(tmp_path.glob("together/*/arrays.bin"))
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    with pytest.raises(FileNotFoundError, match="hash differs"):
        checkpoint.restore(tmp_path / "together", states)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot bind processes to cores")
def test_cores_are_those_that_the_process_may_use():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    code += "from algorithms.runs.side_by_side import num_cores; print(num_cores())"
    environment = os.environ | {"PYTHONPATH": str(Path(run.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "1\n"
