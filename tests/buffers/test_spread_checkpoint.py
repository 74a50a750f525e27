"""A state that is spread over devices is saved, and comes back on any other number of them."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xxhash
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from support.bits import assert_same_bits
from support.registry import ALL, BUFFERS, on_tpu
from support.spread import leaves, like, material, mesh_of, spread

import jaxrl_buffers as jb
from jaxrl_buffers import _manifest as manifests
from jaxrl_buffers import _shards as shards
from jaxrl_buffers import checkpoint

KINDS = {name: ALL[name] for name in ("prioritized_n_step", "mix", "mixture", "recent_prioritized", "episodic")} | {
    "on_tpu": on_tpu(BUFFERS["prioritized_per_env"]),
    "frames": lambda length, num_envs: BUFFERS["frames"](length, num_envs).replace(sampler=jb.Uniform()),
}


@pytest.mark.parametrize("name", KINDS)
def test_8_to_2_to_4_to_1_devices_and_back(name, tmp_path):
    make, data = KINDS[name], material()
    expected = {count: spread(make, count, *data) for count in (8, 2, 4, 1)}
    checkpoint.save(tmp_path / "0", expected[8])
    for number, count in enumerate((2, 4, 1, 8, 1)):
        restored = checkpoint.restore(tmp_path / str(number), like(make, count))
        assert_same_bits(leaves(restored), leaves(expected[count]))
        assert [leaf.sharding for leaf in leaves(restored)] == [leaf.sharding for leaf in leaves(expected[count])]
        checkpoint.save(tmp_path / str(number + 1), restored)


def test_leaves_that_are_not_spread_are_saved_beside_those_that_are(tmp_path):
    sharding = NamedSharding(mesh_of(4), PartitionSpec("devices"))
    state = {
        "spread": jax.device_put(jnp.arange(8.0), sharding),
        "on_one_device": jnp.arange(3.0),
        "on_the_host": np.arange(6).reshape(2, 3),
        "number": 7,
        "empty": np.zeros((0, 2)),
    }
    checkpoint.save(tmp_path, state)
    restored = checkpoint.restore(tmp_path, state)
    assert_same_bits(restored, state)
    assert restored["spread"].sharding == sharding
    assert isinstance(restored["on_the_host"], np.ndarray)


def test_what_is_placed_already_stays():
    """Programs leave out axes of the mesh of size one, and other processes could not read the values."""
    mesh = Mesh(np.array(jax.devices()[:2]).reshape(1, 2), ("seeds", "devices"), axis_types=(AxisType.Auto,) * 2)
    split, wanted = (NamedSharding(mesh, PartitionSpec(first, "devices")) for first in (None, "seeds"))
    for value in (jnp.zeros((3, 2)), jax.random.split(jax.random.key(0), (3, 2))):
        there = jax.device_put(value, split)
        assert shards.placed(there, wanted) is there
    assert shards.placed(np.zeros((3, 2)), wanted).sharding == wanted


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
