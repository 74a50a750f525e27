"""Checkpoints that are damaged, read beside a writer, large, or of an older format."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.bits import assert_same_bits

from jaxrl_buffers import _manifest, checkpoint, segment_tree
from jaxrl_buffers import _saved_arrays as saved_arrays

STATE = {"x": jnp.arange(3.0), "tree": segment_tree.from_leaves(jnp.arange(9.0)), "key": jax.random.key(1), "n": 7}
DAMAGED = r"the checkpoint .*step_00000001 is damaged: "


def saved(folder: Path) -> Path:
    """Save once; return the only step."""
    checkpoint.save(folder, STATE, metadata={"steps": 1})
    return folder / "step_00000001"


def test_every_flipped_bit_is_found(tmp_path):
    step = saved(tmp_path)
    rng = np.random.default_rng(0)
    for file in step.iterdir():
        whole = file.read_bytes()
        for place in range(len(whole)):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << rng.integers(8)
            file.write_bytes(flipped)
            with pytest.raises(FileNotFoundError, match=DAMAGED):
                checkpoint.restore(tmp_path, STATE)
        file.write_bytes(whole)
    assert_same_bits(checkpoint.restore(tmp_path, STATE), STATE)


def test_flipped_bits_of_arrays_that_are_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_arrays, "BLOCK_BYTES", 16)
    state = jnp.arange(30.0)
    checkpoint.save(tmp_path, state)
    assert_same_bits(checkpoint.restore(tmp_path, state), state)
    file = tmp_path / "step_00000001" / "arrays.bin"
    flipped = bytearray(file.read_bytes())
    flipped[70] ^= 4
    file.write_bytes(flipped)
    with pytest.raises(FileNotFoundError, match=f"{DAMAGED}the array at byte 0 is not what was written: its hash"):
        checkpoint.restore(tmp_path, state)


def remove_arrays(step):
    (step / "arrays.bin").unlink()


def shorten_arrays(step):
    file = step / "arrays.bin"
    file.write_bytes(file.read_bytes()[:-1])


def lengthen_arrays(step):
    with (step / "arrays.bin").open("ab") as file:
        file.write(b"0")


def change_manifest(**changes):
    """Return what makes a manifest with other contents, whose own hash is right."""

    def change(step):
        manifest = json.loads((step / "manifest.json").read_text())
        manifest.pop("hash")
        manifest = {name: value for name, value in {**manifest, **changes}.items() if value is not None}
        (step / "manifest.json").write_bytes(_manifest.sealed(manifest))

    return change


DAMAGES = {
    "no arrays": (remove_arrays, r"arrays\.bin has no bytes instead of \d+; the folder contains manifest\.json\."),
    "short arrays": (shorten_arrays, r"arrays\.bin has \d+ bytes instead of \d+; the folder contains arrays\.bin, man"),
    "long arrays": (lengthen_arrays, r"arrays\.bin has \d+ bytes instead of \d+"),
    "another file": (lambda step: (step / "more").write_text("12"), "more has 2 bytes instead of none"),
    "no manifest": (lambda step: (step / "manifest.json").unlink(), r"manifest\.json cannot be read: FileNotFound"),
    "half a manifest": (lambda step: (step / "manifest.json").write_text("{"), r"manifest\.json cannot be read"),
    "a list": (lambda step: (step / "manifest.json").write_text("[1]"), r"manifest\.json cannot be read"),
    "deep": (lambda step: (step / "manifest.json").write_text("[" * 100_000), r"manifest\.json cannot be read"),
    "no bytes": (lambda step: (step / "manifest.json").write_bytes(b""), r"manifest\.json cannot be read"),
    "zeros": (lambda step: (step / "manifest.json").write_bytes(bytes(99)), r"manifest\.json cannot be read"),
    "no leaves": (change_manifest(leaves=None), "has None for 'leaves' instead of a dict"),
    "wrong leaves": (change_manifest(leaves=[]), r"has \[\] for 'leaves' instead of a dict"),
    "wrong leaf": (change_manifest(leaves={"['x']": 3}), r"has 3 for leaf \['x'\]"),
    "wrong place": (change_manifest(leaves={"['x']": {"kind": "a", "array": 1}}), r"has 1 for the array of leaf"),
    "no files": (change_manifest(files=None), "has None for 'files'"),
    "no metadata": (change_manifest(metadata=None), "has None for 'metadata'"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_damage_is_named(case, tmp_path):
    damage, message = DAMAGES[case]
    damage(saved(tmp_path))
    for read in (checkpoint.read_metadata, lambda path: checkpoint.restore(path, STATE)):
        with pytest.raises(FileNotFoundError, match=DAMAGED + ".*" + message):
            read(tmp_path)


@pytest.mark.parametrize("case", DAMAGES)
def test_the_step_before_a_damaged_one_is_restored_with_a_warning(case, tmp_path):
    saved(tmp_path)
    checkpoint.save(tmp_path, STATE | {"n": 8}, metadata={"steps": 2})
    damage, message = DAMAGES[case]
    damage(tmp_path / "step_00000002")
    went_back = "the checkpoint .*step_00000002 is damaged: .*" + message + ".* Went back to .*step_00000001, which"
    with pytest.warns(UserWarning, match=went_back) as caught:
        restored = checkpoint.restore_with_metadata(tmp_path, STATE)
    assert [warning.filename for warning in caught] == [__file__]
    assert restored.metadata == {"steps": 1}
    assert_same_bits(restored.state, STATE)
    checkpoint.save(tmp_path, STATE | {"n": 9})
    assert sorted(step.name for step in tmp_path.iterdir()) == ["step_00000001", "step_00000003"]


def test_files_that_systems_leave_behind_do_not_matter(tmp_path):
    (saved(tmp_path) / ".DS_Store").touch()
    assert_same_bits(checkpoint.restore(tmp_path, STATE), STATE)


def test_a_step_of_a_later_format_is_kept(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(_manifest, "FORMAT_VERSION", 99)
        saved(tmp_path)
    checkpoint.save(tmp_path, STATE)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_reader_beside_a_writer_never_sees_damage(tmp_path):
    """What it reads vanishes again and again, and always a newer one is there."""
    state = {"x": jnp.zeros(50_000), "y": jnp.zeros(50_000)}
    checkpoint.save(tmp_path, state, metadata={"count": 0})
    stop = threading.Event()

    def write():
        count = 0
        while not stop.is_set():
            count += 1
            checkpoint.save(tmp_path, dict.fromkeys(state, jnp.full(50_000, 1.0 * count)), metadata={"count": count})

    writer = threading.Thread(target=write)
    writer.start()
    counts = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            while len(counts) < 300:
                restored = checkpoint.restore_with_metadata(tmp_path, state)
                counts.append(restored.metadata["count"])
                assert float(restored.state["x"][0]) == float(restored.state["y"][-1]) == counts[-1]
    finally:
        stop.set()
        writer.join()
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


@pytest.mark.parametrize("moment", ["before the manifest", "before the arrays"])
def test_a_step_that_vanishes_while_it_is_read(moment, tmp_path, monkeypatch):
    saved(tmp_path)
    owner, name = {"before the manifest": (_manifest, "read"), "before the arrays": (checkpoint, "_read_state")}[moment]
    read = getattr(owner, name)

    def replace_and_read(*arguments):
        monkeypatch.setattr(owner, name, read)
        for steps in (2, 3):
            checkpoint.save(tmp_path, STATE | {"n": steps}, metadata={"steps": steps})
        return read(*arguments)

    monkeypatch.setattr(owner, name, replace_and_read)
    restored = checkpoint.restore_with_metadata(tmp_path, STATE)
    assert restored.metadata["steps"] == restored.state["n"] == 3


def test_blocks_cover_arrays_of_every_shape(tmp_path, monkeypatch):
    shapes = [(7,), (3, 5), (2, 3, 4), (1, 1, 40), (5, 1, 1, 2)]
    dtypes = (jnp.float32, jnp.bfloat16, jnp.bool_)
    keys = jax.random.split(jax.random.key(0), len(shapes))
    state = [
        (jax.random.uniform(key, shape) * 9).astype(dtype)
        for key, shape in zip(keys, shapes, strict=True)
        for dtype in dtypes
    ]
    monkeypatch.setattr(saved_arrays, "BLOCK_BYTES", 12)
    checkpoint.save(tmp_path, state)
    assert_same_bits(checkpoint.restore(tmp_path, jax.eval_shape(lambda: state)), state)


def test_large_arrays_are_read_in_blocks(tmp_path, monkeypatch):
    """Never more at once than a block, and of small rows as many as fit into one."""
    sizes, fill = [], saved_arrays.ArrayFile._fill

    def note_and_fill(file, array):
        sizes.append(array.nbytes)
        fill(file, array)

    monkeypatch.setattr(saved_arrays, "BLOCK_BYTES", 16)
    monkeypatch.setattr(saved_arrays.ArrayFile, "_fill", note_and_fill)
    state = (jnp.arange(10.0), jnp.arange(10, dtype=jnp.int8), jnp.arange(8.0))
    checkpoint.save(tmp_path, state)
    checkpoint.restore(tmp_path, state)
    assert sizes == [16, 16, 8, 10, 16, 16]


MEASURE = """
    import sys
    import jax, jax.numpy as jnp, numpy as np
    from jaxrl_buffers import checkpoint

    def memory(name):
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

    num_bytes = 256 * 2**20
    rows = num_bytes // 4 // 8
    state = {"large": (rows // 8 * 5, 8), "seeds": (2, rows // 8, 8), "small": (rows // 8, 8)}
    like = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in state.items()}
    if sys.argv[2] == "save":
        checkpoint.save(sys.argv[1], jax.tree.map(lambda leaf: jnp.ones(leaf.shape), like))
    else:
        # What the first compiled program and the first read cost is no part of it.
        checkpoint.save(sys.argv[1] + "_small", jnp.zeros(3))
        checkpoint.restore(sys.argv[1] + "_small", jnp.zeros(3))
        before = memory("VmRSS")
        state = jax.block_until_ready(checkpoint.restore(sys.argv[1], like))
        print((memory("VmHWM") - before) / num_bytes)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read as Linux tells it")
def test_a_restore_holds_little_more_than_the_state(tmp_path):
    """Also of a state that is mostly one array. In multiples of the state, which is kept."""
    folder = tmp_path / "large"
    for action in ("save", "restore"):
        command = [sys.executable, "-c", textwrap.dedent(MEASURE), str(folder), action]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    shutil.rmtree(folder)
    assert 1 <= float(done.stdout) < 1.4


def test_checkpoints_of_format_version_1_are_read(tmp_path):
    """They were written by Orbax, without hashes."""
    import orbax.checkpoint as ocp

    state = STATE | {"half": jnp.arange(6, dtype=jnp.bfloat16), "empty": jnp.zeros((0, 3))}
    arrays = {"0": np.arange(9, dtype=np.float32), "1": np.asarray(jax.random.key_data(STATE["key"]))}
    arrays |= {"2": np.asarray(state["half"]), "3": np.asarray(state["x"])}
    step = tmp_path / "step_00000007"
    step.mkdir()
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(step / "arrays", args=ocp.args.PyTreeSave(arrays))
    leaves = {
        "['tree']": {"kind": "segment tree of float32[9]", "array": "0"},
        "['key']": {"kind": "key<fry>[]", "key_implementation": "threefry2x32", "array": "1"},
        "['half']": {"kind": "bfloat16[6]", "array": "2"},
        "['x']": {"kind": "float32[3]", "array": "3"},
        "['n']": {"kind": "int32[]", "number": 7},
        "['empty']": {"kind": "float32[0, 3]"},
    }
    files = {str(file.relative_to(step)): file.stat().st_size for file in step.rglob("*") if file.is_file()}
    manifest = {"format_version": 1, "library_version": "0.1.0", "metadata": {"a": 1}, "leaves": leaves, "files": files}
    (step / "manifest.json").write_text(json.dumps(manifest, indent=1))
    restored = checkpoint.restore_with_metadata(tmp_path, state)
    assert restored.metadata == {"a": 1}
    assert_same_bits(restored.state, state)
    checkpoint.save(tmp_path, state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000007", "step_00000008"]
    (step / "arrays" / "manifest.ocdbt").unlink()
    shutil.rmtree(tmp_path / "step_00000008")
    with pytest.raises(FileNotFoundError, match=r"is damaged: arrays/manifest\.ocdbt has no bytes instead of"):
        checkpoint.restore(tmp_path, state)
