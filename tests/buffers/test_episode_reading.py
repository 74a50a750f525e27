"""Data sets of Minari are read as Minari reads them, but only what is needed; wrong actions are named."""

from __future__ import annotations

import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxrl_buffers as jb
from jaxrl_buffers import _episode_reading as reading
from jaxrl_buffers import datasets

pytest.importorskip("h5py", reason="needs the extra `data`")
minari = pytest.importorskip("minari", reason="needs the extra `data`")

from gymnasium import spaces  # noqa: E402
from minari.data_collector import EpisodeBuffer  # noqa: E402

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float64)
IMAGE = spaces.Box(0, 255, (32, 32, 3), np.uint8)
SPACES = {
    "box": BOX,
    "dict": spaces.Dict({"b": BOX, "a": spaces.Dict({"c": spaces.Discrete(9)})}),
    "tuple": spaces.Tuple((BOX, spaces.Dict({"x": BOX}))),
    "image": spaces.Dict({"image": IMAGE, "speed": BOX}),
}


def stacked(values):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *values)


def written(space, lengths=(3, 1, 4), actions=None):
    space.seed(0)
    episodes = []
    for number, length in enumerate(lengths):
        obs = stacked([space.sample() for _ in range(length + 1)])
        flags = np.arange(length) == length - 1
        episodes.append(
            EpisodeBuffer(
                observations=obs,
                actions=np.arange(length) % 2 if actions is None else np.asarray(actions[number]),
                rewards=np.arange(length) + 10.0 * number,
                terminations=flags & (number == 0),
                truncations=flags & (number == 1),
                infos={"speed": np.arange(length + 1) * 2.0, "deep": {"x": np.arange(length + 1)}},
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about each of the things that Minari would like to know
        return minari.create_dataset_from_buffers(
            "tests/read-v0", episodes, observation_space=space, action_space=spaces.Discrete(2)
        )


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


@pytest.mark.parametrize("kind", SPACES)
def test_episodes_are_those_that_minari_reads(kind):
    dataset = written(SPACES[kind])
    infos = ("speed", "deep")
    ours, theirs = list(reading.episodes(dataset, infos)), list(dataset.iterate_episodes())
    assert [one.id for one in ours] == [0, 1, 2]
    for one, other in zip(ours, theirs, strict=True):
        for name in ("observations", "actions", "rewards", "terminations", "truncations"):
            jax.tree.map(np.testing.assert_array_equal, getattr(one, name), getattr(other, name))
            types = jax.tree.map(lambda leaf: leaf.dtype, (getattr(one, name), getattr(other, name)))
            assert types[0] == types[1]
        jax.tree.map(np.testing.assert_array_equal, one.infos, {name: other.infos[name] for name in infos})
    for (number, actions), other in zip(reading.actions_of_episodes(dataset), theirs, strict=True):
        assert number == other.id
        np.testing.assert_array_equal(actions, other.actions)


def test_only_what_is_needed_is_read(monkeypatch):
    """Minari reads every info of every episode. It is asked only where frames have to be decoded."""
    dataset = written(BOX)
    file = Path(dataset.storage.data_path) / reading.FILE
    monkeypatch.setattr(type(dataset), "iterate_episodes", lambda self: pytest.fail("Minari read all"))
    assert len(list(reading.actions_of_episodes(dataset))) == 3
    import h5py

    with h5py.File(file, "a") as opened:
        del opened["episode_1"]["infos"]
    assert len(list(reading.episodes(dataset, ()))) == 3
    with pytest.raises(ValueError, match="episode 1 has no info 'speed'; it has: none"):
        list(reading.episodes(dataset, ("speed",)))
    with pytest.raises(ValueError, match="episode 0 has no info 'sped'; it has: deep, speed"):
        list(reading.episodes(dataset, ("sped",)))


def test_chosen_episodes_only():
    dataset = written(BOX).filter_episodes(lambda episode: len(episode) > 1)
    assert [one.id for one in reading.episodes(dataset, ())] == [0, 2]
    assert [number for number, _ in reading.actions_of_episodes(dataset)] == [0, 2]


def test_words_are_refused():
    dataset = written(BOX)
    import h5py

    with h5py.File(Path(dataset.storage.data_path) / reading.FILE, "a") as file:
        del file["episode_2"]["actions"]
        file["episode_2"]["actions"] = ["left", "right", "left", "left"]
    with pytest.raises(ValueError, match="episode 2 has 'actions' that are not numbers"):
        datasets.from_minari(jb.uniform(8), dataset)


@pytest.mark.parametrize("wrong", [2, -1])
def test_an_action_that_does_not_exist_is_named(wrong, tmp_path):
    dataset = written(BOX, actions=[[0, 1, 0], [1], [0, 1, wrong, 0]])
    buffer = jb.uniform(8)
    message = f"step 2 of episode 2 has the action {wrong}, but the actions are 0 to 1"
    folder = Path(dataset.storage.data_path).parent
    for call in (
        lambda: datasets.from_minari(buffer, dataset, num_actions=2),
        lambda: datasets.describe(folder, num_actions=2),
        lambda: datasets.from_file(buffer, folder, num_actions=2),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert datasets.describe(folder).num_rows == 8
    if wrong == 2:
        assert datasets.describe(folder, num_actions=3).num_rows == 8


@pytest.mark.parametrize("has_next", [True, False])
def test_a_wrong_action_of_arrays_is_named_by_its_row(has_next, tmp_path):
    """The number is that of the row in the arrays, although rows before it were left out."""
    arrays = {
        "observations": np.arange(10.0)[:, None],
        "actions": np.where(np.arange(10) == 7, 5, 0),
        "rewards": np.zeros(10),
        "terminals": np.zeros(10, bool),
        "timeouts": np.arange(10) % 3 == 2,
    }
    arrays |= {"next_observations": arrays["observations"] + 1} if has_next else {}
    buffer = jb.uniform(10)
    message = r"row 7 has the action 5, but the actions are 0 to 4"
    with pytest.raises(ValueError, match=message):
        datasets.from_arrays(buffer, arrays, num_actions=5)
    assert datasets.from_arrays(buffer, arrays, num_actions=6) is not None
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        datasets.describe(tmp_path / "data.npz", num_actions=5)


def test_extras_are_the_same_in_every_row():
    arrays = {"observations": np.arange(4.0), "actions": np.zeros(4), "rewards": np.zeros(4), "terminals": np.ones(4)}
    arrays["infos/speed"] = np.arange(4.0)
    buffer = jb.uniform(4)
    extras = {"carry": {"h": np.full(3, 2, np.float32)}, "none": np.float32(np.nan)}
    state = datasets.from_arrays(buffer, arrays, infos=("speed",), extras=extras)
    stored = jb.host.gather_all(buffer, state).extras
    np.testing.assert_array_equal(stored["carry"]["h"], np.full((4, 1, 3), 2))
    np.testing.assert_array_equal(stored["speed"][:, 0], np.arange(4))
    assert np.isnan(stored["none"]).all()
