"""Data sets into states and back: episodes, truncation and successors, against a slow, obvious model."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.streams import (
    KEYS,
    assert_same_arrays,
    modeled,
    nested,
    stored,
    stream,
)

import jaxrl_buffers as jb
from jaxrl_buffers import _array_files as array_files
from jaxrl_buffers import _filling as filling
from jaxrl_buffers import datasets

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
    monkeypatch.setattr(array_files, "BLOCK_BYTES", block_bytes)
    arrays = stream(*CASES[case], has_next)
    buffer = jb.uniform(20)
    assert stored(buffer, datasets.from_arrays(buffer, arrays)) == modeled(arrays)


def test_random_streams_are_those_of_the_model(monkeypatch):
    monkeypatch.setattr(array_files, "BLOCK_BYTES", 100)
    random = np.random.default_rng(0)
    buffer = jb.n_step(64, n=3, keep_episodes=True)
    for _ in range(20):
        lengths = random.integers(1, 6, size=random.integers(1, 10))
        ends = random.choice(["terminal", "timeout"], size=lengths.size).tolist()
        arrays = stream(lengths, [*ends[:-1], random.choice([ends[-1], "open"])], bool(random.integers(2)))
        if rows := len(modeled(arrays)):
            state = datasets.from_arrays(buffer, arrays)
            assert stored(buffer, state) == modeled(arrays)
            ended = sum(row[1] or row[2] for row in stored(buffer, state))
            assert int(buffer.stats(state)["episodes"]) == ended
            assert int(buffer.size(state)) == rows


def test_successors_tell_where_episodes_end_if_timeouts_do_not():
    arrays = stream([3, 2, 4], ["timeout", "terminal", "timeout"])
    known = modeled(arrays)
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


@pytest.mark.parametrize("has_next", [True, False])
def test_nested_observations_keep_their_dtypes(has_next):
    buffer = jb.prioritized(20)
    arrays = nested(stream([3, 4], ["timeout", "terminal"], has_next))
    rows = jb.host.gather_all(buffer, datasets.from_arrays(buffer, arrays))
    assert rows.obs["camera"].dtype == jnp.uint8
    assert rows.next_obs["place"].dtype == jnp.float32
    flat = modeled(stream([3, 4], ["timeout", "terminal"], has_next))
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
    monkeypatch.setattr(array_files, "BLOCK_BYTES", 100)
    arrays = stream([30, 20], ["terminal", "timeout"])
    buffer = jb.uniform(16)
    with pytest.raises(ValueError, match=r"50 rows, but the ring holds 16; .*length=50 .*keep=\"newest\""):
        datasets.from_arrays(buffer, arrays)
    assert stored(buffer, datasets.from_arrays(buffer, arrays, keep="newest")) == modeled(arrays)[-16:]


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


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    arrays = stream([3, 4], ["terminal", "timeout"])
    arrays["rewards"][[1, 4]] = np.nan
    arrays["next_observations"] = arrays["next_observations"].astype(np.float64)
    arrays["next_observations"][2, 0] = 1e39  # too large for float32
    np.savez(tmp_path / "bad.npz", **arrays)
    message = r"not finite: 2 rows in 'rewards' and 1 rows in 'next_observations', of 7 rows"
    for read in (
        lambda: datasets.from_arrays(jb.uniform(20), arrays),
        lambda: datasets.from_file(jb.uniform(20), tmp_path / "bad.npz"),
        lambda: datasets.check(tmp_path / "bad.npz"),
    ):
        with np.errstate(over="ignore"), pytest.raises(ValueError, match=message):
            read()


def test_infos_may_be_anything():
    arrays = stream([3], ["terminal"]) | {"infos": {"speed": np.full(3, np.nan, np.float32)}}
    buffer = jb.uniform(20)
    state = datasets.from_arrays(buffer, arrays, infos=("speed",))
    assert np.isnan(jb.host.gather_all(buffer, state).extras["speed"]).all()


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


@pytest.mark.parametrize("block_bytes", [60, 2**24])
def test_there_and_back(block_bytes, monkeypatch):
    monkeypatch.setattr(array_files, "BLOCK_BYTES", block_bytes)
    arrays = nested(stream([3, 4, 2], ["terminal", "timeout", "timeout"]))
    buffer = jb.uniform(20)
    assert_same_arrays(datasets.to_arrays(buffer, datasets.from_arrays(buffer, arrays)), arrays)


@pytest.mark.parametrize("lockstep", [True, False])
def test_environments_follow_each_other(lockstep, monkeypatch):
    """Columns of several environments, after the ring wrapped, also with unequal numbers of rows."""
    monkeypatch.setattr(array_files, "BLOCK_BYTES", 60)
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


@pytest.mark.parametrize(
    ("num_rows", "length", "expected"),
    [(30, 100, 10), (27, 100, 9), (29, 100, 10), (4, 4, 4), (1, 100, 10), (12, 100, 6)],
)
def test_blocks_have_one_size_if_they_can(num_rows, length, expected, monkeypatch):
    """At most 10 rows of 4 bytes fit, and a size above 5 that divides the number of rows is taken."""
    monkeypatch.setattr(array_files, "BLOCK_BYTES", 43)
    row = jax.ShapeDtypeStruct((), np.float32)
    assert filling.rows_of_block(jb.uniform(length), row, num_rows) == expected
    assert filling.rows_of_block(jb.uniform(length), jax.ShapeDtypeStruct((99,), np.float32), num_rows) == 1
