"""Pictures of a run, end to end."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from support import helpers
from support.scripts import load_script

import jaxrl_buffers as jb
from algorithms import Plan
from algorithms.runs import plotting, presets, run
from algorithms.runs.build import build
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings
from jaxrl_buffers.mixture import MixtureState

SCRIPT = Path(__file__).parents[2] / "scripts" / "plot.py"
PLAN = Plan(
    total_steps=120, num_envs=2, start_steps=60, update_every=20, num_updates=2, mini_batch_size=8, test_every=0
)
SETTINGS = Settings(
    "ddqn", "CartPole-v1", PLAN, sampler={"name": "prioritized"}, capacity=80, hidden_sizes=(8,), num_seeds=2
)


@pytest.fixture(scope="module")
def main():
    return load_script("plot").main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    run.start(SETTINGS, path, run.Options(final_episodes=2))
    return path


def test_pictures_of_a_run(main, folder, capsys):
    (folder / "curve.png").unlink(missing_ok=True)
    assert main([str(folder)]) == 0
    written = capsys.readouterr().out.split()
    assert written == [str(folder / name) for name in ("curve.png", "priorities.png", "ages.png")]
    assert all(Path(name).read_bytes().startswith(b"\x89PNG") for name in written)


def test_what_is_drawn_is_what_the_buffer_holds(folder):
    buffer, states = build(SETTINGS).buffer, run.restore(folder).buffer
    look = plotting.look_at_buffer(buffer, states, jax.random.key(0), num_drawn=16_000)
    leaves = [helpers.leaves(jax.tree.map(lambda leaf, s=seed: leaf[s], states)) for seed in range(2)]
    np.testing.assert_allclose(np.sort(look.priorities), np.sort(np.concatenate(leaves)), rtol=1e-6)
    np.testing.assert_array_equal(np.bincount(look.ages), np.full(40, 4))  # two environments of two seeds
    # Ages are drawn in proportion to the priorities of each seed.
    expected = np.zeros(40)
    for masses, ages in zip(look.priorities.reshape(2, -1), look.ages.reshape(2, -1), strict=True):
        expected += np.bincount(ages, masses / masses.sum())
    helpers.assert_frequencies(np.bincount(look.drawn_ages, minlength=40), expected)


@pytest.mark.parametrize("kind", ["missing", "other", "rollout", "no checkpoint"])
def test_folders_without_a_picture(main, capsys, tmp_path, kind):
    path = tmp_path / "run"
    if kind == "other":
        path.mkdir()
    elif kind == "rollout":
        RunFolder(path).create(presets.preset("ppo", "CartPole-v1"))
    elif kind == "no checkpoint":
        RunFolder(path).create(dataclasses.replace(SETTINGS, num_seeds=1))
    expected = {"rollout": "holds no replay buffer", "no checkpoint": "holds no checkpoint"}
    assert main([str(path)]) == 2
    error = capsys.readouterr().err
    assert expected.get(kind, "is not the folder of a run") in error
    assert len(error.splitlines()) == 1


def test_the_first_part_of_a_mixture_is_drawn(main, tmp_path, monkeypatch):
    parts = [{"name": "uniform", "config": {"length": length, "num_envs": 2}} for length in (40, 9)]
    mixture = {"name": "Mixture", "config": {"buffers": parts}}
    settings = Settings("ddqn", "CartPole-v1", PLAN, buffer=mixture)
    RunFolder(tmp_path / "run").create(settings)
    found = []
    monkeypatch.setattr(
        run, "restore", lambda path: run.TrainState(None, MixtureState(("first", "second")), *[None] * 4)
    )
    monkeypatch.setattr(plotting, "look_at_buffer", lambda *arguments: found.append(arguments[:2]) or sys.exit())
    with pytest.raises(SystemExit):
        main([str(tmp_path / "run")])
    assert found == [(jb.uniform(40, num_envs=2), "first")]


LINE = {"steps": 100, "returns": [[1.0, 2.0]]}


def test_a_last_line_that_was_not_finished(main, capsys, tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create(SETTINGS)
    folder.append(LINE)
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"steps": 20')  # killed here
    assert folder.metrics() == [LINE]
    assert main([str(folder.path)]) == 2
    text = capsys.readouterr()
    assert text.out.split() == [str(folder.curve)]
    assert "is gone: the run was saved before" in text.err


@pytest.mark.parametrize(
    ("kind", "message"), [("directory", "Is a directory"), ("broken", "metrics.jsonl does not hold")]
)
def test_metrics_that_cannot_be_read(main, capsys, tmp_path, kind, message):
    folder = RunFolder(tmp_path / "run")
    folder.create(SETTINGS)
    metrics = folder.path / "metrics.jsonl"
    if kind == "directory":
        metrics.mkdir()
    else:
        metrics.write_text('{"steps": 1\n{}\n')
    assert main([str(folder.path)]) == 2
    text = capsys.readouterr()
    assert message in text.err
    assert len(text.err.splitlines()) == 1
    assert text.out == ""
