"""Whatever fails, and whenever the power goes: the last state that was saved, or a newer one, is restored."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from support.fault_disk import CONTENTS, SURVIVORS, Disk, Killed, Recorder

from algorithms.runs import presets
from algorithms.runs.run_folder import RunFolder
from jaxrl_buffers import _durable as durable
from jaxrl_buffers import checkpoint

NUM_SAVES = 3  # with the third the first one goes
LIKE = {"x": np.zeros(5, np.float32), "count": 0}


def save(folder: Path, count: int) -> None:
    checkpoint.save(folder, {"x": np.full(5, count, np.float32), "count": count}, metadata={"count": count})


def save_often(recorder: Recorder) -> int:
    """Save again and again, going on after errors; return the number of the last save that was acknowledged."""
    acknowledged = 0
    with recorder(), contextlib.suppress(Killed):
        for count in range(1, NUM_SAVES + 1):
            with contextlib.suppress(OSError):
                save(recorder.root / "checkpoint", count)
                acknowledged = count
                recorder.acknowledge(count)
    return acknowledged


def check(folder: Path, acknowledged: int) -> None:
    """What was acknowledged, or something newer, is there, as is the one before it; and saving goes on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if acknowledged or checkpoint._steps(folder):
            with contextlib.nullcontext() if acknowledged else contextlib.suppress(FileNotFoundError):
                restored = checkpoint.restore_with_metadata(folder, LIKE)
                count = restored.metadata["count"]
                assert count >= acknowledged
                assert restored.state["count"] == count
                assert (restored.state["x"] == count).all()
        complete = [step for step in checkpoint._steps(folder).values() if checkpoint._is_complete(step)]
        assert len(complete) >= min(acknowledged, 2)
        save(folder, NUM_SAVES + 1)
        assert checkpoint.restore_with_metadata(folder, LIKE).metadata == {"count": NUM_SAVES + 1}
        assert len(list(folder.iterdir())) <= 2


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Syncs are written down, but not waited for."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def num_calls(tmp_path):
    recorder = Recorder(tmp_path / "counted")
    recorder.root.mkdir()
    assert save_often(recorder) == NUM_SAVES
    assert recorder.num_calls > 15 * NUM_SAVES
    return recorder.num_calls


@pytest.mark.parametrize("kills", [False, True], ids=["error", "kill"])
def test_every_call_that_fails(kills, num_calls, tmp_path):
    for number in range(num_calls):
        root = tmp_path / str(number)
        root.mkdir()
        acknowledged = save_often(Recorder(root, number, kills))
        if not kills:
            assert acknowledged >= NUM_SAVES - 1
        check(root / "checkpoint", acknowledged)
        shutil.rmtree(root)


def check_cuts(tmp_path: Path) -> None:
    """Cut the power after every call, and look at all that may be left."""
    recorder = Recorder(tmp_path / "disk")
    recorder.root.mkdir()
    assert save_often(recorder) == NUM_SAVES
    rng = np.random.default_rng(0)
    acknowledged = 0
    for length, (name, *arguments) in enumerate(recorder.log, 1):
        acknowledged = arguments[0] if name == "acknowledge" else acknowledged
        for survives, contents in [
            *zip(SURVIVORS, [*CONTENTS, "empty"], strict=True),
            ("names", "zeros"),
            ("some", "half"),
        ]:
            left = tmp_path / "left"
            Disk(recorder.root, recorder.log[:length], survives, contents, rng).lay_out(left)
            check(left / "checkpoint", acknowledged)
            shutil.rmtree(left)


def test_a_power_cut_after_every_call(tmp_path):
    check_cuts(tmp_path)


def sync_no_folders(patch):
    patch.setattr(durable, "sync", lambda path: None)


def sync_no_files(patch):
    @contextlib.contextmanager
    def new_file(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        yield durable.NewFile(descriptor)
        os.close(descriptor)

    patch.setattr(durable, "new_file", new_file)


def remove_before_the_rename(patch):
    real = durable.rename

    def rename(path, target):
        for step in sorted(checkpoint._steps(target.parent).values())[:-1]:
            durable.remove_folder(step)
        real(path, target)

    patch.setattr(durable, "rename", rename)


def sync_after_the_removal(patch):
    real = durable.sync
    late = []
    patch.setattr(durable, "sync", lambda path: late.append(path) if path.name == "checkpoint" else real(path))
    remove = durable.remove_folder

    def remove_and_sync(path):
        remove(path)
        if path.name.startswith("step_"):
            real(path.parent)

    patch.setattr(durable, "remove_folder", remove_and_sync)


def keep_one(patch):
    patch.setattr(checkpoint, "NUM_KEPT", 1)


@pytest.mark.parametrize(
    "mistake", [sync_no_folders, sync_no_files, remove_before_the_rename, sync_after_the_removal, keep_one]
)
def test_a_power_cut_shows_every_mistake(mistake, tmp_path, monkeypatch):
    mistake(monkeypatch)
    with pytest.raises((AssertionError, FileNotFoundError)):
        check_cuts(tmp_path)


def test_a_text_is_the_old_or_the_new_one(tmp_path):
    recorder = Recorder(tmp_path / "disk")
    recorder.root.mkdir()
    texts = ["", "first", "second", "third"]
    with recorder():
        for count, text in enumerate(texts[1:], 1):
            durable.write_text(recorder.root / "file", text)
            recorder.acknowledge(count)
    count = 0
    for length, (name, *arguments) in enumerate(recorder.log, 1):
        count = arguments[0] if name == "acknowledge" else count
        for survives in SURVIVORS:
            left = tmp_path / "left"
            Disk(recorder.root, recorder.log[:length], survives, "empty", np.random.default_rng(0)).lay_out(left)
            found = (left / "file").read_text() if (left / "file").exists() else ""
            assert found in texts[count : count + 2]
            shutil.rmtree(left)


def test_a_run_folder_after_a_power_cut(tmp_path):
    """It is there with its settings or not at all; no line of metrics from before the checkpoint is missing."""
    recorder = Recorder(tmp_path / "disk")
    recorder.root.mkdir()
    folder = RunFolder(recorder.root / "runs" / "run")
    settings = presets.preset("ddqn", "CartPole-v1")
    with recorder():
        folder.create(settings)
        recorder.acknowledge(0)
        folder.save(LIKE, settings, {"steps": 0})
        for count in (1, 2):
            folder.append({"steps": count, "returns": [[0]]})
            folder.save(LIKE, settings, {"steps": count})
            recorder.acknowledge(count)
        folder.finish({"steps": 2})
        recorder.acknowledge(3)
    acknowledged, rng = -1, np.random.default_rng(0)
    for length, (name, *arguments) in enumerate(recorder.log, 1):
        acknowledged = arguments[0] if name == "acknowledge" else acknowledged
        for survives, contents in [("nothing", "empty"), ("names", "zeros"), ("some", "half"), ("removals", "whole")]:
            left = tmp_path / "left"
            Disk(recorder.root, recorder.log[:length], survives, contents, rng).lay_out(left)
            check_folder(RunFolder(left / "runs" / "run"), settings, acknowledged)
            shutil.rmtree(left)


def check_folder(folder, settings, acknowledged):
    assert folder.path.exists() or acknowledged < 0
    if not folder.path.exists():
        folder.create(settings)
    assert folder.settings() == settings
    assert folder.options() == {}
    if folder.has_checkpoint:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            steps = folder.restore(LIKE)[1]["steps"]
        folder.keep_metrics(steps)
        assert folder.metrics() == [{"steps": count, "returns": [[0]]} for count in range(1, steps + 1)]
        assert steps >= min(acknowledged, 2)
    else:
        assert acknowledged <= 0
    if acknowledged == 3:
        assert json.loads((folder.path / "result.json").read_text()) == {"steps": 2}


SAVE_FOR_EVER = """
import itertools, sys
import numpy as np
from jaxrl_buffers import checkpoint
for count in itertools.count(1):
    state = {"x": np.full(300_000, count, np.float32), "count": count}
    checkpoint.save(sys.argv[1], state, metadata={"count": count})
    print(count, flush=True)
"""


def run(*command: object) -> None:
    subprocess.run([*map(str, command)], check=True, capture_output=True)


@pytest.fixture
def image(tmp_path):
    """An image of ext4, mounted; skip where that is not possible."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can mount an image")
    if not all(map(shutil.which, ("mkfs.ext4", "mount", "umount"))):
        pytest.skip("there is no mkfs.ext4, mount or umount")
    path, folder = tmp_path / "image", tmp_path / "mounted"
    with path.open("wb") as file:
        file.truncate(64 * 2**20)
    folder.mkdir()
    run("mkfs.ext4", "-q", path)
    try:
        run("mount", "-o", "loop", path, folder)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"an image cannot be mounted here: {error.stderr.decode().strip()}")
    yield path, folder
    run("umount", folder)


def test_a_power_cut_of_a_real_file_system(image, tmp_path):
    """The image is copied while it is written to, without a sync: all that is not yet on the disk is missing there."""
    path, folder = image
    command = [sys.executable, "-c", SAVE_FOR_EVER, str(folder / "run" / "checkpoint")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    rng = np.random.default_rng()
    copies, copied = [], tmp_path / "copied"
    try:
        for number in range(5):
            acknowledged = int(process.stdout.readline())
            for _ in range(rng.integers(4)):
                acknowledged = int(process.stdout.readline())
            copies.append((tmp_path / f"copy{number}", acknowledged))
            process.send_signal(signal.SIGSTOP)  # so that all parts of the copy are of one moment
            run("cp", "--sparse=always", path, copies[-1][0])
            process.send_signal(signal.SIGCONT)
    finally:
        process.kill()
        process.communicate()
    copied.mkdir()
    like = {"x": np.zeros(300_000, np.float32), "count": 0}
    for copy, acknowledged in copies:
        run("mount", "-o", "loop", copy, copied)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                restored = checkpoint.restore_with_metadata(copied / "run" / "checkpoint", like)
        finally:
            run("umount", copied)
        assert restored.metadata["count"] >= acknowledged
        assert (restored.state["x"] == restored.metadata["count"]).all()
