"""Logs for other tools hold what metrics.jsonl holds, however the run was stopped; read back by those tools."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import short_runs
from support.log_readers import read_csv, read_tensorboard, read_wandb
from support.short_runs import SharedPrograms

from algorithms.runs import command_line, logs, run
from algorithms.runs.build import complete
from algorithms.runs.logs.tensorboard import tag
from algorithms.runs.options import Kept
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings

ROOT = Path(__file__).parents[2]
PLAN = dataclasses.replace(short_runs.PLAN, total_steps=260, update_every=20, test_every=40)
SETTINGS = complete(Settings("ddqn", "CartPole-v1", PLAN, capacity=200, hidden_sizes=(8,), num_seeds=2, seed=5))
ALL = ("csv", "tensorboard", "wandb")
SERIES = ["mean", "seed5", "seed6"]
STEPS = [100, 140, 180, 220, 260]
# Starts the run of the settings in argv[1] in the folder argv[2], and is killed in the third evaluation. There is only
# the first checkpoint then, of before the first evaluation.
KILLED = """
import json, os, signal, sys
from algorithms.runs import run
from algorithms.runs.settings import Settings

def kill(metrics):
    if metrics["steps"] == 180:
        os.kill(os.getpid(), signal.SIGKILL)

options = run.Options(final_episodes=2, on_evaluation=kill, log=json.loads(sys.argv[3]))
run.start(Settings.from_dict(json.loads(sys.argv[1])), sys.argv[2], options)
"""


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")


@pytest.fixture(autouse=True, scope="module")
def _compile_once():
    with SharedPrograms(SETTINGS).shared():
        yield


def expected(folder):
    """Return what every series is to hold: a dict for each line of metrics.jsonl."""
    series = {name: [] for name in SERIES}
    for line in RunFolder(folder).metrics():
        point = logs.Point.of_line(line, SETTINGS.seed)
        assert [*point.series] == SERIES
        for name, values in point.series.items():
            series[name].append({"steps": line["steps"], **values})
    return series


def check_all(folder, names=ALL, steps=STEPS):
    """Compare every log with metrics.jsonl."""
    want = expected(folder)
    assert [line["steps"] for line in want["mean"]] == steps
    if "csv" in names:
        assert read_csv(folder) == want
    if "tensorboard" in names:
        found = read_tensorboard(folder)
        assert [*found] == SERIES
        for series, lines in want.items():
            names = {name for line in lines for name in line} - {"steps"}
            assert {*found[series]} == {tag(name) for name in names}
            for name in names:
                points = [(line["steps"], pytest.approx(line[name], rel=1e-6)) for line in lines if name in line]
                assert found[series][tag(name)] == points
    if "wandb" in names:
        settings, *rows = read_wandb(folder)
        assert settings["agent"] == SETTINGS.to_dict()["agent"]
        assert [row["_step"] for row in rows] == steps
        for index, row in enumerate(rows):
            for series, lines in want.items():
                named = {f"{series}/{name}": value for name, value in lines[index].items() if name != "steps"}
                assert {key: row[key] for key in row if key.startswith(f"{series}/")} == named


def require_readers():
    for name in ("tensorboardX", "tensorboard", "wandb"):
        pytest.importorskip(name)


def test_every_log_holds_every_metric_of_every_seed_and_their_mean(tmp_path):
    require_readers()
    folder = tmp_path / "run"
    run.start(SETTINGS, folder, run.Options(final_episodes=2, log=ALL))
    check_all(folder)
    line = RunFolder(folder).metrics()[0]
    first = read_csv(folder)
    assert first["seed6"][0]["return"] == pytest.approx(sum(line["returns"][1]) / 2)
    assert first["mean"][0]["loss_q"] == pytest.approx(sum(line["loss_q"]) / 2, rel=1e-5)
    assert "steps_per_second" in first["mean"][0]


def test_a_killed_run_goes_on_in_the_same_logs(tmp_path):
    """Also in a TensorBoard that is open all the time, and with points that were written after the checkpoint."""
    require_readers()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "run"
    code = [sys.executable, "-c", KILLED, json.dumps(SETTINGS.to_dict()), str(folder), json.dumps(ALL)]
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}  # that of this process
    environment |= {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(code, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == -9, done.stderr
    check_all(folder, ("csv", "tensorboard"), STEPS[:3])  # nothing waits in a buffer
    identity = (folder / "wandb" / "id").read_text()
    reader = EventAccumulator(str(folder / "tensorboard" / "seed5"))
    reader.Reload()
    assert len(reader.Scalars("evaluation/return")) == 3
    run.resume(folder)
    check_all(folder)
    assert (folder / "wandb" / "id").read_text() == identity
    reader.Reload()
    assert [event.step for event in reader.Scalars("evaluation/return")] == STEPS


def test_logs_are_kept_added_and_ended(tmp_path):
    """A log that is asked for later has all points; one that is ended stays as it was."""
    folder = tmp_path / "run"

    def stop_at(steps):
        return run.Options(final_episodes=2, on_evaluation=lambda metrics: metrics["steps"] == steps)

    run.start(SETTINGS, folder, stop_at(140))
    assert not (folder / "metrics.csv").exists()
    run.resume(folder, stop_at(180)._replace(log=["csv"]))
    assert [row["steps"] for row in read_csv(folder)["mean"]] == STEPS[:3]
    assert Kept().over(RunFolder(folder).options()).log == ("csv",)
    run.resume(folder, stop_at(220))
    assert [row["steps"] for row in read_csv(folder)["mean"]] == STEPS[:4]
    run.resume(folder, run.Options(log=["none"]))
    assert [row["steps"] for row in read_csv(folder)["mean"]] == STEPS[:4]
    assert Kept().over(RunFolder(folder).options()).log == ()


def test_one_seed_has_one_series():
    point = logs.Point.of_line({"steps": 10, "seconds": 1.5, "loss": [0.5], "returns": [[1.0, 2.0]]})
    assert point == (10, 10, 1.5, {"mean": {"seconds": 1.5, "return": 1.5, "loss": 0.5}})


def test_what_is_not_finite_leaves_gaps(tmp_path):
    pytest.importorskip("tensorboardX")
    pytest.importorskip("tensorboard")
    lines = [
        {"steps": 1, "seconds": 1.0, "q": [1.0, None], "returns": [[None], [2.0]]},
        {"steps": 2, "seconds": 2.0, "q": [3.0, 4.0], "loss": [5.0, 6.0], "returns": [[7.0], [8.0]]},
    ]
    with logs.opened(["csv", "tensorboard"], tmp_path, SETTINGS, lines[:1]) as log:
        log(lines[1])  # which brings a new column
    assert read_csv(tmp_path) == {
        "mean": [
            {"steps": 1, "seconds": 1},
            {"steps": 2, "seconds": 2, "return": 7.5, "q": 3.5, "loss": 5.5},
        ],
        "seed5": [{"steps": 1, "q": 1}, {"steps": 2, "return": 7, "q": 3, "loss": 5}],
        "seed6": [{"steps": 1, "return": 2}, {"steps": 2, "return": 8, "q": 4, "loss": 6}],
    }
    found = read_tensorboard(tmp_path)
    assert found["mean"]["evaluation/return"] == [(2, 7.5)]
    assert found["seed6"]["evaluation/return"] == [(1, 2.0), (2, 8.0)]


def test_offline_updates_lie_along_the_axis_before_steps(tmp_path):
    """Several evaluations after no step are points of their own."""
    require_readers()
    lines = [
        {"steps": steps, "updates": updates, "seconds": 1.0, "returns": [[float(updates)]]}
        for steps, updates in ((0, 50), (0, 100), (80, 140))
    ]
    with logs.opened(ALL, tmp_path, SETTINGS, lines):
        pass
    assert [(row["steps"], row["updates"]) for row in read_csv(tmp_path)["mean"]] == [(0, 50), (0, 100), (80, 140)]
    assert [step for step, _ in read_tensorboard(tmp_path)["mean"]["evaluation/return"]] == [50, 100, 140]
    assert [row["_step"] for row in read_wandb(tmp_path)[1:]] == [50, 100, 140]


def test_runs_side_by_side_have_logs_of_their_own(tmp_path):
    """As those of a sweep: all open at once, in one process."""
    require_readers()
    lines = [{"steps": 10, "seconds": 1.0, "returns": [[float(number)]]} for number in range(2)]
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    with logs.opened(ALL, folders[0], SETTINGS, []) as first, logs.opened(ALL, folders[1], SETTINGS, []) as second:
        first(lines[0])
        second(lines[1])
    for number, folder in enumerate(folders):
        assert [row["return"] for row in read_csv(folder)["mean"]] == [number]
        assert read_tensorboard(folder)["mean"]["evaluation/return"] == [(10, number)]
        assert [row["mean/return"] for row in read_wandb(folder)[1:]] == [number]


def test_time_in_tensorboard_is_time_of_training(tmp_path):
    pytest.importorskip("tensorboardX")
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    lines = [{"steps": steps, "seconds": 100.0 * steps, "returns": [[1.0]]} for steps in (1, 2)]
    with logs.opened(["tensorboard"], tmp_path, SETTINGS, lines):
        pass
    reader = EventAccumulator(str(tmp_path / "tensorboard" / "mean"))
    reader.Reload()
    first, second = reader.Scalars("evaluation/return")
    assert second.wall_time - first.wall_time == pytest.approx(100)


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_is_named_before_anything_is_written(tmp_path, monkeypatch, name):
    find = importlib.util.find_spec
    package = logs.PACKAGES[name]
    monkeypatch.setattr(importlib.util, "find_spec", lambda one, *rest: None if one == package else find(one, *rest))
    with pytest.raises(ValueError, match=rf"--log {name} needs the package {package}: pip install 'jaxrl-buffers\[log"):
        run.start(SETTINGS, tmp_path / "run", run.Options(log=[name]))
    assert not (tmp_path / "run").exists()


def test_nobody_logged_in_is_said_before_anything_is_written(tmp_path):
    """In a process of its own, since `wandb` reads its settings once."""
    pytest.importorskip("wandb")
    unset = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment = {**unset, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc")}
    command = [sys.executable, str(ROOT / "scripts/train.py"), "ddqn", "CartPole-v1", "--log", "wandb", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "nobody is logged in to Weights & Biases; call `wandb login`, or set WANDB_MODE=offline" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words", ["--log csv tensorboard", "--log csv --log tensorboard", "--log=csv --log=tensorboard"]
)
def test_several_logs_on_the_command_line(words):
    command = command_line.parse(["ddqn", "CartPole-v1", *words.split(), "--seed", "3"])
    assert command.log == ["csv", "tensorboard"]
    assert command.settings.seed == 3


@pytest.mark.parametrize("names", [["csv", "tensorbord"], ["csv", "none"], "csv", [3]])
def test_unknown_logs(tmp_path, names):
    with pytest.raises(ValueError, match=r"log(\.\d)?: "):
        run.start(SETTINGS, tmp_path / "run", run.Options(log=names))
    assert not (tmp_path / "run").exists()
