"""Sweeps: runs side by side, each of which is a run like any other."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import signal

import chex
import jax
import numpy as np
import pytest
from support import short_runs
from support.short_runs import FEW

from algorithms import Plan, load_policy
from algorithms.runs import command_line, run, sweeps
from algorithms.runs.build import build, complete
from algorithms.runs.programs import compile_points
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings
from algorithms.runs.side_by_side import InOneProgram
from algorithms.runs.varied import Varied
from jaxrl_buffers import Prioritized, host

PLAN = dataclasses.replace(short_runs.PLAN, total_steps=140, test_every=40)
SETTINGS = complete(
    Settings("ddqn", "CartPole-v1", PLAN, {"name": "prioritized"}, capacity=100, hidden_sizes=(8,), num_seeds=2)
)
VALUES = {"agent.learning_rate": [1e-3, 1e-1], "sampler.alpha": [0.2]}
NAMES = ["agent.learning_rate=0.001,sampler.alpha=0.2", "agent.learning_rate=0.1,sampler.alpha=0.2"]


@functools.cache
def programs():
    return compile_points(list(sweeps.points_of(SETTINGS, VALUES).values()))


@pytest.fixture(autouse=True)
def _compile_once(monkeypatch):
    """Compile once for all tests with these points."""
    points = list(sweeps.points_of(SETTINGS, VALUES).values())
    monkeypatch.setattr(
        sweeps,
        "compile_points",
        lambda given, cores=None: programs() if given == points else compile_points(given, cores),
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A sweep that was never stopped, and its results."""
    path = tmp_path_factory.mktemp("sweeps") / "whole"
    return path, sweeps.start(SETTINGS, VALUES, path, FEW)


def stop_at(steps):
    def stop(report):
        if report.steps >= steps:
            signal.raise_signal(signal.SIGTERM)

    return stop


def plain(state):
    return jax.tree.map(np.asarray, state._replace(key=jax.random.key_data(state.key)))


def same_outcome(sweep, other):
    for name in NAMES:
        chex.assert_trees_all_equal(*(plain(run.restore(one / name)) for one in (sweep, other)))
        lines = [RunFolder(one / name).metrics() for one in (sweep, other)]
        for one, two in zip(*lines, strict=True):
            assert {key: one[key] for key in one if "second" not in key} == {
                key: two[key] for key in two if "second" not in key
            }


def test_points_are_separate_runs(finished, tmp_path):
    """Every run of a sweep is to rounding the one that its settings give alone."""
    path, results = finished
    assert list(results) == NAMES
    for name, learning_rate in zip(NAMES, VALUES["agent.learning_rate"], strict=True):
        folder = RunFolder(path / name)
        assert folder.settings().agent["learning_rate"] == learning_rate
        assert folder.settings().sampler["alpha"] == 0.2
        alone = run.start(folder.settings(), tmp_path / name, FEW)
        states = [run.restore(one / name) for one in (path, tmp_path)]
        chex.assert_trees_all_close(*(state.agent.params for state in states), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(results[name]["return_of_seeds"], alone["return_of_seeds"], rtol=1e-3)
        written = json.loads((path / name / "result.json").read_text())
        assert written["return_of_seeds"] == results[name]["return_of_seeds"]
        assert [line["steps"] for line in folder.metrics()] == [100, 140]
    kernels = [run.restore(path / name).agent.params.critic["params"]["Dense_0"]["kernel"] for name in NAMES]
    assert not np.allclose(*kernels, atol=1e-3)  # the learning rate does count


def test_points_are_runs_like_any_other(finished, tmp_path):
    path, results = finished
    copy = tmp_path / "alone"
    shutil.copytree(path / NAMES[1], copy)
    assert load_policy(copy, seed=1)(np.zeros(4, np.float32)) in (0, 1)
    assert (copy / "curve.png").exists()
    again = run.resume(copy, FEW)
    assert again["return_of_seeds"] == pytest.approx(results[NAMES[1]]["return_of_seeds"])
    assert sorted(entry.name for entry in path.glob("[!.]*")) == sorted(NAMES)  # so FOLDER/* are runs


def test_a_stopped_sweep_continues_exactly(finished, tmp_path):
    with pytest.raises(run.Interrupted):
        sweeps.start(SETTINGS, VALUES, tmp_path / "sweep", FEW._replace(on_chunk=stop_at(80)))
    results = sweeps.resume(tmp_path / "sweep", FEW)
    same_outcome(tmp_path / "sweep", finished[0])
    assert {name: one["return_of_seeds"] for name, one in results.items()} == {
        name: one["return_of_seeds"] for name, one in finished[1].items()
    }


def test_environments_begin_anew_in_all_runs(tmp_path):
    steps = []

    def stop(report):
        steps.append(report.steps)
        stop_at(100)(report)

    with pytest.raises(run.Interrupted):
        sweeps.start(SETTINGS, VALUES, tmp_path / "sweep", FEW._replace(on_chunk=stop))
    sweeps.resume(tmp_path / "sweep", FEW, fresh_environments=True)
    buffer, newest = build(SETTINGS).buffer, (PLAN.total_steps - steps[-1]) // PLAN.num_envs
    for name in NAMES:
        states = run.restore(tmp_path / "sweep" / name).buffer
        for seed in range(2):
            rows = host.gather_all(buffer, jax.tree.map(lambda leaf, seed=seed: leaf[seed], states))
            assert (rows.terminated | rows.truncated)[-1 - newest].all()


@pytest.mark.parametrize("num_saves", [0, 1, 3])
def test_a_sweep_that_was_killed_between_two_runs(num_saves, finished, tmp_path, monkeypatch):
    """Some runs were saved once more than others: all go on from what they have in common."""

    class Killed(BaseException):
        pass

    save, saved = RunFolder.save, []

    def save_or_die(folder, *args):
        if len(saved) == 2 * num_saves + 1:
            raise Killed
        saved.append(folder.path.name)
        save(folder, *args)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", save_or_die)
        with pytest.raises(Killed):
            sweeps.start(SETTINGS, VALUES, tmp_path / "sweep", FEW._replace(checkpoint_seconds=0))
    assert saved == [*NAMES * num_saves, NAMES[0]]
    sweeps.resume(tmp_path / "sweep", FEW)
    same_outcome(tmp_path / "sweep", finished[0])


def test_a_longer_sweep(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "sweep")
    results = sweeps.resume(tmp_path / "sweep", FEW, total_steps=148)
    assert [one["steps"] for one in results.values()] == [148, 148]
    run.resume(tmp_path / "sweep" / NAMES[0], FEW._replace(checkpoint_seconds=0), total_steps=160)
    with pytest.raises(ValueError, match=r"differ in more than hyper-parameters.*by itself"):
        sweeps.resume(tmp_path / "sweep", FEW)
    with pytest.raises(ValueError, match=r"has no state from the step.*by itself"):
        sweeps.resume(tmp_path / "sweep", FEW, total_steps=160)


def test_a_sweep_in_one_program(finished, tmp_path, monkeypatch):
    """As on accelerators: an axis of points and seeds; stopped, and continued."""
    monkeypatch.setattr("algorithms.runs.programs.way_for", lambda num_members, cores, devices: InOneProgram())
    monkeypatch.setattr(sweeps, "compile_points", compile_points)
    with pytest.raises(run.Interrupted):
        sweeps.start(SETTINGS, VALUES, tmp_path / "sweep", FEW._replace(on_chunk=stop_at(80)))
    sweeps.resume(tmp_path / "sweep", FEW)
    for name in NAMES:
        states = [run.restore(one / name) for one in (finished[0], tmp_path / "sweep")]
        chex.assert_trees_all_close(*(state.agent.params for state in states), rtol=1e-4, atol=1e-5)


def test_one_seed_a_point(tmp_path):
    """The folders of runs with one seed hold states without an axis of seeds, whatever wrote them."""
    settings = Settings(
        "ppo", "CartPole-v1", Plan(total_steps=64, num_envs=2, start_steps=0, update_every=32), hidden_sizes=(4,)
    )
    results = sweeps.start(settings, {"gamma": [0.5, 0.9]}, tmp_path / "sweep", FEW)
    assert [len(one["return_of_seeds"]) for one in results.values()] == [1, 1]
    again = run.resume(tmp_path / "sweep" / "gamma=0.5", FEW)
    assert again["return_of_seeds"] == results["gamma=0.5"]["return_of_seeds"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_step": [1, 2]}, r"n_step: the values 1, 2 need programs of their own; .* agent\.learning_rate"),
        ({"plan.total_steps": [140, 148]}, "need programs of their own"),
        ({"agent.learning_rte": [1.0]}, "learning_rte: is unknown"),
        ({"agent.learning_rate": [-1.0]}, "learning_rate"),
        ({"gamma": [0.9, 0.9]}, "every value once"),
        ({"gamma": []}, "at least one value"),
        ({"hindsight_ratio": [0.1, 0.2]}, "change nothing"),
        ({"gamma.x": [0.1]}, "gamma holds no options"),
    ],
)
def test_what_cannot_be_swept(values, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        sweeps.start(SETTINGS, values, tmp_path / "sweep", FEW)
    assert not list(tmp_path.iterdir())


def test_a_data_set_is_stored_with_the_priorities_of_one_point(tmp_path):
    rows = {"observations": np.zeros((9, 4), np.float32), "actions": np.zeros(9, int), "rewards": np.zeros(9)}
    np.savez(tmp_path / "data.npz", **rows, terminals=np.ones(9))
    with pytest.raises(ValueError, match="with a data set only settings of the agent"):
        sweeps.points_of(dataclasses.replace(SETTINGS, dataset={"path": str(tmp_path / "data.npz")}), VALUES)


def test_sweeps_on_the_command_line(tmp_path):
    arguments = ["sac", "CartPole-v1", "--sampler", "prioritized", "--sweep", "agent.learning-rate-pi=1e-3,1e-2"]
    command = command_line.parse([*arguments, "--sweep=sampler.beta=0.4,1"])
    assert command.sweep == {"agent.learning_rate_pi": [1e-3, 1e-2], "sampler.beta": [0.4, 1.0]}
    assert len(sweeps.points_of(command.settings, command.sweep)) == 4
    assert command.folder.name == "sac_CartPole-v1_sweep"
    for words, message in {
        "gamma": "expected a setting and its values",
        "gamma=0.9,": "expected a setting and its values",
        "gama=0.9": "did you mean --gamma",
        "normalize=1": "only numbers",
        "gamma=x": "expected a number",
    }.items():
        with pytest.raises(ValueError, match=message):
            command_line.parse([*arguments[:2], "--sweep", words])
    with pytest.raises(ValueError, match="given twice"):
        command_line.parse([*arguments[:2], "--sweep", "gamma=0.9", "--sweep", "gamma=0.8"])


def test_all_runs_are_locked_while_they_are_trained(tmp_path):
    refused = []

    def look(report):
        for name in NAMES:
            with pytest.raises(ValueError, match="another process"), RunFolder(tmp_path / "sweep" / name).lock():
                pass
            refused.append(name)

    sweeps.start(SETTINGS, VALUES, tmp_path / "sweep", FEW._replace(on_chunk=look))
    assert set(refused) == set(NAMES)


def test_a_folder_without_its_points(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "sweep")
    (tmp_path / "sweep" / ".sweep.json").write_text("{}")
    with pytest.raises(ValueError, match="does not hold the points of a sweep"):
        sweeps.resume(tmp_path / "sweep", FEW)


def test_components_that_vary():
    varied = Varied([Prioritized(alpha=0.5, beta=beta) for beta in (0.1, 0.2)])
    assert [value.tolist() for value in varied.values] == [[0.1, 0.2]]
    assert varied.at([0.7]) == Prioritized(alpha=0.5, beta=0.7)
    with pytest.raises(ValueError, match="more than hyper-parameters"):
        Varied([Prioritized(), Prioritized(stratified=not Prioritized().stratified)])
