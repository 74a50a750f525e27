"""Saves that fail or are killed leave the old checkpoint; files and folders are written durably."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import jax.numpy as jnp
import numpy as np
import pytest
from support.bits import assert_same_bits

from jaxrl_buffers import _durable as durable
from jaxrl_buffers import checkpoint, segment_tree

STATE = {"x": jnp.zeros(3), "y": (jnp.int32(0),)}


def test_what_cannot_be_saved_is_refused_and_the_old_checkpoint_stays(tmp_path):
    checkpoint.save(tmp_path, STATE)
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(ValueError, match=r"leaf \['name'\] is 'dqn'; a checkpoint can hold arrays"):
            checkpoint.save(folder, {"name": "dqn"})
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match="metadata that JSON cannot express"):
        checkpoint.save(tmp_path, STATE, metadata={"value": jnp.zeros(2)})
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"save\(\) cannot write a checkpoint: Not a directory.*file/below"):
        checkpoint.save(tmp_path / "file" / "below", STATE)
    assert_same_bits(checkpoint.restore(tmp_path, STATE), STATE)


def test_a_failed_save_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, STATE)

    def fail(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        with pytest.raises(OSError, match="disk full"):
            checkpoint.save(tmp_path, STATE)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step_00000001"]
    assert_same_bits(checkpoint.restore(tmp_path, STATE), STATE)


def test_a_folder_is_removed_with_all_in_it(tmp_path):
    (tmp_path / "folder" / "above" / "below").mkdir(parents=True)
    (tmp_path / "folder" / "above" / "below" / "file").touch()
    (tmp_path / "other").touch()
    durable.remove_folder(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_files_are_written_anew_or_appended_to(tmp_path):
    """With the permissions that any new file has."""
    (tmp_path / "usual").touch()
    for text in ("longer\n", "text\n"):
        durable.append_text(tmp_path / "appended", text)
        durable.write_text(tmp_path / "written", text)
    assert (tmp_path / "appended").read_bytes() == b"longer\ntext\n"
    assert (tmp_path / "written").read_bytes() == b"text\n"
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


SAVE_FOR_EVER = """
    import itertools, sys
    import jax.numpy as jnp
    from jaxrl_buffers import checkpoint, segment_tree

    for count in itertools.count():
        tree = segment_tree.from_leaves(jnp.full(5000, count, jnp.float32))
        checkpoint.save(sys.argv[1], {"tree": tree, "count": jnp.full(20_000, count)}, metadata={"count": count})
        print(count, flush=True)
"""


def test_a_killed_process_leaves_the_last_checkpoint_readable(tmp_path):
    """SIGKILL at random moments of a loop that does nothing but save."""
    rng = np.random.default_rng()
    command = [sys.executable, "-c", textwrap.dedent(SAVE_FOR_EVER)]
    folders = [tmp_path / str(i) for i in range(2)]
    processes = [subprocess.Popen([*command, folder], stdout=subprocess.PIPE, text=True) for folder in folders]
    for process, folder in zip(processes, folders, strict=True):
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.3))
        process.kill()
        reported = process.communicate()[0].split()
        like = {"tree": segment_tree.init(5000), "count": jnp.zeros(20_000, jnp.int32)}
        state = checkpoint.restore(folder, like)
        count = checkpoint.read_metadata(folder)["metadata"]["count"]
        assert count >= int(reported[-1] if reported else 0)
        assert_same_bits(state["tree"], segment_tree.from_leaves(jnp.full(5000, count, jnp.float32)))
        assert (np.asarray(state["count"]) == count).all()
        checkpoint.save(folder, state)
        assert len(list(folder.iterdir())) == 2
