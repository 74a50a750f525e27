"""The script that measures how long libraries take to solve a task; the libraries are played by small programs."""

from __future__ import annotations

import json
import sys

import pytest
from support.scripts import load_script

READY = "import json, time; tell = lambda **line: print(json.dumps(line), flush=True); tell(ready=True)"


@pytest.fixture(scope="module")
def script():
    return load_script("benchmark_time_to_solve")


def library(*lines):
    return [sys.executable, "-c", "\n".join([READY, *lines])]


def test_the_mean_over_all_processes_decides(script):
    first = library("tell(steps=10, returns=[0, 100])", "tell(steps=20, returns=[100, 100])", "time.sleep(60)")
    second = library("tell(steps=10, returns=[100])", "time.sleep(0.3)", "tell(steps=20, returns=[90])")
    found = script._measure([first, second], bar=95, limit=30)
    assert found.steps == 20
    assert found.best == pytest.approx(290 / 3)
    assert 0.2 < found.seconds < 20
    assert script._measure([second], bar=95, limit=30).steps == 10


@pytest.mark.parametrize("end", ["", "time.sleep(60)"])
def test_a_library_that_never_gets_there_is_given_up(script, end):
    found = script._measure([library("print('noise')", "tell(steps=10, returns=[5])", end)], bar=6, limit=1)
    assert found == (None, None, 5)


def test_this_library_tells_every_evaluation(script):
    plan = "--total-steps 120 --num-envs 4 --start-steps 40 --update-every 20 --num-updates 1 --mini-batch-size 4"
    small = "--test-every 40 --num-test-episodes 1 --hidden-sizes 4 --capacity 100 --num-seeds 2 --sampler uniform"
    command = [sys.executable, str(script.FOLDER / "our_seeds.py"), *f"ddqn CartPole-v1 {plan} {small}".split()]
    found = script._measure([command], bar=501, limit=120)
    assert found.seconds is None
    assert 1 <= found.best <= 500
    assert script._measure([command], bar=1, limit=120).steps == 80


def test_seeds_are_shared_out(script):
    assert script._shares(10, 4) == [(0, 2), (2, 3), (5, 2), (7, 3)]


def test_the_table_and_the_file(script, tmp_path, monkeypatch, capsys):
    measured = iter(
        [script.Solved(2.0, 5_000, 480.0), script.Solved(5.0, 9_000, 490.0), script.Solved(None, None, 9.0)]
    )
    monkeypatch.setattr(script, "_measure", lambda *_: next(measured))
    options = ["--rejax", "a", "--sbx", "b", "--tasks", "PPO CartPole-v1", "--json", str(tmp_path / "found.json")]
    assert script.main(options) == 0
    assert capsys.readouterr().out == (
        "PPO CartPole-v1, bar 475: ours 2.0 s after 5,000 steps; rejax 5.0 s after 9,000 steps, 2.5x; "
        "SBX not solved (best 9.0)\n"
    )
    (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert row["rejax"] == {"seconds": 5.0, "steps": 9_000, "best": 490.0}
