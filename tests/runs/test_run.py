"""Runs in folders: the same outcome however they are cut, stopped and continued."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.explained import unexplained
from support.short_runs import FEW, PLAN, SETTINGS, SharedPrograms

import jaxrl_buffers as jb
from algorithms.runs import plotting, run
from algorithms.runs.build import complete
from algorithms.runs.run_folder import RunFolder
from jaxrl_buffers import checkpoint

programs = SharedPrograms(SETTINGS)
pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, shared_programs):
    """A run that was never stopped."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    return RunFolder(path), run.start(SETTINGS, path, FEW)


def test_files_of_a_run(finished):
    folder, result = finished
    assert folder.settings() == SETTINGS
    assert [line["steps"] for line in folder.metrics()] == [140, 220, 300]
    for name in ("loss_q", "q", "grad_norm_q", "priority", "sample_age", "weight", "returns", "steps_per_second"):
        assert name in folder.metrics()[0]
    assert json.loads((folder.path / "result.json").read_text())["steps"] == 300
    assert len(result["return_of_seeds"]) == 2
    assert result["mean_return"] == pytest.approx(np.mean(result["return_of_seeds"]))


def test_every_metric_of_a_run_is_explained(finished):
    """Its speed and its buffer's statistics, too, and those of buffers with more of them."""
    (line,) = {frozenset(line) for line in finished[0].metrics()}
    assert {"steps_per_second", "buffer_drawn_age_median"} <= line
    assert unexplained(line, "ddqn") == []
    rich = jb.uniform(8, keep_episodes=True, frames=jb.Frames(2))
    frame = jnp.zeros((4, 4, 2))
    stats = jax.eval_shape(lambda: rich.stats(rich.init(jb.Transition(frame, 0, 0.0, False, False, frame))))
    assert stats.keys() > {"episodes", "lost_finals"}
    assert unexplained([f"buffer_{name}" for name in stats], "ddqn") == []


def test_a_run_in_chunks_is_one_long_run(finished):
    """All iterations in one call, without evaluations, give the same bits."""
    state = programs().run(PLAN.num_iterations)(programs().init())
    chex.assert_trees_all_equal(state.agent, programs.last_state(finished[0]).agent)
    chex.assert_trees_all_equal(state.buffer, programs.last_state(finished[0]).buffer)


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
    programs.assert_same_outcome(RunFolder(tmp_path / "run"), finished[0])
    assert result["return_of_seeds"] == finished[1]["return_of_seeds"]


def test_a_signal_before_the_first_checkpoint(finished, tmp_path, monkeypatch):
    """Whatever is left, also by a kill in the first save, is a run that can be resumed."""

    def compile_programs(*_):
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
    programs.assert_same_outcome(RunFolder(tmp_path / "run"), finished[0])


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
        patch.setattr(run, "compile_programs", lambda *_: programs()._replace(evaluate=evaluate))
        assert run.resume(tmp_path / "run")["return_of_seeds"] == finished[1]["return_of_seeds"]
    programs.assert_same_outcome(RunFolder(tmp_path / "run"), finished[0])


class Died(Exception):
    pass


def die(report):
    if report.steps >= 240:
        raise Died


def test_a_run_that_died_continues_from_its_last_checkpoint(finished, tmp_path):
    """Metrics written after the checkpoint are dropped and written again."""
    with pytest.raises(Died):
        run.start(SETTINGS, tmp_path / "run", FEW._replace(on_chunk=die))
    folder = RunFolder(tmp_path / "run")
    assert len(folder.metrics()) == 2
    run.resume(tmp_path / "run", FEW)
    programs.assert_same_outcome(folder, finished[0])


def test_a_run_whose_last_checkpoint_is_damaged_continues_from_the_one_before(finished, tmp_path):
    with pytest.raises(Died):
        run.start(SETTINGS, tmp_path / "run", FEW._replace(on_chunk=die, checkpoint_seconds=0))
    folder = RunFolder(tmp_path / "run")
    before, newest = sorted((tmp_path / "run" / "checkpoint").iterdir())
    arrays = bytearray((newest / "arrays.bin").read_bytes())
    arrays[len(arrays) // 2] ^= 1
    (newest / "arrays.bin").write_bytes(arrays)
    with pytest.warns(UserWarning, match=f"{newest.name} is damaged: .* Went back to .*{before.name}"):
        run.resume(tmp_path / "run", FEW)
    programs.assert_same_outcome(folder, finished[0])


def test_a_checkpoint_of_something_else(finished, tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create(SETTINGS)
    checkpoint.save(folder.path / "checkpoint", programs().init(), metadata={"iteration": "x"})
    with pytest.raises(ValueError, match="this is not the checkpoint of a run"):
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
