"""Importance weights of prioritized samples."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import number_buffer, scalars
from support.priorities import RAW, draw_counts, with_priorities

import jaxrl_buffers as jb
from jaxrl_buffers import host


@pytest.mark.parametrize("weighting", ["buffer", "batch"])
def test_weights(weighting):
    buffer, state = with_priorities([1, 2, 3, 4], beta=0.5, weighting=weighting, **RAW)
    _, weights = draw_counts(buffer, state, 100)
    np.testing.assert_allclose([weights[slot] for slot in range(4)], [1, 0.70711, 0.57735, 0.5], rtol=1e-4)


def test_batch_weights_are_divided_by_the_largest_of_the_batch():
    buffer, state = with_priorities([1e-6, 2, 8], beta=0.5, weighting="batch", **RAW)
    counts, weights = draw_counts(buffer, state, 20)
    assert counts[0] == 0
    assert weights == {1: 1.0, 2: 0.5}


def test_the_weighted_mean_is_the_uniform_mean():
    priorities = np.linspace(0.2, 4, 40)  # rising with the values: their plain mean would be 25
    buffer, state = with_priorities(priorities, beta=1.0, stratified=False, **RAW)
    sample = helpers.sample(buffer, state, jax.random.key(0), batch_size=200_000)
    weights, values = np.asarray(sample.weights, np.float64), np.asarray(sample.batch[:, 0], np.float64)
    assert abs((weights * values).sum() / weights.sum() - np.arange(40).mean()) < 0.25


def test_a_zero_error_without_epsilon_keeps_weights_finite():
    buffer, state = with_priorities([0, 1, 2], beta=0.5, **RAW)
    assert (helpers.leaves(state) > 0).all()
    sample = helpers.sample(buffer, state, jax.random.key(0), batch_size=64)
    assert np.isfinite(sample.weights).all()
    assert np.asarray(sample.weights).max() <= 1
    alone, only = with_priorities([0], beta=0.5, **RAW)
    assert helpers.sample(alone, only, jax.random.key(0), batch_size=4).weights.tolist() == [1] * 4


def test_counts_and_weights_of_growing_data():
    sampler = jb.Prioritized(initial=1.5, weighting="alf", **RAW)
    buffer, state = number_buffer(2, 4, sampler=sampler.replace(initial=1.0), lockstep=False)
    empty = buffer.init(jnp.float32(0))
    with pytest.raises(ValueError, match="legal starts"):
        host.sample(buffer, empty, jax.random.key(0), 1)
    state = helpers.add(buffer, state, scalars([0], 1), env_ids=np.array([1]))
    assert draw_counts(buffer, state, 10) == ([0, 10, 0, 0, 0, 0, 0, 0], {1: 1.0})
    state = helpers.add(buffer, state, scalars([0], 1), env_ids=np.array([3]))
    assert draw_counts(buffer, state, 1000)[0][:4] == [0, 500, 0, 500]
    pair = jb.Handle(jnp.array([1, 3]), jnp.array([0, 0]))
    state = helpers.update_priorities(buffer, state, pair, jnp.array([0.5, 1.5]))
    assert draw_counts(buffer, state, 1000)[0][:4] == [0, 250, 0, 750]
    state = helpers.add(buffer, state, scalars([0], 2), env_ids=np.array([0, 2]))
    assert draw_counts(buffer, state, 1000) == ([300, 100, 300, 300, 0, 0, 0, 0], {0: 1.2, 1: 0.4, 2: 1.2, 3: 1.2})
    state = helpers.update_priorities(buffer, state, jb.Handle(jnp.array([2, 3]), jnp.zeros(2, int)), jnp.ones(2))
    assert draw_counts(buffer, state, 1000) == ([375, 125, 250, 250, 0, 0, 0, 0], {0: 1.5, 1: 0.5, 2: 1.0, 3: 1.0})


def test_weights_do_not_vanish_at_any_dynamic_range():
    buffer, state = with_priorities([1e-36, 1e30, 1e30], beta=0.5, **RAW)
    weights = helpers.sample(buffer, state, jax.random.key(0), batch_size=8).weights
    np.testing.assert_allclose(weights, 1e-33, rtol=1e-3)


@pytest.mark.parametrize("weighting", ["buffer", "batch"])
@pytest.mark.parametrize("beta", [1.0, 2.0, 8.0])
@pytest.mark.parametrize("scale", [0.0, 1e-37, 1.0, 1e36])
def test_weights_that_correct_too_much_depend_on_the_ratio_of_priorities_only(weighting, beta, scale):
    """Powers of the priorities themselves would be zero or infinite."""
    buffer, state = with_priorities(scale * np.array([1, 1, 2, 2]), beta=beta, weighting=weighting, **RAW)
    sample = helpers.sample(buffer, state, jax.random.key(0), batch_size=64)
    ratio = np.where(np.asarray(sample.batch[:, 0]) < 2, 1, 0.5 if scale else 1)
    np.testing.assert_allclose(sample.weights, ratio**beta, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-37, 1e37, 1e38])
def test_importance_does_not_vanish_at_the_largest_priorities(scale):
    """XLA multiplies by the inverse of the total, which must not be too small for a float32."""
    buffer, state = with_priorities(scale * np.array([1, 1, 1, 1]), weighting="alf", **RAW)
    weights = helpers.sample(buffer, state, jax.random.key(0), batch_size=8).weights
    np.testing.assert_allclose(weights, 1, rtol=1e-6)


@pytest.mark.parametrize("other", [jb.Uniform(balanced=True), jb.Episodic()])
def test_no_start_of_a_combination_weighs_more_than_one(other):
    """Ten rows of one environment and two of the other, each one episode: the least likely start weighs one."""
    length = 10
    rows = [[helpers.transition(2 * time + env) for env in range(2)] for time in range(length)]
    mask = np.arange(length)[:, None] < np.array([10, 2])
    sampler = jb.Combined(jb.Prioritized(beta=1.0, **RAW), (other,), (0.5,))
    buffer = jb.ReplayBuffer(sampler, length=length, num_envs=2, lockstep=False)
    priorities = jnp.linspace(1, 3, 2 * length).reshape(length, 2)
    state = helpers.add(buffer, buffer.init(helpers.EXAMPLE), helpers.stack(rows), priorities=priorities, mask=mask)
    draw = sampler.measure(state.sampler, state.storage, jnp.arange(12), buffer.window(state))
    weights = np.asarray(sampler.weights(draw))
    np.testing.assert_allclose(np.sum(draw.mass), 1, rtol=1e-6)
    assert weights.max() == pytest.approx(1, rel=1e-5)
    assert np.sum(draw.mass * weights * jnp.arange(12)) / np.sum(draw.mass * weights) == pytest.approx(5.5, rel=1e-5)
