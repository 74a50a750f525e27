"""A state that is spread over devices is saved, and comes back on any other number of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest
import xxhash

from jaxrl_buffers import _manifest as manifests
from jaxrl_buffers import checkpoint


def test_other_numbers_of_devices():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "spread_cases.py"]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "8"}
    done = subprocess.run(command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def as_two_processes(step: Path) -> None:
    """Change a step with the array `[0, 1, 2, 3]` into what two processes would have written."""
    manifest = json.loads((step / "manifest.json").read_text())
    whole = (step / "arrays.bin").read_bytes()
    [record] = manifest["leaves"].values()
    pieces = []
    for process, name in enumerate(("arrays.bin", "arrays_00001.bin")):
        (step / name).write_bytes(whole[8 * process : 8 * process + 8])
        hashes = {"hash": xxhash.xxh3_64((step / name).read_bytes()).hexdigest()}
        pieces.append({"file": name, "offset": 0, "start": [2 * process], "shape": [2], **hashes})
    record["array"] = {"dtype": "float32", "shape": [4], "pieces": pieces}
    (step / "manifest.json").write_bytes(
        manifests.text({piece["file"]: 8 for piece in pieces}, manifest["leaves"], manifest["metadata"])
    )


@pytest.fixture
def step(tmp_path):
    for number in (1, 2):
        checkpoint.save(tmp_path, jnp.arange(4.0), metadata={"number": number})
    as_two_processes(tmp_path / "step_00000002")
    return tmp_path / "step_00000002"


def test_pieces_of_two_processes_are_read_as_one_array(step):
    restored = checkpoint.restore_with_metadata(step.parent, jnp.zeros(4))
    assert restored.metadata == {"number": 2}
    assert restored.state.tolist() == [0, 1, 2, 3]
    assert checkpoint.read_metadata(step.parent)["format_version"] == 3


def test_a_missing_piece_is_refused_and_nothing_is_removed(step):
    """An older step is not taken instead, for the disk of a process may only be absent."""
    (step / "arrays_00001.bin").unlink()
    lacks = (
        r"step_00000002 lacks arrays_00001\.bin, which another process of the run has written; put it back, or remove"
    )
    for read in (checkpoint.read_metadata, lambda path: checkpoint.restore(path, jnp.zeros(4))):
        with pytest.raises(ValueError, match=lacks):
            read(step.parent)
    checkpoint.save(step.parent, jnp.zeros(4))
    assert step.exists()


def test_a_damaged_piece_is_found(step):
    (step / "arrays_00001.bin").write_bytes(b"12345678")
    with pytest.warns(UserWarning, match=r"step_00000002 is damaged: .*hash differs.* Went back to .*step_00000001"):
        assert checkpoint.restore_with_metadata(step.parent, jnp.zeros(4)).metadata == {"number": 1}


def test_an_array_of_which_a_part_is_nowhere(step):
    manifest = json.loads((step / "manifest.json").read_text())
    [record] = manifest["leaves"].values()
    record["array"]["pieces"].pop()
    (step / "manifest.json").write_bytes(manifests.text(manifest["files"], manifest["leaves"], {}))
    with pytest.warns(UserWarning, match="2 numbers of an array are in no file"):
        checkpoint.restore(step.parent, jnp.zeros(4))
