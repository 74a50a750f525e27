"""Data sets in files: Minari's, those of D4RL, and arrays of NumPy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.streams import (
    assert_same_arrays,
    modeled,
    nested,
    stored,
    stream,
)

import jaxrl_buffers as jb
from jaxrl_buffers import datasets


def test_files_are_read_in_blocks(tmp_path):
    """Memory-mapped arrays do: nothing but slices is asked of them."""
    arrays = stream([30, 20], ["terminal", "timeout"])
    for name, leaf in arrays.items():
        np.save(tmp_path / f"{name}.npy", leaf)
    mapped = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in arrays}
    buffer = jb.uniform(50)
    assert stored(buffer, datasets.from_arrays(buffer, mapped)) == modeled(arrays)


def test_without_minari_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ImportError, match=r"from_minari\(\) needs Minari: pip install 'jaxrl-buffers\[data\]'"):
        datasets.from_minari(jb.uniform(20), "pendulum-v0")


@pytest.fixture
def minari(tmp_path, monkeypatch):
    """Minari, with an empty folder of its own."""
    pytest.importorskip("h5py", reason="needs the extra `data`")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return pytest.importorskip("minari", reason="needs the extra `data`")


def recorded(minari, is_nested=False):
    """Record three episodes, of which the last one was not finished, with Minari's own writer."""
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer

    episodes = []
    for first, (length, end) in zip((0, 100, 200), ((3, "terminal"), (4, "timeout"), (2, "open")), strict=True):
        obs = np.arange(first, first + length + 1, dtype=np.float32)[:, None]
        flags = np.arange(length) == length - 1
        episodes.append(
            EpisodeBuffer(
                observations={"x": obs, "y": obs.astype(np.uint8)} if is_nested else obs,
                actions=np.arange(length) % 2,
                rewards=np.arange(length) / 2,
                terminations=flags & (end == "terminal"),
                truncations=flags & (end == "timeout"),
                infos={"speed": np.arange(length + 1) * 2.0},
            )
        )
    box = spaces.Box(-np.inf, np.inf, (1,))
    space = spaces.Dict({"x": box, "y": spaces.Box(0, 255, (1,), np.uint8)}) if is_nested else box
    with pytest.warns(UserWarning, match="None"):  # for each of the things that Minari would like to know
        return minari.create_dataset_from_buffers(
            "tests/steps-v0", episodes, observation_space=space, action_space=spaces.Discrete(2)
        )


@pytest.mark.parametrize("source", ["name", "path", "data path", "dataset"])
def test_minari_keeps_true_successors(minari, source):
    dataset = recorded(minari)
    folder = Path(dataset.spec.data_path)
    folder = folder if folder.name == "data" else folder / "data"
    sources = {"name": "tests/steps-v0", "path": folder.parent, "data path": str(folder), "dataset": dataset}
    buffer = jb.uniform(9)
    rows = stored_flat(buffer, datasets.from_minari(buffer, sources[source], infos=("speed",)))
    np.testing.assert_array_equal(rows.obs[:, 0], [0, 1, 2, 100, 101, 102, 103, 200, 201])
    np.testing.assert_array_equal(rows.next_obs[:, 0], [1, 2, 3, 101, 102, 103, 104, 201, 202])
    assert np.flatnonzero(rows.terminated).tolist() == [2]
    assert np.flatnonzero(rows.truncated).tolist() == [6, 8]
    np.testing.assert_array_equal(rows.extras["speed"], [0, 2, 4, 0, 2, 4, 6, 0, 2])


def stored_flat(buffer, state):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], jb.host.gather_all(buffer, state))


def test_a_filtered_data_set_and_nested_observations(minari):
    dataset = recorded(minari, is_nested=True).filter_episodes(lambda episode: len(episode) > 2)
    buffer = jb.uniform(9)
    rows = stored_flat(buffer, datasets.from_minari(buffer, dataset))
    np.testing.assert_array_equal(rows.obs["x"][:, 0], [0, 1, 2, 100, 101, 102, 103])
    assert rows.next_obs["y"].dtype == np.uint8
    with pytest.raises(ValueError, match="7 rows, but the ring holds 5"):
        datasets.from_minari(jb.uniform(5), dataset)
    newest = stored_flat(jb.uniform(5), datasets.from_minari(jb.uniform(5), dataset, keep="newest"))
    np.testing.assert_array_equal(newest.obs["x"][:, 0], [2, 100, 101, 102, 103])


@pytest.mark.parametrize("kind", ["name", "folder"])
def test_to_minari_and_back(minari, tmp_path, kind):
    arrays = nested(stream([3, 4, 2], ["terminal", "timeout", "timeout"]))
    arrays["infos"] = {"speed": arrays["rewards"] * 2}
    buffer = jb.uniform(20)
    state = datasets.from_arrays(buffer, arrays, infos=("speed",))
    target = "tests/back-v0" if kind == "name" else tmp_path / "back"
    dataset = datasets.to_minari(buffer, state, target, author="somebody", description="three episodes")
    assert dataset.total_episodes == 3
    assert dataset.total_steps == 9
    assert dataset.storage.metadata["author"] == {"somebody"}
    again = datasets.from_minari(buffer, target, infos=("speed",))
    assert_same_arrays(datasets.to_arrays(buffer, again), arrays)
    with pytest.raises(ValueError, match="which exists"):
        datasets.to_minari(buffer, state, target)


def test_a_folder_in_the_working_directory(minari, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arrays, buffer = stream([3], ["timeout"]), jb.uniform(3)
    datasets.to_minari(buffer, datasets.from_arrays(buffer, arrays), Path("steps"))
    assert_same_arrays(datasets.to_arrays(buffer, datasets.from_minari(buffer, "steps")), arrays)


def test_images_are_written_without_loss(minari, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 40, 40, 3), np.uint8)
    arrays = stream([4], ["terminal"]) | {"observations": images[:-1], "next_observations": images[1:]}
    buffer = jb.uniform(4)
    datasets.to_minari(buffer, datasets.from_arrays(buffer, arrays), tmp_path / "images")
    assert_same_arrays(datasets.to_arrays(buffer, datasets.from_minari(buffer, tmp_path / "images")), arrays)


def test_an_episode_ends_where_its_successors_do_not_follow(minari, tmp_path):
    arrays = stream([5], ["terminal"])
    arrays["next_observations"][1] += 0.5
    buffer = jb.uniform(20)
    dataset = datasets.to_minari(buffer, datasets.from_arrays(buffer, arrays), tmp_path / "broken")
    assert [len(episode) for episode in dataset] == [2, 3]
    back = datasets.to_arrays(buffer, datasets.from_minari(buffer, dataset))
    np.testing.assert_array_equal(back["next_observations"], arrays["next_observations"])
    np.testing.assert_array_equal(back["timeouts"], [False, True, False, False, False])


def test_spaces_and_spec_of_the_environment_are_kept(minari, tmp_path):
    arrays = stream([3], ["timeout"])
    arrays |= {name: np.repeat(arrays[name], 2, axis=1) for name in ("observations", "next_observations")}
    buffer = jb.uniform(20)
    dataset = datasets.to_minari(buffer, datasets.from_arrays(buffer, arrays), tmp_path / "cart", env="CartPole-v1")
    assert dataset.env_spec.id == "CartPole-v1"
    assert dataset.action_space.n == 2


def test_a_failed_write_leaves_nothing(minari, tmp_path):
    buffer = jb.uniform(20)
    state = datasets.from_arrays(buffer, stream([3], ["timeout"]))
    with pytest.raises(Exception, match="no-such"):
        datasets.to_minari(buffer, state, tmp_path / "out", env="no-such-environment-v0")
    assert not [*tmp_path.glob("out*")]


def damage_metadata(folder):
    (folder / "metadata.json").write_text("{")


def damage_data(folder):
    (folder / "main_data.hdf5").write_bytes(b"nothing of the kind")


def cut_data(folder):
    content = (folder / "main_data.hdf5").read_bytes()
    (folder / "main_data.hdf5").write_bytes(content[: len(content) // 2])


def forget_a_key(folder):
    metadata = json.loads((folder / "metadata.json").read_text())
    del metadata["minari_version"]
    (folder / "metadata.json").write_text(json.dumps(metadata))


@pytest.mark.parametrize("damage", [damage_metadata, damage_data, cut_data, forget_a_key])
def test_damaged_files_are_named(minari, tmp_path, damage):
    buffer = jb.uniform(20)
    datasets.to_minari(buffer, datasets.from_arrays(buffer, stream([3], ["timeout"])), tmp_path / "out")
    damage(tmp_path / "out" / "data")
    with pytest.raises(ValueError, match=r"from_minari\(\) cannot read '.*out"):
        datasets.from_minari(buffer, tmp_path / "out")


def test_damaged_episodes_are_named(minari, tmp_path):
    import h5py

    buffer = jb.uniform(20)
    datasets.to_minari(buffer, datasets.from_arrays(buffer, stream([3, 3], ["timeout"] * 2)), tmp_path / "out")
    with h5py.File(tmp_path / "out" / "data" / "main_data.hdf5", "a") as file:
        file["episode_1"]["observations"].resize((3, 2))
    with pytest.raises(ValueError, match="episode 1 has 3 'observations', but 4 are needed for 3 rewards"):
        datasets.from_minari(buffer, tmp_path / "out")
    with pytest.raises(ValueError, match="has no info 'speed'"):
        datasets.from_minari(buffer, tmp_path / "out", infos=("speed",))


def test_unknown_names_are_refused(minari):
    with pytest.raises(ValueError, match=r"neither a folder 'me/nothing-v0' nor .*minari download"):
        datasets.from_minari(jb.uniform(20), "me/nothing-v0")
    with pytest.raises(ValueError, match=r"test_data_files\.py' is not a data set: give a file \.npz"):
        datasets.from_file(jb.uniform(20), __file__)


def test_an_open_file_of_d4rl_is_read(tmp_path):
    h5py = pytest.importorskip("h5py", reason="needs the extra `data`")
    arrays = stream([30, 20], ["terminal", "timeout"], has_next=False)
    with h5py.File(tmp_path / "steps.hdf5", "w") as file:
        for name, leaf in arrays.items():
            file[name] = leaf
        file["infos/qpos"] = arrays["observations"]
        file["metadata/algorithm"] = "SAC"
    buffer = jb.uniform(50)
    with h5py.File(tmp_path / "steps.hdf5") as file:
        state = datasets.from_arrays(buffer, file, infos=("qpos",))
    assert stored(buffer, state) == modeled(arrays)


LIKE = jb.Transition(
    obs=jax.ShapeDtypeStruct((2,), jnp.float32),
    action=jax.ShapeDtypeStruct((), jnp.int32),
    reward=jax.ShapeDtypeStruct((), jnp.float32),
    terminated=jax.ShapeDtypeStruct((), jnp.bool_),
    truncated=jax.ShapeDtypeStruct((), jnp.bool_),
    next_obs=jax.ShapeDtypeStruct((2,), jnp.float32),
)


@pytest.mark.parametrize("kind", ["data.npz", "data.hdf5", "data.h5", "minari-v0"])
def test_a_path_is_read_by_what_it_is(kind, tmp_path):
    arrays = stream([3, 4], ["terminal", "timeout"])
    path, buffer = tmp_path / kind, jb.uniform(7)
    if kind == "data.npz":
        np.savez(path, **arrays)
    elif kind == "minari-v0":
        pytest.importorskip("minari")
        datasets.to_minari(buffer, datasets.from_arrays(buffer, arrays), path)
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    assert datasets.describe(path).num_rows == 7
    assert datasets.describe(path).row.obs.shape == (2,)
    state = datasets.from_file(buffer, path, like=LIKE)
    assert stored(buffer, state) == modeled(arrays)
    row = buffer.storage.structure(state.storage)
    assert (row.action.dtype, row.obs.dtype) == (jnp.int32, jnp.float32)


def test_a_path_that_cannot_be_read_is_named(tmp_path):
    for name in ("data.npz", "data.hdf5"):
        (tmp_path / name).write_bytes(b"no data set")
        with pytest.raises(ValueError, match=f"{name}' cannot be read|{name}': "):
            datasets.describe(tmp_path / name)
    whole = tmp_path / "whole.npz"
    np.savez(whole, **stream([300], ["terminal"]))
    whole.write_bytes(whole.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"whole\.npz' cannot be read"):
        datasets.from_file(jb.uniform(300), whole)
    np.savez(tmp_path / "other.npz", rewards=np.zeros(3))
    with pytest.raises(ValueError, match=r"other\.npz': .* needs the key 'observations'; the data set has: rewards"):
        datasets.describe(tmp_path / "other.npz")
    with pytest.raises(ValueError, match=r"there is no data set .*missing\.npz"):
        datasets.describe(tmp_path / "missing.npz")


def test_rows_become_like_those_that_are_needed():
    arrays = stream([3], ["terminal"])
    arrays |= {name: arrays[name].astype(np.float64) for name in ("observations", "next_observations")}
    buffer = jb.uniform(3)
    row = buffer.storage.structure(datasets.from_arrays(buffer, arrays, like=LIKE).storage)
    assert row == LIKE
    with pytest.raises(ValueError, match=r"`action` of int32\[\], but int32\[3\] is needed"):
        datasets.from_arrays(buffer, arrays, like=LIKE._replace(action=jax.ShapeDtypeStruct((3,), jnp.int32)))
    with pytest.raises(ValueError, match=r"`obs` of float\d\d\[2\], but uint8\[2\] is needed"):
        datasets.from_arrays(buffer, arrays, like=LIKE._replace(obs=jax.ShapeDtypeStruct((2,), jnp.uint8)))
    with pytest.raises(ValueError, match=r"`obs` of structure \(one array\), but \(\['x'\]\) is needed"):
        datasets.from_arrays(buffer, arrays, like=LIKE._replace(obs={"x": LIKE.obs}))
