"""What a buffer tells about itself, against NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import number_buffer, scalars

import jaxrl_buffers as jb

QUANTILES = {"min": 0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1}


def quantiles(values, weights):
    """Return the first sorted value at which the summed weights reach each part of their sum."""
    order = np.argsort(values, kind="stable")
    values, weights = np.asarray(values)[order], np.asarray(weights, np.float64)[order]
    values, weights = values[weights > 0], weights[weights > 0]
    reached = np.cumsum(weights) / weights.sum()
    return {name: values[np.flatnonzero(reached >= part - 1e-6)[0]] for name, part in QUANTILES.items()}


def test_counts_and_quantiles_of_the_stored_starts():
    sampler = jb.Recent(jb.Prioritized(alpha=0.5, epsilon=0.0), eta=0.99, c_min=2.0)
    buffer, state = number_buffer(10, 2, sampler=sampler, view=jb.Sequence(2), lockstep=False)
    rng = np.random.default_rng(0)
    given = rng.gamma(1.0, size=(10, 2)).astype(np.float32)
    state = helpers.add(buffer, state, scalars(range(7), 2))
    state = helpers.add(buffer, state, scalars(range(7, 17), 2), priorities=given)
    state = helpers.drop_oldest(buffer, state, num_rows=2)
    ages = np.repeat(np.arange(1, 8), 2)
    mass = np.sqrt(given[::-1][1:8].ravel())
    for progress, rows in ((0.0, 7), (0.1, 3)):
        stats = {name: float(value) for name, value in buffer.stats(state, progress).items()}
        recent = np.where(ages <= rows, mass, 0)
        assert (stats["size"], stats["num_starts"]) == (16, 14)
        assert stats["fill"] == pytest.approx(0.8)
        for name in QUANTILES:
            assert stats[f"age_{name}"] == quantiles(ages, np.ones(14))[name]
            assert stats[f"drawn_age_{name}"] == quantiles(ages, recent)[name]
            assert stats[f"priority_{name}"] == pytest.approx(quantiles(recent, np.ones(14))[name], rel=1e-5)


def test_an_empty_buffer_has_no_quantiles():
    buffer, state = number_buffer(4)
    stats = buffer.stats(state)
    assert (int(stats["size"]), float(stats["fill"]), int(stats["num_starts"])) == (0, 0, 0)
    assert all(np.isnan(value) for name, value in stats.items() if "_" in name and name != "num_starts")
    assert {value.shape for value in stats.values()} == {()}


def test_uniform_priorities_are_all_one():
    buffer, state = number_buffer(4, sampler=jb.Uniform("stratified"))
    stats = buffer.stats(helpers.add(buffer, state, jnp.ones((3, 1))))
    assert stats["priority_min"] == stats["priority_max"] == 1
    assert [float(stats[f"drawn_age_{name}"]) for name in ("min", "median", "max")] == [0, 1, 2]


def test_stored_episodes_are_counted_where_there_is_an_index():
    buffer = jb.ReplayBuffer(length=4, num_envs=1, keep_episodes=True)
    chunk = helpers.rewards_chunk(range(6), terminated=[1, 0, 0, 1, 0, 0])
    state = buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk))
    assert int(buffer.stats(state)["episodes"]) == 0
    for begin, count in ((0, 2), (2, 2), (4, 2)):  # three episodes; then the first one is overwritten
        state = helpers.add(buffer, state, jax.tree.map(lambda leaf, begin=begin: leaf[begin : begin + 2], chunk))
        assert int(buffer.stats(state)["episodes"]) == count
    plain = jb.ReplayBuffer(length=4)
    assert "episodes" not in plain.stats(plain.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk)))
