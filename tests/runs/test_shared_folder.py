"""All processes of a job must be told the same and see the same folder; otherwise all of them end, and soon."""

from __future__ import annotations

import dataclasses
import shutil
import threading
import time

import pytest
from support.processes import in_all

from algorithms.runs import lock, presets, run
from algorithms.runs.options import Kept, Options
from algorithms.runs.progress import Progress
from algorithms.runs.run_folder import RunFolder
from jaxrl_buffers import _processes as processes

SETTINGS = presets.preset("ddqn", "CartPole-v1")


@pytest.fixture
def in_job(monkeypatch):
    """Call a function of the number of a process in every process of a job, which are threads."""
    own = threading.local()
    monkeypatch.setattr(lock, "PATIENCE", 0.3)

    def call(function):
        def of(one):
            own.job = one
            return function(one.index)

        with monkeypatch.context() as patch:
            patch.setattr(processes, "job", lambda: own.job)
            return in_all(of, 2)[0]

    return call


@pytest.fixture
def disks(tmp_path):
    found = [tmp_path / f"disk{number}" for number in range(2)]
    for disk in found:
        disk.mkdir()
    return found


def test_a_new_run_is_refused_if_a_process_cannot_see_its_folder(in_job, disks):
    first, second = in_job(lambda index: RunFolder(disks[index] / "run").create(SETTINGS))
    assert isinstance(first, processes.Elsewhere)
    assert str(second).startswith(f"this process cannot see what process 0 wrote to {disks[1]}/.run.new;")
    assert not [path for disk in disks for path in disk.iterdir()]


def test_a_run_is_not_resumed_where_a_process_does_not_find_it(in_job, disks):
    RunFolder(disks[0] / "run").create(SETTINGS)
    first, second = in_job(lambda index: RunFolder(disks[index] / "run").lock())
    assert isinstance(first, processes.Elsewhere)
    assert "is not the folder of a run" in str(second)


def test_a_run_is_not_resumed_where_a_process_has_a_copy_of_it(in_job, disks):
    RunFolder(disks[0] / "run").create(SETTINGS)
    shutil.copytree(disks[0] / "run", disks[1] / "run")
    (disks[1] / "run" / lock.NAME).write_text("1 of an earlier process\n")

    def locked(index):
        with RunFolder(disks[index] / "run").lock():
            raise AssertionError("both processes went on")

    first, second = in_job(locked)
    assert isinstance(first, processes.Elsewhere)
    assert "put the run on a disk that all processes share" in str(second)


def test_a_folder_that_is_shared_is_found_even_if_it_comes_late(in_job, disks, monkeypatch):
    """Process 1 sees what process 0 has written only after some time, as on disks that are shared over a network."""
    RunFolder(disks[0] / "run").create(SETTINGS)
    read, late = lock._written, [""] * 2
    monkeypatch.setattr(lock, "_written", lambda folder: late.pop() if late else read(folder))

    def locked(index):
        with RunFolder(disks[0] / "run").lock():
            return index

    assert in_job(locked) == [0, 1]
    assert not late


def test_processes_with_different_commands_end_before_one_waits_for_another(in_job, disks):
    folder = disks[0] / "run"
    RunFolder(folder).create(SETTINGS)
    before = sorted(folder.iterdir())
    commands = [lambda: run.resume(folder), lambda: run.start(SETTINGS, folder)]
    for error in in_job(lambda index: commands[index]()):
        assert "process 1 was started with other values than process 0: command" in str(error)
    for error in in_job(lambda index: run.start(SETTINGS, disks[index] / "new")):
        assert "process 1 was started with other values than process 0: folder" in str(error)
    assert sorted(folder.iterdir()) == before


def test_a_slow_process_makes_the_same_calls_as_process_0(in_job, disks):
    """Process 0 may have written a new budget before another process looks at the old one."""
    RunFolder(disks[0] / "run").create(SETTINGS)
    old = (disks[0] / "run" / "config.json").read_text()
    more = dataclasses.replace(SETTINGS, plan=dataclasses.replace(SETTINGS.plan, total_steps=99_000))

    class Slow(RunFolder):
        def settings(self):
            until = time.monotonic() + 1
            while (self.path / "config.json").read_text() == old and time.monotonic() < until:
                time.sleep(0.01)
            return super().settings()

    def gone_on(index):
        folder = (RunFolder, Slow)[index](disks[0] / "run")
        run.go_on(folder, more, Progress(), Options(), Kept())
        return processes.gather(processes.job(), index)

    assert in_job(gone_on) == [[0, 1], [0, 1]]
    assert RunFolder(disks[0] / "run").settings() == more


def test_processes_with_other_options_end(in_job):
    """Options are compared as they are saved. Equal ones pass, whether they came as a tuple or a list."""
    logs = [(), []]
    assert in_job(lambda index: run._require_same({"log": logs[index]})) == [None, None]
    for error in in_job(lambda index: run._require_same(Kept(checkpoint_seconds=index)._asdict())):
        assert "other values than process 0: checkpoint_seconds" in str(error)
