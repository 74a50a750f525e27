"""How much memory data sets take while they are read, and `.npz` files that are read by parts."""

from __future__ import annotations

import tracemalloc
import zipfile

import jax
import numpy as np
import pytest
from support.streams import modeled, stored, stream

import jaxrl_buffers as jb
from jaxrl_buffers import _array_files as array_files
from jaxrl_buffers import _zipped_arrays as zipped
from jaxrl_buffers import datasets

BLOCK_BYTES = 2**14
FEW, MANY = 2_000, 10_000  # rows
SIZE = 30  # numbers in an observation


def arrays_of(num_rows, names):
    """Return arrays whose rows have 257 bytes with successors. Only `names` are optional ones of them."""
    obs = np.random.default_rng(0).normal(size=(num_rows + 1, SIZE)).astype(np.float32)
    ends = np.arange(num_rows) % 100 == 99
    arrays = {"observations": obs[:-1], "actions": np.zeros((num_rows, 2), np.float32)}
    arrays |= {"rewards": np.ones(num_rows, np.float32), "terminals": np.zeros(num_rows)}
    return arrays | {name: {"timeouts": ends, "next_observations": obs[1:]}[name] for name in names}


def write(kind, path, num_rows):
    names = ("timeouts",) if kind == "without successors" else ("next_observations",)
    arrays = arrays_of(num_rows, ("timeouts", "next_observations") if kind == "minari" else names)
    if kind == "hdf5":
        h5py = pytest.importorskip("h5py", reason="needs the extra `data`")
        with h5py.File(path.with_suffix(".hdf5"), "w") as file:
            for name, array in arrays.items():
                file[name] = array
        return path.with_suffix(".hdf5")
    if kind == "minari":
        pytest.importorskip("minari", reason="needs the extra `data`")
        buffer = jb.uniform(num_rows)
        datasets.to_minari(buffer, datasets.from_arrays(buffer, arrays), path)
        return path
    (np.savez_compressed if kind == "compressed" else np.savez)(path.with_suffix(".npz"), **arrays)
    return path.with_suffix(".npz")


def peak_of(action):
    """Return the largest number of bytes that NumPy and Python hold. States are not among them: they belong to JAX."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["plain", "compressed", "without successors", "hdf5", "minari"])
def test_memory_does_not_grow_with_the_number_of_rows(kind, tmp_path, monkeypatch):
    """But for the flags of episodes: a few bytes a row."""
    monkeypatch.setattr(array_files, "BLOCK_BYTES", BLOCK_BYTES)
    like = jax.tree.map(lambda leaf: leaf, datasets.describe(write(kind, tmp_path / "any", 100)).row)
    peaks = []
    for num_rows in (FEW, FEW, MANY):  # the first time, modules are imported and programs compiled
        path = write(kind, tmp_path / f"{len(peaks)}", num_rows)
        buffer = jb.uniform(MANY)

        def load(path=path, buffer=buffer):
            datasets.describe(path)
            datasets.check(path, like=like)
            datasets.from_file(buffer, path)

        peaks.append(peak_of(load))
    assert peaks[-1] - peaks[-2] < 8 * (MANY - FEW)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_parts_of_arrays_are_read_in_any_order(save, tmp_path):
    random = np.random.default_rng(0)
    arrays = {"matrix": random.normal(size=(50, 3)), "flags": random.random(50) < 0.5}
    arrays |= {"fortran": np.asfortranarray(arrays["matrix"]), "empty": np.zeros((50, 0, 2)), "none": np.zeros((0, 2))}
    save(tmp_path / "data.npz", **arrays)
    with zipped.opened(tmp_path / "data.npz") as found:
        assert {*found} == {*arrays}
        for name, array in arrays.items():
            assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
            begin = 0
            for _ in range(40):
                end = begin + int(random.integers(0, 12))
                np.testing.assert_array_equal(found[name][begin:end], array[begin:end])
                begin = int(random.choice([end, end, max(end - 1, 0), random.integers(50)])) if end < 50 else 0
            np.testing.assert_array_equal(found[name][:], array)


def test_what_follows_or_overlaps_in_a_row_is_not_read_again(tmp_path, monkeypatch):
    num_read = []
    read = zipped.ZippedArray._read
    monkeypatch.setattr(zipped.ZippedArray, "_read", lambda own, count: num_read.append(count) or read(own, count))
    np.savez(tmp_path / "data.npz", x=np.arange(20))
    with zipped.opened(tmp_path / "data.npz") as found:
        for begin, end in ((0, 6), (5, 11), (10, 11), (11, 20)):
            np.testing.assert_array_equal(found["x"][begin:end], np.arange(begin, end))
    assert num_read == [6, 5, 0, 9]


def change_content(path):
    content = bytearray(path.read_bytes())
    content[500:600] = bytes(100)
    path.write_bytes(content)


def end_early(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def write_one_array(path):
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def add_a_text(path):
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes.txt", "measured on Monday")


@pytest.mark.parametrize("damage", [change_content, end_early, write_one_array, add_a_text])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_file_is_named(damage, save, tmp_path):
    path = tmp_path / "data.npz"
    save(path, **arrays_of(100, ()))
    damage(path)
    with pytest.raises(ValueError, match=r"data\.npz'(: | cannot be read)"):
        datasets.from_file(jb.uniform(100), path)


def test_what_is_not_needed_is_not_read(tmp_path):
    """`np.savez` writes nested infos as objects, which cannot be loaded."""
    arrays = stream([3, 4], ["terminal", "timeout"])
    np.savez(tmp_path / "data.npz", **arrays, infos={"speed": arrays["rewards"]})
    buffer = jb.uniform(7)
    assert stored(buffer, datasets.from_file(buffer, tmp_path / "data.npz")) == modeled(arrays)
    np.savez(tmp_path / "nested.npz", **arrays | {"observations": {"x": arrays["observations"]}})
    with pytest.raises(ValueError, match=r"nested\.npz': .*'observations' of "):
        datasets.from_file(buffer, tmp_path / "nested.npz")
