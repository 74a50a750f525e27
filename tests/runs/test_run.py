"""Runs in folders: the same outcome however they are cut, stopped and continued."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import signal

import chex
import jax
import numpy as np
import pytest

from algorithms import Plan
from algorithms.runs import plotting, presets, run
from algorithms.runs.build import build, complete
from algorithms.runs.progress import Progress
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings
from jaxrl_buffers import checkpoint

PLAN = Plan(
    total_steps=300,
    num_envs=2,
    start_steps=60,
    update_every=4,
    num_updates=1,
    mini_batch_size=8,
    test_every=80,
    num_test_episodes=2,
)
SAMPLER = {"name": "prioritized"}
SETTINGS = complete(
    Settings("ddqn", "CartPole-v1", PLAN, SAMPLER, n_step=2, capacity=200, hidden_sizes=(8,), num_seeds=2)
)
FEW = run.Options(final_episodes=2)  # as many as of other evaluations, which are then compiled with them


compile_anew = run.compile_programs


@functools.cache
def programs():
    return compile_anew(SETTINGS)


@pytest.fixture(autouse=True, scope="module")
def _compile_once():
    """Compile once for all tests, which share the settings."""
    run.compile_programs = lambda settings, cores=None: programs() if settings == SETTINGS else compile_anew(settings)
    yield
    run.compile_programs = compile_anew


@pytest.fixture(scope="module")
def finished(tmp_path_factory, _compile_once):
    """A run that was never stopped."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    return RunFolder(path), run.start(SETTINGS, path, FEW)


def last_state(folder):
    return folder.restore(programs().shapes())[0]


def plain(leaf):
    return jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def same_outcome(folder, other):
    one, two = (last_state(each) for each in (folder, other))
    chex.assert_trees_all_equal(*(jax.tree.map(plain, state) for state in (one, two)))
    lines = [
        [{name: value for name, value in line.items() if "second" not in name} for line in each.metrics()]
        for each in (folder, other)
    ]
    assert lines[0] == lines[1]


def test_files_of_a_run(finished):
    folder, result = finished
    assert folder.settings() == SETTINGS
    assert [line["steps"] for line in folder.metrics()] == [140, 220, 300]
    for name in ("loss_q", "q", "grad_norm_q", "priority", "sample_age", "weight", "returns", "steps_per_second"):
        assert name in folder.metrics()[0]
    assert json.loads((folder.path / "result.json").read_text())["steps"] == 300
    assert len(result["return_of_seeds"]) == 2
    assert result["mean_return"] == pytest.approx(np.mean(result["return_of_seeds"]))


def test_a_run_in_chunks_is_one_long_run(finished):
    """All iterations in one call, without evaluations, give the same bits."""
    state = programs().run(PLAN.num_iterations)(programs().init())
    chex.assert_trees_all_equal(state.agent, last_state(finished[0]).agent)
    chex.assert_trees_all_equal(state.buffer, last_state(finished[0]).buffer)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_continues_exactly(finished, tmp_path, number):
    def stop(report):
        if report.steps >= 180:
            signal.raise_signal(number)

    before = signal.getsignal(number)
    with pytest.raises(run.Interrupted, match=f"stopped by {number.name} after") as stopped:
        run.start(SETTINGS, tmp_path / "run", FEW._replace(on_chunk=stop))
    assert stopped.value.signal_number == number
    assert signal.getsignal(number) == before
    result = run.resume(tmp_path / "run", FEW)
    same_outcome(RunFolder(tmp_path / "run"), finished[0])
    assert result["return_of_seeds"] == finished[1]["return_of_seeds"]


def test_a_signal_before_the_first_checkpoint(finished, tmp_path, monkeypatch):
    """Whatever is left, also by a kill in the first save, is a run that can be resumed."""

    def compile_programs(settings, cores):
        signal.raise_signal(signal.SIGINT)
        return programs()

    with monkeypatch.context() as patch:
        patch.setattr(run, "compile_programs", compile_programs)
        with pytest.raises(run.Interrupted, match="stopped by SIGINT after 0 steps"):
            run.start(SETTINGS, tmp_path / "run", FEW)
    assert not (tmp_path / "run" / "checkpoint").exists()
    (tmp_path / "run" / "checkpoint" / "incomplete").mkdir(parents=True)
    with pytest.raises(ValueError, match="holds no checkpoint"):
        run.restore(tmp_path / "run")
    run.resume(tmp_path / "run")
    same_outcome(RunFolder(tmp_path / "run"), finished[0])


def test_a_signal_at_the_end(finished, tmp_path):
    """Before the last evaluation it is obeyed, and while that is under way there is nothing left to stop."""

    def stop(report):
        if report.steps == PLAN.total_steps:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(run.Interrupted, match="after 300 steps"):
        run.start(SETTINGS, tmp_path / "run", FEW._replace(on_chunk=stop))
    assert not (tmp_path / "run" / "result.json").exists()

    def evaluate(*arguments):
        signal.raise_signal(signal.SIGINT)
        return programs().evaluate(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "compile_programs", lambda settings, cores=None: programs()._replace(evaluate=evaluate))
        assert run.resume(tmp_path / "run")["return_of_seeds"] == finished[1]["return_of_seeds"]
    same_outcome(RunFolder(tmp_path / "run"), finished[0])


def test_a_run_that_died_continues_from_its_last_checkpoint(finished, tmp_path):
    """Metrics written after the checkpoint are dropped and written again."""

    class Died(Exception):
        pass

    def die(report):
        if report.steps >= 240:
            raise Died

    with pytest.raises(Died):
        run.start(SETTINGS, tmp_path / "run", FEW._replace(on_chunk=die))
    folder = RunFolder(tmp_path / "run")
    assert len(folder.metrics()) == 2
    run.resume(tmp_path / "run", FEW)
    same_outcome(folder, finished[0])


def test_a_run_whose_last_checkpoint_is_damaged_continues_from_the_one_before(finished, tmp_path):
    class Died(Exception):
        pass

    def die(report):
        if report.steps >= 240:
            raise Died

    with pytest.raises(Died):
        run.start(SETTINGS, tmp_path / "run", FEW._replace(on_chunk=die, checkpoint_seconds=0))
    folder = RunFolder(tmp_path / "run")
    before, newest = sorted((tmp_path / "run" / "checkpoint").iterdir())
    arrays = bytearray((newest / "arrays.bin").read_bytes())
    arrays[len(arrays) // 2] ^= 1
    (newest / "arrays.bin").write_bytes(arrays)
    with pytest.warns(UserWarning, match=f"{newest.name} is damaged: .* Went back to .*{before.name}"):
        run.resume(tmp_path / "run", FEW)
    same_outcome(folder, finished[0])


def test_a_checkpoint_of_something_else(finished, tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create(SETTINGS)
    checkpoint.save(folder.path / "checkpoint", programs().init(), metadata={"iteration": "x"})
    with pytest.raises(ValueError, match="the checkpoint is not one of a run"):
        run.resume(folder.path)


def test_a_finished_run_can_be_resumed(finished):
    """With as many episodes at the end as it was started with."""
    folder, result = finished
    again = run.resume(folder.path)
    assert again["episodes"] == 2
    assert again["return_of_seeds"] == result["return_of_seeds"]


def test_the_learning_curve(finished, tmp_path):
    plotting.draw_curve(finished[0].metrics(), "ddqn on CartPole-v1", tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_band_covers_the_mean():
    values = np.random.default_rng(0).normal(3, 1, (4, 50))
    mean, low, high = plotting.mean_and_band(values)
    np.testing.assert_allclose(mean, values.mean(1))
    assert np.all((low < mean) & (mean < high))
    np.testing.assert_allclose(high - low, 2 * 1.96 / np.sqrt(50), rtol=0.3)


def test_an_existing_folder_is_left_alone(finished):
    before = sorted(finished[0].path.rglob("*"))
    with pytest.raises(ValueError, match="exists already"):
        run.start(SETTINGS, finished[0].path, FEW)
    assert sorted(finished[0].path.rglob("*")) == before


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written"):
        run.start(SETTINGS, tmp_path / "file" / "run", FEW)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"capacity": 100}, "capacity"),
        ({"gamma": 0.5, "plan": dataclasses.replace(PLAN, num_updates=2)}, r"plan\.num_updates, gamma"),
        ({"agent": {"polyak": 0.9}}, r"agent\.polyak"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(finished, tmp_path, changes, names):
    folder = RunFolder(tmp_path / "run")
    folder.create(complete(dataclasses.replace(SETTINGS, **changes)))
    (tmp_path / "run" / "checkpoint").symlink_to(finished[0].path / "checkpoint")
    with pytest.raises(ValueError, match=f"was saved with other settings: {names};"):
        folder.restore(programs().shapes())


def test_a_damaged_checkpoint_is_not_begun_anew(finished, tmp_path):
    shutil.copytree(finished[0].path, tmp_path / "run")
    for manifest in (tmp_path / "run" / "checkpoint").glob("*/manifest.json"):
        manifest.write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        run.resume(tmp_path / "run")


def test_metrics_are_cut_by_their_steps(tmp_path):
    """However many lines there are: those after the checkpoint go, and what cannot be read at the end."""
    folder = RunFolder(tmp_path)
    folder.keep_metrics(10)
    for steps in (10, 10, 20, 30):
        folder.append({"steps": steps, "returns": [[0]]})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"steps": 4' + bytes(20))  # what a power cut may leave
    assert [line["steps"] for line in folder.metrics()] == [10, 10, 20, 30]
    folder.keep_metrics(20)
    text = "".join(f'{{"steps": {steps}, "returns": [[0]]}}\n' for steps in (10, 10, 20))
    assert (tmp_path / "metrics.jsonl").read_text() == text
    folder.append({"loss": 1.0})
    with pytest.raises(ValueError, match="expected steps, and returns"):
        folder.keep_metrics(20)


def test_a_kill_while_lines_are_dropped_loses_none(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    for steps in range(3):
        folder.append({"steps": steps, "returns": [[0.0]]})
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: signal.default_int_handler(signal.SIGINT, None))
        with pytest.raises(KeyboardInterrupt):
            folder.keep_metrics(1)
    assert len(folder.metrics()) == 3
    folder.keep_metrics(1)
    assert [line["steps"] for line in folder.metrics()] == [0, 1]


def test_a_kill_while_the_folder_is_made_leaves_none(tmp_path, monkeypatch):
    """Else it could neither be resumed nor started."""
    folder = RunFolder(tmp_path / "runs" / "run")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: signal.default_int_handler(signal.SIGINT, None))
        with pytest.raises(KeyboardInterrupt):
            folder.create(SETTINGS)
    assert not folder.path.exists()
    folder.create(SETTINGS)
    assert folder.settings() == SETTINGS
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run"]


def test_a_folder_without_a_run(tmp_path):
    """What is written is what is read, without any training."""
    folder, state = RunFolder(tmp_path / "run"), {"w": np.arange(3)}
    folder.create(SETTINGS, {"final_episodes": 3})
    assert folder.options() == {"final_episodes": 3}
    assert not folder.has_checkpoint
    folder.save(state, SETTINGS, {"iteration": 1})
    restored, progress = folder.restore(state)
    np.testing.assert_array_equal(restored["w"], state["w"])
    assert progress == {"iteration": 1}
    folder.change_settings(dataclasses.replace(SETTINGS, gamma=0.5))
    with pytest.raises(ValueError, match="was saved with other settings: gamma;"):
        folder.restore(state)
    shutil.rmtree(folder.path / "checkpoint")
    with pytest.raises(ValueError, match=r"the checkpoint of .* is gone"):
        folder.restore(state)
    folder.finish({"steps": 2, "returns": np.ones(2)})
    assert (folder.path / "result.json").read_text().startswith('{\n  "steps": 2,\n')
    assert json.loads((folder.path / "result.json").read_text())["returns"] == [1, 1]


@pytest.mark.parametrize(("text", "message"), [(None, "is no run folder"), ("{}", "does not hold"), ("{", "does not")])
def test_folders_of_other_things(tmp_path, text, message):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        run.resume(tmp_path, FEW)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_presets_fit_together(name):
    build(presets.preset(*name))


def test_settings_survive_json():
    for name in presets.PRESETS:
        settings = presets.preset(*name)
        assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_chunks_never_cross_an_evaluation():
    for total, every in ((300, 80), (61 + 4 * 97, 28), (64, 0)):
        plan = dataclasses.replace(PLAN, num_envs=1, total_steps=total - total % 4, test_every=every)
        iteration, tests = 0, []
        while iteration < plan.num_iterations:
            iteration += Progress(iteration).chunk(plan)
            if iteration % plan.iterations_per_test == 0 or iteration == plan.num_iterations:
                tests.append(iteration)
        assert iteration == plan.num_iterations
        assert len(tests) == -(-plan.num_iterations // plan.iterations_per_test)
