"""Logs that are opened again: what is left of earlier files, and what is sent once more."""

from __future__ import annotations

from unittest import mock

import pytest

from algorithms import Plan
from algorithms.runs import logs
from algorithms.runs.settings import Settings

SETTINGS = Settings("ddqn", "CartPole-v1", Plan(total_steps=2_000))
LINES = [{"steps": steps, "seconds": 1.0, "returns": [[1.0]]} for steps in (1, 2, 3)]


def test_earlier_files_go_but_for_the_one_that_tensorboard_may_be_reading(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX")
    found = []
    for start in range(3):
        clock = mock.Mock(time=lambda start=start: 1_700_000_000.0 + start)  # which names the files
        monkeypatch.setattr("tensorboardX.event_file_writer.time", clock)
        with logs.opened(["tensorboard"], tmp_path, SETTINGS, LINES):
            pass
        found.append({*(tmp_path / "tensorboard" / "mean").glob("events.*")})
    assert [len(files) for files in found] == [1, 2, 2]
    assert found[0] < found[1]
    assert len(found[1] & found[2]) == 1


def test_an_earlier_offline_run_of_wandb_goes(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    own, of_another = (tmp_path / "wandb" / f"offline-run-20260101_000000-{name}" for name in ("own", "another"))
    own.mkdir(parents=True)
    of_another.mkdir()
    (tmp_path / "wandb" / "id").write_text("own")
    with logs.opened(["wandb"], tmp_path, SETTINGS, LINES):
        pass
    assert (own.exists(), of_another.exists()) == (False, True)
    assert len([*(tmp_path / "wandb").glob("offline-run-*-own")]) == 1


def test_wandb_gets_no_point_that_its_server_has(tmp_path, monkeypatch):
    wandb, sent = pytest.importorskip("wandb"), []
    server = mock.Mock(step=2)  # the first step that it does not have
    server.log = lambda values, step, commit: sent.append(step)
    monkeypatch.setattr(wandb, "init", lambda **_: server)
    with logs.opened(["wandb"], tmp_path, SETTINGS, LINES):
        pass
    assert sent == [2, 3]
    server.finish.assert_called_once_with(exit_code=0)
