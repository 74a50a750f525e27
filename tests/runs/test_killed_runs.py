"""A run that is killed again and again, and resumed."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from support.scripts import finish, load_script, start_script

from algorithms.runs import run
from algorithms.runs.run_folder import RunFolder

TINY = (
    *("ddqn", "CartPole-v1", "--num-envs", "4", "--start-steps", "200", "--update-every", "20", "--num-updates", "1"),
    *("--mini-batch-size", "16", "--test-every", "400", "--num-test-episodes", "2", "--hidden-sizes", "8"),
    *("--capacity", "1_000", "--final-episodes", "2", "--seed", "3", "--total-steps", "4_200"),
)
NUM_CHUNKS = 100  # of two iterations


def num_saved(folder):
    """Return how often a checkpoint was saved."""
    return max((int(path.name.removeprefix("step_")) for path in folder.glob("checkpoint/step_*")), default=0)


def wait_for(process, condition):
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None and not condition():
        time.sleep(0.01)


@pytest.fixture(scope="module")
def main():
    """The script's own entry, without a new process for every bad option."""
    return load_script("train").main


def state_of(folder):
    """Return every leaf of the checkpoint, by its path."""
    state = run.restore(folder)
    state = state._replace(key=jax.random.key_data(state.key))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(state)}


def kill_again_and_again(folder, environment):
    """Start a run; end it by SIGKILL between and during checkpoints, and then by SIGTERM."""
    command = (*TINY, "--out", "killed", "--checkpoint-seconds", "0")
    rng = np.random.default_rng()
    saved = []
    for number in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
        process = start_script("train", *command, cwd=folder.parent, environment=environment)
        command = ("--resume", "killed")
        enough = num_saved(folder) + 3  # then it is under way
        wait_for(process, lambda enough=enough: num_saved(folder) >= enough)
        time.sleep(rng.uniform(0, 0.3))
        process.send_signal(number)
        code, out, err = finish(process)
        saved.append(num_saved(folder))
        assert code == (128 + number if number == signal.SIGTERM else -number), (out, err)
    assert re.search(r"; continue with: \S*python\S* \S*scripts/train.py --resume killed$", out, re.MULTILINE)
    assert len(err.splitlines()) == 0
    assert 3 <= saved[0] <= saved[1] - 3 <= saved[2] - 6 < NUM_CHUNKS


def assert_same_run(one, other):
    """Check that two folders hold the same state, metrics and result."""
    whole, killed = state_of(one), state_of(other)
    assert [*whole] == [*killed]
    for name, leaf in whole.items():
        assert (leaf.dtype, leaf.tobytes()) == (killed[name].dtype, killed[name].tobytes()), name
    steps = [[line["steps"] for line in RunFolder(path).metrics()] for path in (one, other)]
    assert steps[0] == steps[1] == list(range(600, 4_201, 400))
    results = [json.loads(Path(path, "result.json").read_text()) for path in (one, other)]
    assert results[0]["return_of_seeds"] == results[1]["return_of_seeds"]
    assert results[0]["episodes"] == results[1]["episodes"] == 2


def test_a_run_killed_again_and_again(main, compiled_once, tmp_path, capsys, monkeypatch):
    """Whenever it is resumed, it ends as if never stopped. Then it is locked, extended and forked."""
    monkeypatch.chdir(tmp_path)
    assert main([*TINY, "--out", "whole"]) == 0
    folder = tmp_path / "killed"
    kill_again_and_again(folder, compiled_once)

    capsys.readouterr()
    assert main(["--resume", "killed", "--checkpoint-seconds", "60"]) == 0
    assert "ddqn on CartPole-v1: return" in capsys.readouterr().out
    assert_same_run("whole", "killed")
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")

    with RunFolder(folder).lock():
        capsys.readouterr()
        assert main(["--resume", "killed"]) == 2
        error = capsys.readouterr().err
        assert "is in use by another process" in error
        assert len(error.splitlines()) == 1

    assert main(["--resume", "killed", "--total-steps", "4_640"]) == 0
    assert json.loads((folder / "result.json").read_text())["steps"] == 4_640
    assert [line["steps"] for line in RunFolder(folder).metrics()][-3:] == [4_200, 4_600, 4_640]

    fork = ("--fork", "killed", "--out", "fork", "--total-steps", "4_720", "--agent.learning-rate", "1e-5")
    assert main([*fork]) == 0
    settings = RunFolder("fork").settings()
    assert settings.agent["learning_rate"] == 1e-5
    assert settings.seed == 3
    result = json.loads(Path("fork", "result.json").read_text())
    assert (result["steps"], result["episodes"]) == (4_720, 2)
