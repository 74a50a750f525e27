"""Two processes on one run folder: the second is refused, and a dead one holds nothing."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from algorithms.runs import lock as run_lock
from algorithms.runs import presets, run
from algorithms.runs.run_folder import RunFolder

pytestmark = pytest.mark.skipif(run_lock.fcntl is None, reason="there are no such locks on Windows")

# Of one file, for the package takes seconds to import.
HOLD = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("run_lock", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
with module.lock(pathlib.Path(sys.argv[2])):
    print("held", flush=True)
    input()
"""


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create(presets.preset("ddqn", "CartPole-v1"))
    return folder


def test_a_lock_ends_with_its_process(folder):
    command = [sys.executable, "-c", HOLD, run_lock.__file__, str(folder.path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        before = sorted(folder.path.iterdir())
        in_use = rf"run is in use by another process \(number {process.pid}\), and only one may write"
        with pytest.raises(ValueError, match=in_use):
            run.resume(folder.path)
        assert sorted(folder.path.iterdir()) == before
    finally:
        process.kill()
        process.communicate()
    with folder.lock(), pytest.raises(ValueError, match="in use"), folder.lock():
        pass
    with folder.lock():
        pass


def test_a_run_is_locked_while_it_trains(tmp_path, monkeypatch):
    def train(runs, *_):
        [(_, folder)] = runs
        with pytest.raises(ValueError, match="in use by another process"):
            run.resume(folder.path)
        return [{}]

    monkeypatch.setattr(run, "train", train)
    assert run.start(presets.preset("ddqn", "CartPole-v1"), tmp_path / "run") == {}
    assert run.resume(tmp_path / "run") == {}


def test_reading_needs_no_lock(folder):
    with folder.lock():
        assert folder.settings() == presets.preset("ddqn", "CartPole-v1")
        assert folder.metrics() == []
        with pytest.raises(ValueError, match="holds no checkpoint"):
            run.restore(folder.path)


def test_a_folder_of_something_else_stays_as_it_is(tmp_path):
    with pytest.raises(ValueError, match="is not the folder of a run"):
        RunFolder(tmp_path).lock()
    assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_locked(folder, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(run_lock.fcntl, "flock", fail)
    with pytest.warns(UserWarning, match="cannot lock files"), folder.lock():
        pass


def test_two_that_make_the_same_folder(tmp_path):
    aside = tmp_path / ".run.new"
    aside.mkdir()
    with run_lock.lock(Path(aside)), pytest.raises(ValueError, match="in use by another process"):
        RunFolder(tmp_path / "run").create(presets.preset("ddqn", "CartPole-v1"))
    RunFolder(tmp_path / "run").create(presets.preset("ddqn", "CartPole-v1"))
