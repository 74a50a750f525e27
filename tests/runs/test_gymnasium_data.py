"""Data sets in the terms of Gymnasium's environments, and actions that an environment does not have."""

from __future__ import annotations

import gymnasium
import jax
import numpy as np
import pytest
from support import own_terms
from support.pendulum import PLAN

import jaxrl_buffers as jb
from algorithms import environments
from algorithms.runs import data_set
from algorithms.runs.build import build, complete
from algorithms.runs.settings import Settings

LATER, TABLE = "support.own_terms:later", "support.own_terms:table"


def stored(path, algorithm, name):
    """Return the rows that a run on an environment stores of a data set."""
    settings = Settings(algorithm, name, PLAN, capacity=100, hidden_sizes=(8,), dataset={"path": str(path)})
    settings = complete(settings)
    experiment = build(settings)
    state = data_set.load(settings.dataset, experiment.buffer, experiment.env, experiment.agent)
    rows = jb.host.gather_all(experiment.buffer.buffers[1], state.parts[1])
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], rows)


def in_hdf5(path, arrays):
    h5py = pytest.importorskip("h5py", reason="pip install 'jaxrl-buffers[data]'")
    with h5py.File(path, "w") as file:
        for name, value in arrays.items():
            if isinstance(value, dict):
                for part, leaf in value.items():
                    file[f"{name}/{part}"] = leaf
            else:
                file[name] = value
    return path


def assert_encoded(rows, env, arrays):
    jax.tree.map(np.testing.assert_array_equal, rows.obs, env.encode(arrays["observations"]))
    jax.tree.map(np.testing.assert_array_equal, rows.next_obs, env.encode(arrays["next_observations"]))
    np.testing.assert_array_equal(env.decode(rows.action), arrays["actions"])


def test_frozen_lake(tmp_path):
    arrays = own_terms.collected(gymnasium.make("FrozenLake-v1"), 40)
    np.savez(tmp_path / "lake.npz", **arrays)
    rows = stored(tmp_path / "lake.npz", "ddqn", "gymnasium:FrozenLake-v1")
    assert rows.obs.dtype == np.bool_
    assert_encoded(rows, environments.make("gymnasium:FrozenLake-v1"), arrays)


@pytest.mark.parametrize(("algorithm", "name"), [("ddqn", LATER), ("sac", TABLE)])
@pytest.mark.parametrize("kind", ["hdf5", "minari"])
def test_spaces_that_are_encoded(algorithm, name, kind, tmp_path):
    env = environments.make(name)
    arrays = own_terms.collected(getattr(own_terms, name.partition(":")[2])(), 40)
    path = in_hdf5(tmp_path / "data.hdf5", arrays)
    if kind == "minari":
        pytest.importorskip("minari", reason="pip install 'jaxrl-buffers[data]'")
        buffer = jb.uniform(40)
        raw = jb.datasets.from_file(buffer, path)
        path = tmp_path / "data-v0"
        observation_space, action_space = env.spaces
        jb.datasets.to_minari(buffer, raw, path, observation_space=observation_space, action_space=action_space)
    assert_encoded(stored(path, algorithm, name), env, arrays)


def test_observations_that_are_encoded_already(tmp_path):
    arrays = own_terms.collected(own_terms.later(), 40)
    env = environments.make(LATER)
    encoded = {name: env.encode(arrays[name]) for name in ("observations", "next_observations")}
    assert_encoded(stored(in_hdf5(tmp_path / "data.hdf5", arrays | encoded), "ddqn", LATER), env, arrays)


PENDULUM = {
    "observations": np.zeros((9, 3), np.float32),
    "actions": np.where(np.arange(9) == 6, 2.5, 2.0)[:, None],
    "rewards": np.ones(9),
    "terminals": np.arange(9) == 8,
}


@pytest.mark.parametrize("name", ["Pendulum-v1", "gymnasium:Pendulum-v1"])
def test_an_action_outside_of_the_bounds_is_named(name, tmp_path):
    np.savez(tmp_path / "data.npz", **PENDULUM)
    with pytest.raises(ValueError, match=r"dataset: .*row 6 has the action 2.5, but the actions are between -2 and 2;"):
        stored(tmp_path / "data.npz", "sac", name)
    rounded = {**PENDULUM, "actions": np.full((9, 1), 2 + 1e-5)}
    np.savez(tmp_path / "rounded.npz", **rounded)
    assert len(stored(tmp_path / "rounded.npz", "sac", name).action) == 9


def test_what_the_spaces_do_not_have_is_named(tmp_path):
    arrays = own_terms.collected(own_terms.later(), 9)
    wrong = np.where(np.arange(9) == 3, 4, arrays["actions"])
    with pytest.raises(ValueError, match=r"row 3 has the action 4, but the actions are 5 to 6;"):
        stored(in_hdf5(tmp_path / "action.hdf5", {**arrays, "actions": wrong}), "ddqn", LATER)
    obs = {**arrays["observations"], "choice": np.full(9, 7)}
    with pytest.raises(ValueError, match=r"dataset: .*the observation 7 is not in Discrete\(4, start=-1\)"):
        stored(in_hdf5(tmp_path / "obs.hdf5", {**arrays, "observations": obs}), "ddqn", LATER)
    arrays = own_terms.collected(own_terms.table(), 9)
    arrays["actions"][2, 1, 0] = -1
    with pytest.raises(ValueError, match=r"row 2 has the action -1.0 in component 2, but .* between 0 and 1;"):
        stored(in_hdf5(tmp_path / "table.hdf5", arrays), "sac", TABLE)
    np.savez(tmp_path / "data.npz", **{**PENDULUM, "actions": np.zeros(9, int)})
    with pytest.raises(ValueError, match=r"`obs` of float32\[3\], but bool\[16\] is needed"):
        stored(tmp_path / "data.npz", "ddqn", "gymnasium:FrozenLake-v1")


def test_bounds_come_in_pairs(tmp_path):
    np.savez(tmp_path / "data.npz", **PENDULUM)
    with pytest.raises(ValueError, match="low=None and high=1; give two of the same shape"):
        jb.datasets.check(tmp_path / "data.npz", high=1)
