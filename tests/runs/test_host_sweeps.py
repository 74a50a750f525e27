"""Sweeps in environments that are stepped on the host: runs one after the other."""

from __future__ import annotations

import dataclasses
import signal

import pytest
from support import short_runs
from support.short_runs import FEW

from algorithms.runs import run, sweeps
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings

PLAN = dataclasses.replace(short_runs.PLAN, total_steps=140, test_every=40)


def test_on_the_host_runs_come_one_after_the_other(tmp_path):
    """Stopped in the second run, the sweep continues there. Each run is the one that its settings give alone."""
    pytest.importorskip("gymnasium")
    plan = dataclasses.replace(PLAN, test_every=0)
    settings = Settings("ddqn", "gymnasium:CartPole-v1", plan, capacity=100, hidden_sizes=(8,))
    values = {"n_step": [1, 2], "agent.learning_rate": [1e-2]}
    names = ["n_step=1,agent.learning_rate=0.01", "n_step=2,agent.learning_rate=0.01"]
    seen = []

    def stop_in_second(report):
        seen.append(report.run)
        if report.run.startswith("n_step=2") and report.steps >= 100:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(run.Interrupted):
        sweeps.start(settings, values, tmp_path / "sweep", FEW._replace(on_chunk=stop_in_second))
    assert list(dict.fromkeys(seen)) == [f"{names[0]} (1 of 2)", f"{names[1]} (2 of 2)"]
    folders = {name: RunFolder(tmp_path / "sweep" / name) for name in names}
    assert [folder.result() is None for folder in folders.values()] == [False, True]
    assert sweeps.is_sweep(tmp_path / "sweep")

    seen.clear()
    results = sweeps.resume(tmp_path / "sweep", FEW._replace(on_chunk=lambda report: seen.append(report.run)))
    assert set(seen) == {f"{names[1]} (2 of 2)"}  # the first one is finished
    assert [result["steps"] for result in results.values()] == [140, 140]
    alone = run.start(folders[names[0]].settings(), tmp_path / "alone", FEW)
    assert alone["return_of_seeds"] == results[names[0]]["return_of_seeds"]
    assert folders[names[1]].settings().n_step == 2
    longer = sweeps.resume(tmp_path / "sweep", FEW, total_steps=148)
    assert [result["steps"] for result in longer.values()] == [148, 148]
    with pytest.raises(ValueError, match="--stop-at-return is for a single run"):
        sweeps.resume(tmp_path / "sweep", FEW._replace(stop_at_return=1.0))


def test_what_is_wrong_is_refused_before_a_sweep_on_the_host_begins(tmp_path):
    pytest.importorskip("gymnasium")
    settings = Settings("ddqn", "gymnasium:CartPole-v1", PLAN, capacity=100, hidden_sizes=(8,))
    with pytest.raises(ValueError, match="n_step"):
        sweeps.start(settings, {"n_step": [1, -2]}, tmp_path / "sweep", FEW)
    assert not list(tmp_path.iterdir())


def test_a_run_that_was_stopped_early_is_not_finished(tmp_path, monkeypatch):
    """Also one that only learns offline: it has made all of its 0 steps from the beginning."""
    plan = dataclasses.replace(PLAN, total_steps=0, start_steps=0, offline_updates=10)
    folder = RunFolder(tmp_path)
    result = {"steps": 0, "updates": 4, "stopped_by": "max_time"}
    monkeypatch.setattr(RunFolder, "settings", lambda _: Settings("ddqn", "gymnasium:CartPole-v1", plan))
    monkeypatch.setattr(RunFolder, "result", lambda _: result)
    assert sweeps._finished(folder) == {}
    del result["stopped_by"]
    assert sweeps._finished(folder) == result
    assert sweeps._finished(folder, total_steps=8) == {}
