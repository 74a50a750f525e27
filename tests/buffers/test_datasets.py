"""Data sets into states and back: episodes, truncation and successors, against a slow, obvious model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_buffers as jb
from jaxrl_buffers import datasets

KEYS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")


def stream(lengths, ends, has_next=True, first=0):
    """Return episodes of the given lengths as arrays; `ends` says how each one ends: "terminal", "timeout" or "open".

    Observations count up, and go on by ten from one episode to the next.
    """
    columns = {name: [] for name in KEYS}
    obs = first
    for length, end in zip(lengths, ends, strict=True):
        for step in range(length):
            is_last = step == length - 1
            columns["observations"].append([obs, -obs])
            columns["actions"].append(obs % 3)
            columns["rewards"].append(obs / 2)
            columns["terminals"].append(is_last and end == "terminal")
            columns["timeouts"].append(is_last and end == "timeout")
            columns["next_observations"].append([obs + 1, -obs - 1])
            obs += 1
        obs += 10
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    arrays["observations"] = arrays["observations"].astype(np.float32)
    arrays["next_observations"] = arrays["next_observations"].astype(np.float32)
    return arrays if has_next else {name: arrays[name] for name in KEYS[:-1]}


def modelled(arrays):
    """Return the rows that a state should hold as (obs, terminated, truncated, next_obs), by looking at each row."""
    rows, num_rows = [], len(arrays["rewards"])
    for number in range(num_rows):
        obs, terminal = arrays["observations"][number, 0], bool(arrays["terminals"][number])
        timeout = bool(arrays["timeouts"][number])
        if "next_observations" in arrays:
            rows.append([obs, terminal, timeout, arrays["next_observations"][number, 0]])
        elif terminal:
            rows.append([obs, True, timeout, obs])
        elif timeout or number == num_rows - 1:
            if rows and number and not arrays["terminals"][number - 1] and not arrays["timeouts"][number - 1]:
                rows[-1][2] = True
        else:
            rows.append([obs, False, False, arrays["observations"][number + 1, 0]])
    if not rows[-1][1]:
        rows[-1][2] = True
    return rows


def stored(buffer, state):
    rows = jb.host.gather_all(buffer, state)
    columns = (rows.obs[:, 0, 0], rows.terminated[:, 0], rows.truncated[:, 0], rows.next_obs[:, 0, 0])
    return [list(row) for row in zip(*(np.asarray(column).tolist() for column in columns), strict=True)]


CASES = {
    "terminals": ([3, 1, 4], ["terminal"] * 3),
    "timeouts": ([3, 2, 4], ["timeout"] * 3),
    "both, and an open end": ([3, 4, 1, 2], ["terminal", "timeout", "timeout", "open"]),
    "episodes of one row": ([1, 1, 1, 2, 1], ["timeout", "terminal", "timeout", "terminal", "open"]),
}


@pytest.mark.parametrize("has_next", [True, False])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("block_bytes", [60, 2**24])
def test_rows_are_those_of_the_model(case, has_next, block_bytes, monkeypatch):
    monkeypatch.setattr(datasets, "BLOCK_BYTES", block_bytes)
    arrays = stream(*CASES[case], has_next)
    buffer = jb.uniform(20)
    assert stored(buffer, datasets.from_arrays(buffer, arrays)) == modelled(arrays)


def test_random_streams_are_those_of_the_model(monkeypatch):
    monkeypatch.setattr(datasets, "BLOCK_BYTES", 100)
    random = np.random.default_rng(0)
    buffer = jb.n_step(64, n=3, keep_episodes=True)
    for _ in range(20):
        lengths = random.integers(1, 6, size=random.integers(1, 10))
        ends = random.choice(["terminal", "timeout"], size=lengths.size).tolist()
        arrays = stream(lengths, [*ends[:-1], random.choice([ends[-1], "open"])], bool(random.integers(2)))
        if rows := len(modelled(arrays)):
            state = datasets.from_arrays(buffer, arrays)
            assert stored(buffer, state) == modelled(arrays)
            ended = sum(row[1] or row[2] for row in stored(buffer, state))
            assert int(buffer.stats(state)["episodes"]) == ended
            assert int(buffer.size(state)) == rows


def test_successors_tell_where_episodes_end_if_timeouts_do_not():
    arrays = stream([3, 2, 4], ["timeout", "terminal", "timeout"])
    known = modelled(arrays)
    buffer = jb.uniform(20)
    del arrays["timeouts"]
    assert stored(buffer, datasets.from_arrays(buffer, arrays)) == known


def test_n_step_returns_do_not_cross_ends(key):
    arrays = stream([4, 4], ["timeout", "terminal"], has_next=False)
    buffer = jb.n_step(20, n=3, gamma=0.5)
    state = datasets.from_arrays(buffer, arrays)
    batch = buffer.read(state, jb.Handle(jnp.zeros(7, jnp.int32), jnp.arange(7))).batch
    np.testing.assert_array_equal(batch.next_obs[:, 0], [3, 3, 3, 17, 17, 17, 17])
    np.testing.assert_array_equal(batch.discount, [0.125, 0.25, 0.5, 0.125, 0, 0, 0])


def test_what_comes_next_begins_an_episode():
    buffer = jb.uniform(20, keep_episodes=True)
    state = datasets.from_arrays(buffer, stream([3], ["open"]))
    more = jax.tree.map(lambda leaf: leaf[:1], jb.host.gather_all(buffer, state))
    state = buffer.add(state, more._replace(truncated=jnp.zeros((1, 1), bool)))
    assert int(buffer.stats(state)["episodes"]) == 2


def nested(arrays):
    def split(obs):
        return {"place": obs[:, :1], "camera": np.stack([obs, obs], axis=-1).astype(np.uint8)}

    return arrays | {name: split(arrays[name]) for name in ("observations", "next_observations") if name in arrays}


@pytest.mark.parametrize("has_next", [True, False])
def test_nested_observations_keep_their_dtypes(has_next):
    buffer = jb.prioritized(20)
    arrays = nested(stream([3, 4], ["timeout", "terminal"], has_next))
    rows = jb.host.gather_all(buffer, datasets.from_arrays(buffer, arrays))
    assert rows.obs["camera"].dtype == jnp.uint8
    assert rows.next_obs["place"].dtype == jnp.float32
    flat = modelled(stream([3, 4], ["timeout", "terminal"], has_next))
    np.testing.assert_array_equal(rows.obs["place"][:, 0, 0], [row[0] for row in flat])
    np.testing.assert_array_equal(rows.next_obs["place"][:, 0, 0], [row[3] for row in flat])


@pytest.mark.parametrize("spelling", ["nested", "flat"])
def test_chosen_infos_become_extras(spelling):
    arrays = stream([3, 4], ["timeout", "terminal"])
    infos = {"qpos": np.arange(14.0).reshape(7, 2), "speed": np.arange(7)}
    arrays |= {"infos": infos} if spelling == "nested" else {f"infos/{name}": info for name, info in infos.items()}
    buffer = jb.uniform(20)
    state = datasets.from_arrays(buffer, arrays, infos=("qpos",))
    rows = jb.host.gather_all(buffer, state)
    np.testing.assert_array_equal(rows.extras["qpos"][:, 0], infos["qpos"])
    assert [*rows.extras] == ["qpos"]
    np.testing.assert_array_equal(datasets.to_arrays(buffer, state)["infos"]["qpos"], infos["qpos"])
    assert jb.host.gather_all(buffer, datasets.from_arrays(buffer, arrays)).extras == ()


def test_the_newest_rows_are_kept_if_asked(monkeypatch):
    monkeypatch.setattr(datasets, "BLOCK_BYTES", 100)
    arrays = stream([30, 20], ["terminal", "timeout"])
    buffer = jb.uniform(16)
    with pytest.raises(ValueError, match=r"50 rows, but the ring holds 16; .*length=50 .*keep=\"newest\""):
        datasets.from_arrays(buffer, arrays)
    assert stored(buffer, datasets.from_arrays(buffer, arrays, keep="newest")) == modelled(arrays)[-16:]


def without(name):
    return lambda arrays: {key: value for key, value in arrays.items() if key != name}


def changed(name, change):
    return lambda arrays: arrays | {name: change(arrays[name])}


BAD = {
    "needs the key 'rewards'": without("rewards"),
    "needs the key 'terminals'": without("terminals"),
    "does not know the key 'timeout'": lambda arrays: arrays | {"timeout": arrays["timeouts"]},
    r"'actions' of shape \(3,\), but 'rewards' has 7 rows": changed("actions", lambda leaf: leaf[:3]),
    r"'terminals' of shape \(7, 1\); one flag": changed("terminals", lambda leaf: leaf[:, None]),
    r"'next_observations' of shape \(7, 1\)": changed("next_observations", lambda leaf: leaf[:, :1]),
    r"'next_observations' of structure": changed("next_observations", lambda leaf: {"x": leaf}),
    "'actions' of dtype <U": changed("actions", lambda leaf: leaf.astype(str)),
    r"'rewards' of shape \(0,\)": lambda arrays: {name: leaf[:0] for name, leaf in arrays.items()},
    "no row with a known successor": lambda arrays: {
        name: leaf[:1] for name, leaf in without(KEYS[-1])(arrays).items()
    },
}


@pytest.mark.parametrize("message", BAD)
def test_bad_arrays_are_refused_by_name(message):
    arrays = BAD[message](stream([3, 4], ["terminal", "timeout"]))
    with pytest.raises(ValueError, match=message):
        datasets.from_arrays(jb.uniform(20), arrays)


def test_other_misuse_is_refused():
    arrays = stream([3], ["terminal"])
    with pytest.raises(ValueError, match=r"num_envs=2.*Mixture"):
        datasets.from_arrays(jb.uniform(20, num_envs=2), arrays)
    with pytest.raises(ValueError, match=r"`keep` must be one of 'all', 'newest'"):
        datasets.from_arrays(jb.uniform(20), arrays, keep="oldest")
    with pytest.raises(ValueError, match="no info 'qpos'; there are: speed"):
        datasets.from_arrays(jb.uniform(20), arrays | {"infos": {"speed": arrays["rewards"]}}, infos=("qpos",))
    buffer = jb.sequences(20, sequence_length=2)
    with pytest.raises(ValueError, match="needs stored transitions, but the buffer holds dict"):
        datasets.to_arrays(buffer, buffer.init({"x": 0.0}))


def assert_same_arrays(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for (path, left), right in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(left, right, err_msg=str(path))


@pytest.mark.parametrize("block_bytes", [60, 2**24])
def test_there_and_back(block_bytes, monkeypatch):
    monkeypatch.setattr(datasets, "BLOCK_BYTES", block_bytes)
    arrays = nested(stream([3, 4, 2], ["terminal", "timeout", "timeout"]))
    buffer = jb.uniform(20)
    assert_same_arrays(datasets.to_arrays(buffer, datasets.from_arrays(buffer, arrays)), arrays)


@pytest.mark.parametrize("lockstep", [True, False])
def test_environments_follow_each_other(lockstep, monkeypatch):
    """Columns of several environments, after the ring wrapped, also with unequal numbers of rows."""
    monkeypatch.setattr(datasets, "BLOCK_BYTES", 60)
    buffer = jb.uniform(8, num_envs=3, lockstep=lockstep)
    time, env = np.meshgrid(np.arange(11), np.arange(3), indexing="ij")
    obs = (time + 100 * env).astype(np.float32)
    never = np.zeros(obs.shape, bool)
    chunk = jb.Transition(obs, env, obs, (time == 6) & (env == 1), never, obs + 1)
    state = buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk))
    for row in range(11):
        options = {} if lockstep else {"mask": np.array([True, row < 9, row < 2])}
        state = buffer.add(state, jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], chunk), **options)
    lasts = (11, 11, 11) if lockstep else (11, 9, 2)
    expected = [100 * env + row for env, last in enumerate(lasts) for row in range(max(last - 8, 0), last)]
    arrays = datasets.to_arrays(buffer, state)
    np.testing.assert_array_equal(arrays["observations"], expected)
    np.testing.assert_array_equal(arrays["next_observations"], np.add(expected, 1))
    np.testing.assert_array_equal(np.array(expected)[arrays["terminals"]], [106])
    newest = [env * 100 + lasts[env] - 1 for env in range(3)]
    np.testing.assert_array_equal(np.array(expected)[arrays["timeouts"]], newest)


def test_rows_whose_frames_are_gone_are_left_out():
    buffer = jb.uniform(8, frames=jb.Frames(stack=3))
    time = np.arange(12)
    obs = np.stack([np.maximum(time - 2, 0), np.maximum(time - 1, 0), time], axis=-1)[:, None, None].astype(np.float32)
    flags = np.zeros((12, 1), bool)
    chunk = jb.Transition(obs, np.zeros((12, 1)), np.zeros((12, 1)), flags, flags, obs + 1)
    state = buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk))
    for row in range(12):
        state = buffer.add(state, jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], chunk))
    arrays = datasets.to_arrays(buffer, state)
    assert arrays["observations"][:, 0, -1].tolist() == jb.host.gather_all(buffer, state).obs[:, 0, 0, -1].tolist()
    assert arrays["timeouts"].tolist() == [False] * (len(arrays["rewards"]) - 1) + [True]


def test_files_are_read_in_blocks(tmp_path):
    """Memory-mapped arrays do: nothing but slices is asked of them."""
    arrays = stream([30, 20], ["terminal", "timeout"])
    for name, leaf in arrays.items():
        np.save(tmp_path / f"{name}.npy", leaf)
    mapped = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in arrays}
    buffer = jb.uniform(50)
    assert stored(buffer, datasets.from_arrays(buffer, mapped)) == modelled(arrays)


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
    with pytest.raises(ValueError, match="episode 1 has 3 'observations', but 4 belong to 3 rewards"):
        datasets.from_minari(buffer, tmp_path / "out")
    with pytest.raises(ValueError, match="has no info 'speed'"):
        datasets.from_minari(buffer, tmp_path / "out", infos=("speed",))


def test_unknown_names_are_refused(minari):
    with pytest.raises(ValueError, match=r"neither a folder 'me/nothing-v0' nor .*minari download"):
        datasets.from_minari(jb.uniform(20), "me/nothing-v0")


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
    assert stored(buffer, state) == modelled(arrays)


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
    assert stored(buffer, state) == modelled(arrays)
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
