"""The episodic sampler: episodes are equally likely, then their stored steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.episodes import episode_probabilities
from models.ring import ReferenceRing
from scipy import stats
from support import helpers

import jaxrl_buffers as jb
from jaxrl_buffers.storage import ring

LENGTH, NUM_ENVS, BATCH = 9, 3, 20_000


def filled(whole, lockstep, num_rows, ends=0.35):
    """Return a buffer with random episodes, and its model."""
    rng = np.random.default_rng(num_rows)
    buffer = jb.ReplayBuffer(jb.Episodic(whole=whole), length=LENGTH, num_envs=NUM_ENVS, lockstep=lockstep)
    state, model, number = buffer.init(helpers.EXAMPLE), ReferenceRing(LENGTH, NUM_ENVS), 0
    for _ in range(num_rows):
        rows = [[helpers.transition(number := number + 1, 0, rng.random() < ends) for _ in range(NUM_ENVS)]]
        mask = None if lockstep else rng.random((1, NUM_ENVS)) < 0.7
        state = helpers.add(buffer, state, helpers.stack(rows), mask=mask)
        model.add([[row._asdict() for row in rows[0]]], mask=mask)
    return buffer, state, model


def check_draws(buffer, state, model):
    sample = helpers.sample(buffer, state, jax.random.key(0), batch_size=BATCH)
    expected = episode_probabilities(model, buffer.sampler.whole)
    drawn = list(zip(*(np.asarray(part).tolist() for part in sample.handle), strict=True))
    counts = {row: drawn.count(row) for row in set(drawn)}
    assert set(counts) == set(expected)
    observed = np.array([counts[row] for row in expected])
    assert stats.chisquare(observed, BATCH * np.array(list(expected.values()))).pvalue > 1e-4
    assert (np.asarray(sample.weights) == 1).all()
    masses = {row: mass for row, mass in measured(buffer, state).items() if mass > 0}
    assert masses == pytest.approx(expected)


def measured(buffer, state):
    """Return the probability that the sampler tells of each stored row."""
    slots = jnp.arange(LENGTH * NUM_ENVS, dtype=jnp.int32)
    draw = measure(buffer, state, slots)
    handle = ring.handles_of(state.storage, slots, np.asarray(draw.mass) > 0)
    rows = zip(*(np.asarray(part).tolist() for part in handle), strict=True)
    return dict(zip(rows, np.asarray(draw.mass / draw.total).tolist(), strict=True))


@jax.jit
def measure(buffer, state, slots):
    window = buffer.window(state)
    return buffer.sampler.measure(state.sampler, state.storage, slots, window)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("lockstep", [False, True])
def test_episodes_then_steps_are_drawn_uniformly(whole, lockstep):
    """Half full, and past the wrap; also after some rows were forgotten."""
    for num_rows in (6, 31):
        buffer, state, model = filled(whole, lockstep, num_rows)
        check_draws(buffer, state, model)
    state = helpers.drop_oldest(buffer, state, num_rows=2)
    model.drop_oldest(2)
    check_draws(buffer, state, model)


def test_without_a_whole_episode_there_is_nothing_to_draw():
    for num_rows in (0, 3, 20):
        buffer, state, _ = filled(True, True, num_rows, ends=0)
        sample = helpers.sample(buffer, state, jax.random.key(0), batch_size=4)
        assert not np.asarray(sample.weights).any()
        assert not np.asarray(sample.batch.mask).any()


def test_starts_stand_in_every_row():
    buffer = jb.ReplayBuffer(jb.Episodic(), jb.Sequence(2, period=2), length=4)
    with pytest.raises(ValueError, match="only one row in 2 is a start"):
        buffer.sample(buffer.init(helpers.EXAMPLE), jax.random.key(0), 1)
