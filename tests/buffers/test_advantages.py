"""Advantages and returns of paths: by hand, by their sums, and through wraps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.paths import (
    GOLDEN,
    GOLDEN_ADVANTAGE,
    GOLDEN_RETURN,
    add,
    batch_of,
    column,
    finish_path,
    make,
    random_chunk,
    reference_path,
    steps,
)

import jaxrl_buffers as jb
from jaxrl_buffers.rollouts import RETURNS


def test_discount_cumsum():
    np.testing.assert_allclose(jb.discount_cumsum(jnp.array([1.0, 2, 3]), 0.5), [2.75, 3.5, 3])
    two = jb.discount_cumsum(jnp.array([[1, 1], [2, 2], [3, 3]]), jnp.array([[0.5, 1.0], [0.5, 0.0], [9.0, 9.0]]))
    np.testing.assert_allclose(two, [[2.75, 3], [3.5, 2], [3, 3]])
    assert two.dtype == jnp.float32


@pytest.mark.parametrize("returns", RETURNS)
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_within_its_own_path(returns, normalize, bad):
    """Of three paths of two steps, the second one has a broken reward; and the one behind them is not closed."""
    rollout, state = make(7, returns=returns, normalize=normalize)
    rewards, ends = column([1, 2, 3, bad, 5, 6, bad]), column([0, 1, 0, 1, 0, 1, 0])
    chunk = steps(rewards, np.ones((7, 1)), terminated=ends)
    got = batch_of(rollout, add(rollout, state, chunk))
    is_good = np.array([True, True, False, False, True, True, False])
    zeroed = steps(np.where(np.isfinite(rewards), rewards, 0), np.ones((7, 1)), terminated=ends)
    sound = batch_of(rollout, add(rollout, state, zeroed))
    assert got.mask[:, 0].tolist() == [True] * 6 + [False]
    assert np.isfinite(got.return_[is_good]).all()
    assert not np.isfinite(got.advantage[2:4]).any()
    if normalize:
        np.testing.assert_allclose(np.mean(got.advantage[is_good]), 0, atol=1e-6)
        np.testing.assert_allclose(np.std(got.advantage[is_good]), 1, rtol=1e-5)
    else:
        np.testing.assert_array_equal(got.advantage[is_good], sound.advantage[is_good])
    np.testing.assert_array_equal(got.return_[is_good], sound.return_[is_good])


def test_hand_worked_advantages_and_returns():
    """Gamma 0.9, lambda 0.8, cut off with a last value of 2; the return is the return."""
    rollout, _ = make(3)
    batch = rollout.advantages(GOLDEN, jnp.array([[9.0], [9.0], [2.0]]))  # only the last one is read
    np.testing.assert_allclose(batch.advantage[:, 0], GOLDEN_ADVANTAGE, rtol=1e-6)
    np.testing.assert_allclose(batch.return_[:, 0], GOLDEN_RETURN, rtol=1e-6)
    assert batch.mask.all()
    np.testing.assert_array_equal(batch.extras["log_prob"], GOLDEN.extras["log_prob"])
    default = rollout.replace(returns="lambda").advantages(GOLDEN, jnp.full((3, 1), 2.0))
    np.testing.assert_allclose(default.return_, default.advantage + GOLDEN.extras["value"], rtol=1e-6)


@pytest.mark.parametrize(
    ("flag", "last_value"), [("terminated", 0.0), ("truncated", 2.0), (None, 2.0)], ids=["over", "cut off", "goes on"]
)
def test_what_comes_behind_the_end(flag, last_value):
    """Nothing when terminated, the given value of the final observation when cut off."""
    rollout, state = make(3)
    chunk = GOLDEN if flag is None else GOLDEN._replace(**{flag: column([False, False, True])})
    given = jnp.full((3, 1), 2.0)
    advantage, returns = reference_path([1, 2, 3], [0, 0.5, 1], last_value)
    together = rollout.advantages(chunk, given)
    stored = batch_of(rollout, finish_path(rollout, add(rollout, state, chunk), given[0]))
    at_once = batch_of(rollout, finish_path(rollout, add(rollout, state, chunk, given), given[0]))
    for batch in (together, stored, at_once):
        np.testing.assert_allclose(batch.advantage[:, 0], advantage, rtol=1e-6)
        np.testing.assert_allclose(batch.return_[:, 0], returns, rtol=1e-6)
        assert batch.mask.all()


def test_random_chunks_match_the_sums_path_by_path():
    rng = np.random.default_rng(0)
    rollout, _ = make(12, 3)
    for _ in range(10):
        chunk, next_value = random_chunk(rng, 12, 3), rng.normal(size=(12, 3)).astype(np.float32)
        batch = rollout.advantages(chunk, next_value)
        for env in range(3):
            begin = 0
            for t in range(12):
                if not (chunk.terminated[t, env] or chunk.truncated[t, env] or t == 11):
                    continue
                last = 0 if chunk.terminated[t, env] else next_value[t, env]
                path = slice(begin, t + 1), env
                advantage, returns = reference_path(chunk.reward[path], chunk.extras["value"][path], last)
                np.testing.assert_allclose(batch.advantage[path], advantage, rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(batch.return_[path], returns, rtol=1e-4, atol=1e-5)
                begin = t + 1


@pytest.mark.parametrize("offset", range(5))
def test_paths_that_wrap_or_fill_the_buffer_are_like_any_other(offset):
    """Rows stored one by one from every offset, in a ring just as long as the path and in a longer one."""
    for length in (3, 5):
        rollout, state = make(length)
        for number in range(offset):
            before = steps([[7]], [[7]], obs=[[-number]])
            state = finish_path(rollout, add(rollout, state, before), jnp.array([5.0]))
        for row in range(3):
            state = add(rollout, state, jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], GOLDEN))
        open_path = batch_of(rollout, state)
        assert int(open_path.mask.sum()) == min(offset, length - 3)
        batch = batch_of(rollout, finish_path(rollout, state, jnp.array([2.0])))
        newest = slice(min(offset, length - 3), min(offset, length - 3) + 3)
        np.testing.assert_array_equal(batch.obs[newest, 0], [0, 1, 2])
        np.testing.assert_allclose(batch.advantage[newest, 0], GOLDEN_ADVANTAGE, rtol=1e-6)
        np.testing.assert_allclose(batch.return_[newest, 0], GOLDEN_RETURN, rtol=1e-6)
        assert int(batch.mask.sum()) == min(offset + 3, length)
