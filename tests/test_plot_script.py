"""Pictures of a run, end to end."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import helpers
import jax
import numpy as np
import pytest

from algorithms import Plan, plotting, presets, run
from algorithms.run_folder import RunFolder
from algorithms.settings import Settings

SCRIPT = Path(__file__).parent.parent / "scripts" / "plot.py"
PLAN = Plan(
    total_steps=120, num_envs=2, start_steps=60, update_every=20, num_updates=2, mini_batch_size=8, test_every=0
)
SETTINGS = Settings("ddqn", "CartPole-v1", PLAN, buffer="prioritized", capacity=80, hidden_sizes=(8,), num_seeds=2)


@pytest.fixture(scope="module")
def main():
    spec = importlib.util.spec_from_file_location("plot_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


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
    buffer, states = SETTINGS.build().buffer, run.restore(folder).buffer
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
    assert expected.get(kind, "is no run folder") in error
    assert len(error.splitlines()) == 1
