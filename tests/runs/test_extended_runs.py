"""Runs that get another budget, and runs that begin with the state of another one."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import chex
import jax
import numpy as np
import pytest
from support import short_runs
from support.short_runs import FEW, SharedPrograms

from algorithms.runs import run
from algorithms.runs.build import complete
from algorithms.runs.run_folder import RunFolder

PLAN = dataclasses.replace(short_runs.PLAN, total_steps=268)
SETTINGS = complete(dataclasses.replace(short_runs.SETTINGS, plan=PLAN, capacity=120))


def with_total(settings, total_steps):
    return dataclasses.replace(settings, plan=dataclasses.replace(settings.plan, total_steps=total_steps))


# The programs of a run do not depend on how long it is.
programs = SharedPrograms(SETTINGS, lambda given: given == with_total(SETTINGS, given.plan.total_steps))
pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, shared_programs):
    path = tmp_path_factory.mktemp("runs") / "run"
    run.start(SETTINGS, path, FEW)
    return path


@pytest.fixture
def folder(finished, tmp_path):
    """A finished run, to be changed."""
    return RunFolder(shutil.copytree(finished, tmp_path / "run"))


def steps_of(folder):
    return [line["steps"] for line in folder.metrics()]


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def state_of(path):
    state = run.restore(path)
    return state._replace(key=jax.random.key_data(state.key))


@pytest.mark.parametrize("by_hand", [False, True], ids=["argument", "config.json"])
def test_a_finished_run_is_extended_as_if_it_had_been_so_long_from_the_beginning(by_hand, folder, tmp_path):
    whole = RunFolder(tmp_path / "whole")
    expected = run.start(with_total(SETTINGS, 348), whole.path, FEW)
    if by_hand:
        folder.change_settings(with_total(SETTINGS, 348))
    result = run.resume(folder.path, FEW, total_steps=None if by_hand else 348)
    assert folder.settings() == with_total(SETTINGS, 348)
    assert result["steps"] == 348
    assert result["return_of_seeds"] == expected["return_of_seeds"]
    assert steps_of(folder) == [140, 220, 268, 300, 348]
    assert steps_of(whole) == [140, 220, 300, 348]
    chex.assert_trees_all_equal(state_of(folder.path), state_of(whole.path))
    returns = [{line["steps"]: line["returns"] for line in one.metrics()} for one in (folder, whole)]
    assert {steps: returns[0][steps] for steps in returns[1]} == returns[1]


def test_a_run_that_was_not_finished_is_shortened(tmp_path):
    class Died(Exception):
        pass

    def die(report):
        if report.steps >= 180:
            raise Died

    with pytest.raises(Died):
        run.start(SETTINGS, tmp_path / "run", FEW._replace(on_chunk=die, checkpoint_seconds=0))
    assert (tmp_path / "run" / "curve.png").read_bytes().startswith(b"\x89PNG")  # of what was saved
    result = run.resume(tmp_path / "run", FEW, total_steps=192)
    assert result["steps"] == 192
    assert steps_of(RunFolder(tmp_path / "run")) == [140, 192]
    assert run.resume(tmp_path / "run", FEW)["steps"] == 192


@pytest.mark.parametrize(
    ("total_steps", "message"),
    [
        (350, "the nearest total is 348 or 352"),
        (264, "total_steps is 264, but .* has made 268 steps already; choose at least that many"),
        (0, "at least 1"),
        (2**31, r"less than 2\*\*31"),
    ],
)
def test_budgets_that_cannot_be_met(finished, total_steps, message):
    before = contents(finished)
    with pytest.raises(ValueError, match=message):
        run.resume(finished, FEW, total_steps=total_steps)
    assert contents(finished) == before


@pytest.mark.parametrize("left", ["mark", "metrics", "result"])
def test_a_checkpoint_that_is_gone(left, folder):
    """Each of the other files tells that there was one."""
    shutil.rmtree(folder.path / "checkpoint")
    for name, file in {"mark": "saved", "metrics": "metrics.jsonl", "result": "result.json"}.items():
        if name != left:
            (folder.path / file).unlink()
    before = contents(folder.path)
    for use in (run.resume, run.restore):
        with pytest.raises(ValueError, match=r"the checkpoint of .* is gone: the run was saved before"):
            use(folder.path)
    assert contents(folder.path) == before


@pytest.fixture(scope="module")
def forked(finished, tmp_path_factory):
    """A run with another discount, killed after its first chunk; its settings, and what the origin was before."""

    class Died(Exception):
        pass

    def die(report):
        raise Died

    path = tmp_path_factory.mktemp("forks") / "fork"
    before = contents(finished)
    settings = dataclasses.replace(with_total(SETTINGS, 300), gamma=0.5, seed=7)
    with pytest.raises(Died):
        run.fork(finished, settings, path, FEW._replace(on_chunk=die))
    assert contents(finished) == before
    return path, settings


def test_a_fork_begins_with_agent_and_buffer(forked, finished):
    path, settings = forked
    assert RunFolder(path).settings() == settings
    assert json.loads((path / "options.json").read_text())["forked_from"] == {"run": str(finished), "steps": 268}
    origin, fork = state_of(finished), state_of(path)
    chex.assert_trees_all_equal(fork.agent, origin.agent)
    (rows, of_origin) = (state.buffer.storage.data for state in (fork, origin))
    chex.assert_trees_all_equal(rows.obs, of_origin.obs)
    head = int(origin.buffer.storage.head[0])
    assert np.asarray(rows.truncated | rows.terminated)[:, (head - 1) % 60].all()  # no episode goes on in the new run
    np.testing.assert_array_equal(fork.collector.env.episode_length, 0)
    np.testing.assert_array_equal(fork.iteration, 52)
    assert not np.array_equal(fork.key, origin.key)
    assert not np.array_equal(fork.key[0], fork.key[1])


def test_a_fork_that_was_killed_goes_on(forked):
    path, _ = forked
    result = run.resume(path)
    assert result["steps"] == 300
    assert result["episodes"] == 2
    assert steps_of(RunFolder(path)) == [300]
    assert not np.array_equal(*jax.tree.leaves(state_of(path).agent.params)[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"hidden_sizes": (9,)},
            r"cannot change hidden_sizes like this: .* has float32\[2, 8, 2\] for \['agent'\].*Dense",
        ),
        ({"capacity": 80}, r"cannot change capacity like this: .* for \['buffer'\].*, and the new settings need"),
        ({"sampler": {"name": "uniform"}}, r"cannot change sampler like this: .* \['buffer'\]\.sampler"),
        ({"num_seeds": 3}, r"cannot change num_seeds like this"),
        (
            {"plan": dataclasses.replace(PLAN, total_steps=300, update_every=20, test_every=80)},
            "update_every=20 do not",
        ),
        ({"plan": dataclasses.replace(PLAN, total_steps=264)}, "has made 268 steps already"),
    ],
)
def test_forks_that_are_impossible(changes, message, finished, tmp_path):
    with pytest.raises(ValueError, match=message):
        run.fork(finished, dataclasses.replace(SETTINGS, **changes), tmp_path / "fork", FEW)
    assert not list(tmp_path.iterdir())


def test_a_fork_needs_a_checkpoint(tmp_path):
    RunFolder(tmp_path / "run").create(SETTINGS)
    with pytest.raises(ValueError, match="holds no checkpoint"):
        run.fork(tmp_path / "run", SETTINGS, tmp_path / "fork", FEW)
    assert not (tmp_path / "fork").exists()
