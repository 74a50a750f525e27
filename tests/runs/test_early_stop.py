"""Runs that end before they have made all their steps: as at their end, and they can go on."""

from __future__ import annotations

import json
import runpy
import signal
from pathlib import Path

import numpy as np
import pytest
from support.short_runs import FEW, PLAN, SharedPrograms

from algorithms.runs import run
from algorithms.runs.build import complete
from algorithms.runs.early_stop import EarlyStop
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings

TRAIN = Path(__file__).parents[2] / "scripts" / "train.py"
SETTINGS = complete(Settings("ddqn", "CartPole-v1", PLAN, capacity=200, hidden_sizes=(8,), num_seeds=2))
programs = SharedPrograms(SETTINGS)
pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, shared_programs):
    """A run that was never stopped, and what its callback was given."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    seen = []
    result = run.start(SETTINGS, path, FEW._replace(on_evaluation=seen.append))
    return RunFolder(path), result, seen


def test_the_callback_gets_what_metrics_get(whole):
    folder, result, seen = whole
    assert "stopped_by" not in result
    assert [metrics["steps"] for metrics in seen] == [140, 220, 300]
    for metrics, line in zip(seen, folder.metrics(), strict=True):
        assert {*metrics} == {*line}
        assert metrics["returns"].shape == (2, 2)
        np.testing.assert_allclose(metrics["loss_q"], line["loss_q"], rtol=1e-5)


def test_a_callback_ends_a_run_which_then_goes_on(whole, tmp_path):
    folder = RunFolder(tmp_path / "run")
    phases = []
    options = FEW._replace(
        on_evaluation=lambda metrics: metrics["steps"] >= 140,
        on_chunk=lambda report: phases.append((report.phase, report.steps)),
    )
    result = run.start(SETTINGS, folder.path, options)
    assert result["steps"] == 140
    assert result["stopped_by"] == "on_evaluation"
    assert json.loads((folder.path / "result.json").read_text())["stopped_by"] == "on_evaluation"
    assert phases[-1] == ("testing", 140)
    assert folder.curve.exists()
    assert folder.restore(programs().shapes())[1]["iteration"] == 20
    resumed = run.resume(folder.path)
    programs.assert_same_outcome(folder, whole[0])
    assert "stopped_by" not in json.loads((folder.path / "result.json").read_text())
    assert resumed["return_of_seeds"] == whole[1]["return_of_seeds"]


def test_the_last_evaluation_stops_nothing(whole, tmp_path):
    result = run.start(SETTINGS, tmp_path / "run", FEW._replace(on_evaluation=lambda metrics: metrics["steps"] == 300))
    assert "stopped_by" not in result


def test_time_ends_a_run_between_evaluations(whole, tmp_path):
    """No evaluation is put in there: the run goes on as if it had not stopped."""
    folder = RunFolder(tmp_path / "run")
    result = run.start(SETTINGS, folder.path, FEW._replace(max_time=0))
    assert result["stopped_by"] == "max_time"
    assert result["steps"] == 60 + 8  # one chunk
    assert folder.metrics() == []
    run.resume(folder.path)
    programs.assert_same_outcome(folder, whole[0])


def test_time_is_counted_from_the_beginning_of_the_call(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stop = EarlyStop(FEW._replace(max_time=5))
    now[0] = 104.9
    assert stop.reason(None) is None
    now[0] = 105.0
    assert stop.reason(None) == "max_time"


@pytest.mark.parametrize(("least", "reason"), [(2.5, "stop_at_return"), (2.6, None), (-1e30, "stop_at_return")])
def test_the_return_is_the_mean_of_all_seeds(least, reason):
    returns = np.array([[1.0, 2.0], [3.0, 4.0]])
    stop = EarlyStop(FEW._replace(stop_at_return=least))
    assert stop.reason({"returns": returns}) == reason
    assert stop.reason({"returns": returns * np.nan}) is None
    assert stop.reason(None) is None


@pytest.mark.parametrize("options", [{"max_time": -1}, {"max_time": float("nan")}, {"stop_at_return": float("inf")}])
def test_limits_that_make_no_sense(tmp_path, options):
    with pytest.raises(ValueError, match=f"run\\({next(iter(options))}="):
        run.start(SETTINGS, tmp_path / "run", FEW._replace(**options))
    assert not (tmp_path / "run").exists()


def test_signals_come_first(tmp_path):
    def stop(metrics):
        signal.raise_signal(signal.SIGTERM)
        return True

    with pytest.raises(run.Interrupted):
        run.start(SETTINGS, tmp_path / "run", FEW._replace(on_evaluation=stop))
    assert not (tmp_path / "run" / "result.json").exists()


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    """Exit code 0, a line that says why; resumed with a new budget, such a run goes on."""
    main = runpy.run_path(str(TRAIN))["main"]
    monkeypatch.chdir(tmp_path)
    Path("settings.yaml").write_text(json.dumps(SETTINGS.to_dict()))
    command = ["--config", "settings.yaml", "--out", "run", "--final-episodes", "2"]
    assert main([*command, "--stop-at-return", "1"]) == 0
    assert "after 140 steps" in (out := capsys.readouterr().out)
    assert "stopped by --stop-at-return" in out
    assert main(["--resume", "run", "--max-time", "0"]) == 0
    assert "stopped by --max-time" in capsys.readouterr().out
    assert main(["--resume", "run", "--total-steps", "340"]) == 0
    assert "stopped by" not in capsys.readouterr().out
    assert [line["steps"] for line in RunFolder("run").metrics()] == [140, 220, 300, 340]
