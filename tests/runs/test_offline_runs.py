"""Runs that learn from a data set first, and runs that go on with the agent of another one."""

from __future__ import annotations

import dataclasses
import shutil
import signal

import chex
import jax
import numpy as np
import pytest
from support.pendulum import PLAN, data_set
from support.scripts import finish, start_script
from support.short_runs import FEW, SharedPrograms

import jaxrl_buffers as jb
from algorithms.runs import command_line, run, watch
from algorithms.runs.build import build, complete
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "pendulum.npz"
    np.savez(path, **{name: array[:400] for name, array in data_set()[0].items()})
    return path


def settings_of(path, **changes):
    settings = Settings("ddpg", "Pendulum-v1", PLAN, {"name": "prioritized"}, capacity=100, hidden_sizes=(8,))
    return dataclasses.replace(settings, dataset={"path": str(path)}, **changes)


@pytest.fixture(scope="module", autouse=True)
def _compile_once(data):
    """Compile once for all runs with these settings."""
    with SharedPrograms(complete(settings_of(data))).shared():
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data):
    """A run that was never stopped."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    return RunFolder(path), run.start(settings_of(data), path, FEW)


def same_outcome(folder, other):
    states = [run.restore(each.path) for each in (folder, other)]
    chex.assert_trees_all_equal(*(state._replace(key=jax.random.key_data(state.key)) for state in states))
    lines = [[{**line, "seconds": 0, "steps_per_second": 0} for line in each.metrics()] for each in (folder, other)]
    assert lines[0] == lines[1]


def test_a_run_learns_offline_tests_and_goes_on_online(finished, data):
    folder, result = finished
    assert [(line["updates"], line["steps"]) for line in folder.metrics()] == [
        *((4, 0), (8, 0), (10, 0)),
        *((12, 12), (14, 16), (16, 20)),
    ]
    assert (result["updates"], result["steps"]) == (16, 20)
    dataset = folder.settings().dataset
    assert (dataset["path"], dataset["rows"]) == (str(data), 400)
    state = run.restore(folder.path)
    assert int(state.agent.num_updates[0]) == 16
    assert state.buffer.parts[1].storage.size[0] == 400
    assert state.buffer.parts[0].storage.size[0] == 20 // 2
    assert folder.curve.exists()


@pytest.mark.parametrize("stop_at", ["offline updates", "steps"])
def test_a_stopped_run_continues_exactly_also_without_its_data(finished, data, tmp_path, stop_at):
    def stop(report):
        if report.unit == stop_at and report.steps > 4:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(run.Interrupted):
        run.start(settings_of(data), tmp_path / "run", FEW._replace(on_chunk=stop))
    elsewhere = data.rename(tmp_path / "elsewhere.npz")
    try:
        run.resume(tmp_path / "run", FEW)
    finally:
        elsewhere.rename(data)
    same_outcome(RunFolder(tmp_path / "run"), finished[0])


def test_a_run_without_a_checkpoint_needs_its_data(data, tmp_path):
    def stop(report):
        signal.raise_signal(signal.SIGTERM)

    copy = tmp_path / "copy.npz"
    shutil.copy(data, copy)
    with pytest.raises(run.Interrupted):
        run.start(settings_of(copy), tmp_path / "run", FEW._replace(on_chunk=stop))
    assert not RunFolder(tmp_path / "run").has_checkpoint
    copy.unlink()
    with pytest.raises(ValueError, match=r"dataset: .*copy\.npz is gone"):
        run.resume(tmp_path / "run", FEW)
    np.savez(copy, **data_set()[0])
    with pytest.raises(ValueError, match=r"dataset: .*copy\.npz has changed"):
        run.resume(tmp_path / "run", FEW)


def test_offline_only_can_go_on_online_later(data, tmp_path):
    plan = dataclasses.replace(PLAN, total_steps=0, start_steps=0, test_every=0)
    result = run.start(settings_of(data, plan=plan, num_seeds=2), tmp_path / "run", FEW)
    assert (result["updates"], result["steps"], len(result["return_of_seeds"])) == (10, 0, 2)
    before = run.restore(tmp_path / "run")
    assert jax.tree.leaves(before.agent.params)[0].shape[0] == 2
    words = ["--start-from", str(tmp_path / "run"), "--out", str(tmp_path / "next"), "--total-steps", "2_000"]
    plan = build(command_line.parse(words).settings).plan  # its own agent, in the first steps of the preset
    assert (plan.total_steps, plan.start_steps > 0, plan.test_every > 0) == (2_000, True, True)
    result = run.resume(tmp_path / "run", FEW, total_steps=8)
    assert (result["updates"], result["steps"]) == (14, 8)


def test_another_run_starts_from_an_agent(finished, tmp_path):
    """Nothing of the agent begins anew; the buffer and the steps do."""
    origin, _ = finished
    out = tmp_path / "next"
    options = ("--total-steps", "16", "--start-steps", "8", "--test-every", "4")
    command = command_line.parse(["--start-from", str(origin.path), "--out", str(out), *options])
    assert (command.settings.dataset, command.settings.plan.offline_updates) == (None, 0)

    def stop(report):
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(run.Interrupted):
        command.train(FEW._replace(on_chunk=stop))
    begun = run.restore(out)
    chex.assert_trees_all_equal(begun.agent, run.restore(origin.path).agent)
    assert (int(begun.iteration[0]), int(begun.buffer.storage.size[0])) == (0, 8 // 2)
    assert run.resume(out, FEW)["steps"] == 16
    assert int(run.restore(out).agent.num_updates[0]) == 16 + 4
    assert RunFolder(out).options()["started_from"] == str(origin.path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--offline-updates", "10"), r"plan.offline_updates: got 10, but there is no data set"),
        (("--dataset", "missing.npz"), r"dataset: there is no data set 'missing\.npz'"),
        (("--dataset", "{data}", "--dataset-share", "2"), "dataset_share"),
        (
            ("--dataset", "{data}", "--memory", "gru", "--sequence-length", "500"),
            "dataset: it has 400 rows, but one sample spans 500; give more data, or take a smaller sequence_length",
        ),
        (("--dataset", "{one}"), "dataset: it has no row whose successor is known, so .* give more rows, or `next_obs"),
        (("--dataset", "{data}", "--total-steps", "0"), "`total_steps` must be a whole number of at least 1"),
        (("--fork", "a", "--start-from", "b", "--out", "c"), "give one of them"),
        (("--start-from", "a"), "--start-from RUN needs --out NEW"),
    ],
)
def test_bad_input_is_one_line(arguments, message, data, tmp_path):
    one = {name: array[:1] for name, array in np.load(data).items() if name != "next_observations"}
    np.savez(tmp_path / "one.npz", **one)
    arguments = [argument.format(data=data, one=tmp_path / "one.npz") for argument in arguments]
    with pytest.raises(ValueError, match=message) as error:
        command_line.parse(["sac", "Pendulum-v1", *arguments]).train(FEW)
    assert "\n" not in str(error.value)


def test_the_place_and_the_share_of_the_data(data, monkeypatch):
    monkeypatch.chdir(data.parent)
    settings = complete(settings_of(data.name, dataset_share=0.25))
    assert settings.dataset["path"] == str(data)
    assert build(settings).buffer.counts(8) == [6, 2]


def test_data_of_another_environment_are_refused(data, finished, tmp_path):
    with pytest.raises(ValueError, match=r"dataset: .*`obs` of float32\[3\], but float32\[2\] is needed.*MountainCar"):
        run.start(settings_of(data, environment="MountainCarContinuous-v0"), tmp_path / "run", FEW)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"the agent of .* cannot go on here: it has float32\[.*8"):
        run.start(settings_of(data, hidden_sizes=(16,)), tmp_path / "run", FEW, start_from=finished[0].path)
    with pytest.raises(ValueError, match="ppo learns only from new steps of its policy"):
        run.start(settings_of(data, algorithm="ppo", sampler=None), tmp_path / "run", FEW)


def test_memories_begin_empty_and_info_is_unknown(data, tmp_path):
    """A data set has neither; what the run collects itself has both."""
    settings = settings_of(
        data, memory="gru", memory_size=4, sequence_length=6, burn_in=2, info=("discount",), sampler={"name": "uniform"}
    )
    longer = dataclasses.replace(settings, plan=dataclasses.replace(PLAN, total_steps=24))
    # The programs of a run do not depend on how long it is.
    programs = SharedPrograms(complete(settings), [complete(settings), complete(longer)].__contains__)
    with programs.shared():
        result = run.start(settings, tmp_path / "run", FEW)
        online, stored = run.restore(tmp_path / "run").buffer.parts
        told = [line["info_discount"][0] for line in RunFolder(tmp_path / "run").metrics()]
        resumed = run.resume(tmp_path / "run", FEW, total_steps=24)
    assert (result["updates"], result["steps"], resumed["updates"]) == (16, 20, 18)
    buffer = build(settings).buffer
    rows = [
        jb.host.gather_all(part, jax.tree.map(lambda leaf: leaf[0], state))
        for part, state in zip(buffer.buffers, (online, stored), strict=True)
    ]
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(rows[1].extras["carry"]))
    assert any(np.any(leaf) for leaf in jax.tree.leaves(rows[0].extras["carry"]))
    assert np.isnan(rows[1].extras["info"]["discount"]).all()
    assert np.isfinite(rows[0].extras["info"]["discount"]).all()
    np.testing.assert_array_equal(rows[1].obs[:, 0], np.load(data)["observations"])
    assert told == [None] * 3 + [1.0] * 3


def test_an_action_that_does_not_exist_is_named_before_anything_is_written(tmp_path):
    arrays = {
        "observations": np.zeros((9, 4), np.float32),
        "actions": np.where(np.arange(9) == 6, 2, 1),
        "rewards": np.ones(9),
        "terminals": np.arange(9) == 8,
    }
    np.savez(tmp_path / "data.npz", **arrays)
    settings = dataclasses.replace(settings_of(tmp_path / "data.npz"), algorithm="ddqn", environment="CartPole-v1")
    with pytest.raises(ValueError, match=r"dataset: .*row 6 has the action 2, but the actions are 0 to 1.*CartPole-v1"):
        run.start(settings, tmp_path / "run", FEW)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_environments_on_the_host_learn_offline_and_go_on(data, tmp_path, num_seeds):
    """The data of the same environment in JAX serve as well: observations and actions are the same."""
    plan = dataclasses.replace(PLAN, num_test_episodes=1)
    settings = settings_of(
        data, environment="gymnasium:Pendulum-v1", num_seeds=num_seeds, plan=plan, collect_then_learn=True
    )
    result = run.start(settings, tmp_path / "run", FEW._replace(final_episodes=1))
    assert (result["updates"], result["steps"]) == (16, 20)
    state = run.restore(tmp_path / "run")
    assert [int(part.storage.size[0]) for part in state.buffer.parts] == [10, 400]
    again = Settings.from_dict(RunFolder(tmp_path / "run").settings().to_dict() | {"dataset": None})
    again = dataclasses.replace(again, plan=dataclasses.replace(plan, offline_updates=0))
    result = run.start(again, tmp_path / "next", FEW._replace(final_episodes=1), start_from=tmp_path / "run")
    assert int(run.restore(tmp_path / "next").agent.num_updates[-1]) == 16 + 6


def test_a_data_set_that_is_not_finite_is_refused_before_anything_is_written(tmp_path, data):
    arrays = dict(np.load(data))
    arrays["rewards"][3:5] = np.nan
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match=r"dataset: .*bad.npz.* not finite: 2 rows in 'rewards', of \d+ rows"):
        run.start(settings_of(tmp_path / "bad.npz"), tmp_path / "run", FEW)
    assert not (tmp_path / "run").exists()


def test_a_run_without_first_steps_is_forked(tmp_path, data):
    plan = dataclasses.replace(PLAN, start_steps=0, total_steps=4, offline_updates=2)
    settings = complete(settings_of(data, plan=plan))
    longer = dataclasses.replace(settings, plan=dataclasses.replace(settings.plan, total_steps=8))
    with SharedPrograms(settings, [settings, longer].__contains__).shared():
        run.start(settings, tmp_path / "run", FEW)
        assert run.fork(tmp_path / "run", longer, tmp_path / "fork", FEW)["steps"] == 8


def test_offline_updates_that_are_not_finite_are_told(tmp_path, data):
    np.savez(tmp_path / "large.npz", **{**np.load(data), "rewards": np.full(400, 1e30, np.float32)})
    plan = dataclasses.replace(PLAN, offline_updates=4, total_steps=0, start_steps=0, on_nan="stop")
    message = "losses at offline update 1 and gradients at offline update 1 were not finite"
    with pytest.raises(watch.NotFinite, match=message):
        run.start(settings_of(tmp_path / "large.npz", plan=plan), tmp_path / "run", FEW)


def test_a_memory_of_the_usual_size_begins(data, tmp_path):
    """Not so when the matrices of both critics' memories were factored as batches; see `one_by_one`."""
    words = f"sac Pendulum-v1 --dataset {data} --memory gru --offline-updates 2 --total-steps 0 --final-episodes 1"
    process = start_script("train", *words.split(), "--out", "run", cwd=tmp_path, environment={})
    try:
        code, _, err = finish(process)
    finally:
        process.kill()
    assert (code, err) == (0, "")
    assert RunFolder(tmp_path / "run").metrics()[-1]["updates"] == 2
