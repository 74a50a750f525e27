"""The folder of a run: its settings, metrics and checkpoints, and kills while they are written."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal

import numpy as np
import pytest
from support.short_runs import FEW, PLAN, SETTINGS

from algorithms.runs import presets, run
from algorithms.runs.build import build
from algorithms.runs.progress import Progress
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written"):
        run.start(SETTINGS, tmp_path / "file" / "run", FEW)


def test_metrics_are_cut_by_their_steps(tmp_path):
    """However many lines there are: those after the checkpoint go, and what cannot be read at the end."""
    folder = RunFolder(tmp_path)
    folder.keep_metrics(10)
    for steps in (10, 10, 20, 30):
        folder.append({"steps": steps, "returns": [[0]]})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"steps": 4' + bytes(20))  # what a power cut may leave
    assert [line["steps"] for line in folder.metrics()] == [10, 10, 20, 30]
    folder.keep_metrics(20)
    text = "".join(f'{{"steps": {steps}, "returns": [[0]]}}\n' for steps in (10, 10, 20))
    assert (tmp_path / "metrics.jsonl").read_text() == text
    folder.append({"loss": 1.0})
    with pytest.raises(ValueError, match="expected steps, and returns"):
        folder.keep_metrics(20)


def test_a_kill_while_lines_are_dropped_loses_none(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    for steps in range(3):
        folder.append({"steps": steps, "returns": [[0.0]]})
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: signal.default_int_handler(signal.SIGINT, None))
        with pytest.raises(KeyboardInterrupt):
            folder.keep_metrics(1)
    assert len(folder.metrics()) == 3
    folder.keep_metrics(1)
    assert [line["steps"] for line in folder.metrics()] == [0, 1]


def test_a_kill_while_the_folder_is_made_leaves_none(tmp_path, monkeypatch):
    """Else it could neither be resumed nor started."""
    folder = RunFolder(tmp_path / "runs" / "run")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: signal.default_int_handler(signal.SIGINT, None))
        with pytest.raises(KeyboardInterrupt):
            folder.create(SETTINGS)
    assert not folder.path.exists()
    folder.create(SETTINGS)
    assert folder.settings() == SETTINGS
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run"]


def test_a_folder_without_a_run(tmp_path):
    """What is written is what is read, without any training."""
    folder, state = RunFolder(tmp_path / "run"), {"w": np.arange(3)}
    folder.create(SETTINGS, {"final_episodes": 3})
    assert folder.options() == {"final_episodes": 3}
    assert not folder.has_checkpoint
    folder.save(state, SETTINGS, {"iteration": 1})
    restored, progress = folder.restore(state)
    np.testing.assert_array_equal(restored["w"], state["w"])
    assert progress == {"iteration": 1}
    folder.change_settings(dataclasses.replace(SETTINGS, gamma=0.5))
    with pytest.raises(ValueError, match="was saved with other settings: gamma;"):
        folder.restore(state)
    shutil.rmtree(folder.path / "checkpoint")
    with pytest.raises(ValueError, match=r"the checkpoint of .* is gone"):
        folder.restore(state)
    folder.finish({"steps": 2, "returns": np.ones(2)})
    assert (folder.path / "result.json").read_text().startswith('{\n  "steps": 2,\n')
    assert json.loads((folder.path / "result.json").read_text())["returns"] == [1, 1]


@pytest.mark.parametrize(
    ("text", "message"), [(None, "is not the folder of a run"), ("{}", "does not hold"), ("{", "does not")]
)
def test_folders_of_other_things(tmp_path, text, message):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        run.resume(tmp_path, FEW)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_presets_fit_together(name):
    build(presets.preset(*name))


def test_settings_survive_json():
    for name in presets.PRESETS:
        settings = presets.preset(*name)
        assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


@pytest.mark.parametrize("most", [None, 3, 1])
def test_chunks_never_cross_an_evaluation(most):
    for total, every in ((300, 80), (61 + 4 * 97, 28), (64, 0)):
        plan = dataclasses.replace(PLAN, num_envs=1, total_steps=total - total % 4, test_every=every)
        iteration, tests = 0, []
        while iteration < plan.num_iterations:
            chunk = Progress(iteration).chunk(plan, most)
            assert 1 <= chunk <= (most or plan.num_iterations)
            iteration += chunk
            if iteration % plan.iterations_per_test == 0 or iteration == plan.num_iterations:
                tests.append(iteration)
        assert iteration == plan.num_iterations
        assert len(tests) == -(-plan.num_iterations // plan.iterations_per_test)
