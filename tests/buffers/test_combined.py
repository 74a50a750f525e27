"""Mixtures of samplers on one ring: shares, stand-ins, and weights from the density of the whole mixture."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import assert_frequencies, number_buffer, scalars

import jaxrl_buffers as jb
from jaxrl_buffers.samplers.combined import split_batch

RAW = {"alpha": 1.0, "epsilon": 0.0}
PRIORITIES = np.array([4, 1, 2, 8, 1, 3, 5, 2, 6, 1], np.float32)


def prioritized_mix(**options):
    """Return a wrapped buffer of ten rows, 3 to 12, with the priorities above by age, and a quarter of newest data."""
    sampler = jb.Combined(jb.Prioritized(**options, **RAW), (jb.LastN(3.0, max_share=0.75),), (0.25,))
    buffer, state = number_buffer(10, sampler=sampler)
    state = helpers.add(buffer, state, scalars([0, 1, 2]))
    return buffer, helpers.add(buffer, state, scalars(range(3, 13)), priorities=PRIORITIES[::-1, None])


def drawn(buffer, state, batch_size, seed=0):
    """Return the ages and weights of a batch."""
    sample = helpers.sample(buffer, state, jax.random.key(seed), batch_size=batch_size)
    np.testing.assert_array_equal(np.where(sample.weights > 0, sample.batch[:, 0], -1), sample.handle.position)
    return int(state.storage.head) - 1 - np.asarray(sample.handle.position), np.asarray(sample.weights)


def test_shares_are_rounded_up_and_leave_the_rest():
    assert split_batch(32, (0.5,)) == [16, 16]
    assert split_batch(10, (0.25, 0.5)) == [3, 5, 2]
    assert split_batch(100, (0.07, 0.93)) == [7, 93, 0]
    assert split_batch(1, (0.1, 0.1)) == [1, 0, 0]
    assert split_batch(7, ()) == [7]


def test_the_newest_starts_in_order_of_environments():
    """4 environments, ratio 0.5, 4 steps, 32 adds, B = 32: the first half is 28..31, four times each."""
    sampler = jb.Uniform("stratified", balanced=True)
    recipe = jb.guarantee_recent(64, 4, ratio=0.5, num_starts=4, sampler=sampler, lockstep=False)
    buffer = recipe.replace(view=jb.Sequence(1))
    state = helpers.add(buffer, buffer.init(jnp.float32(0)), scalars(range(32), 4))
    handle = helpers.sample(buffer, state, jax.random.key(0), batch_size=32).handle
    assert handle.env.tolist() == [0, 1, 2, 3] * 8
    assert sorted(handle.position[:16].tolist()) == [28] * 4 + [29] * 4 + [30] * 4 + [31] * 4
    others = np.asarray(handle.position[16:]).reshape(4, 4)
    assert (np.diff(np.sort(others, axis=0), axis=0) > 0).all()  # from four strata of everything
    assert others.min() < 16


def test_too_large_a_share_of_recent_data_is_left_to_the_main_sampler():
    """With `ratio` 0.5 and 4 steps, recent data is guaranteed only from 9 rows on; before, all is stratified alike."""
    recipe = jb.guarantee_recent(64, 1, ratio=0.5, num_starts=4, sampler=jb.Uniform("stratified"))
    buffer = recipe.replace(view=jb.Sequence(1))
    for num_rows, is_recent in ((8, False), (9, True)):
        state = helpers.add(buffer, buffer.init(jnp.float32(0)), scalars(range(num_rows)))
        position = np.asarray(helpers.sample(buffer, state, jax.random.key(0), batch_size=64).handle.position)
        assert (position[:32] >= num_rows - 4).all() == is_recent
        assert set(position[32:].tolist()) == set(range(num_rows))
        if not is_recent:
            assert np.bincount(position[:32]).tolist() == [4] * 8
    assert helpers.sample(buffer, buffer.init(jnp.float32(0)), jax.random.key(0), batch_size=64).weights.sum() == 0


def many_positions(buffer, state, batch_size):
    """Return the environments and positions `[20, B]` of twenty batches."""
    keys = jax.random.split(jax.random.key(0), 20)
    handle = jax.jit(jax.vmap(lambda key: buffer.sample(state, key, batch_size).handle))(keys)
    return np.asarray(handle.env), np.asarray(handle.position)


@pytest.mark.parametrize("method", ["distinct", "stratified"])
def test_the_main_sampler_draws_the_whole_batch_at_once_where_it_stands_in(method):
    """Six rows, of which the newest four are too many: a batch of six holds each of them, whatever the key."""
    recipe = jb.guarantee_recent(16, ratio=0.5, num_starts=4, sampler=jb.Uniform(method))
    buffer = recipe.replace(view=jb.Sequence(1))
    state = helpers.add(buffer, buffer.init(jnp.float32(0)), scalars(range(6)))
    _, positions = many_positions(buffer, state, 6)
    np.testing.assert_array_equal(np.sort(positions), [[*range(6)]] * 20)


def test_balance_is_kept_where_the_main_sampler_stands_in():
    recipe = jb.guarantee_recent(16, 3, ratio=0.5, num_starts=4, sampler=jb.Uniform(balanced=True))
    buffer = recipe.replace(view=jb.Sequence(1))
    state = helpers.add(buffer, buffer.init(jnp.float32(0)), scalars(range(6), 3))
    envs, _ = many_positions(buffer, state, 8)
    counts = np.stack([(envs == env).sum(axis=1) for env in range(3)])
    assert set(np.ravel(counts)) == {2, 3}


def test_the_main_sampler_stands_in_for_one_of_several():
    """The second of two has nothing: its share and the rest are one draw of seven distinct rows out of nine."""
    others = (jb.LastN(2.0), jb.LastN(2.0, max_share=0.1))
    buffer, state = number_buffer(10, sampler=jb.Combined(jb.Uniform("distinct"), others, (0.3, 0.3)))
    state = helpers.add(buffer, state, scalars(range(9)))
    _, positions = many_positions(buffer, state, 10)
    assert (positions[:, :3] >= 7).all()
    assert all(len(set(batch)) == 7 for batch in positions[:, 3:].tolist())
    assert_frequencies(np.bincount(np.ravel(positions[:, 3:]), minlength=9), np.ones(9))


def test_prioritized_draws_mix_with_recent_ones():
    """Every start is drawn and weighted by its probability under the whole mixture."""
    buffer, state = prioritized_mix(beta=0.5)
    ages, weights = drawn(buffer, state, 40_000)
    density = 0.75 * PRIORITIES / PRIORITIES.sum() + 0.25 * np.array([1 / 3] * 3 + [0] * 7)
    assert_frequencies(np.bincount(ages, minlength=10), density)
    assert_frequencies(np.bincount(ages[:10_000], minlength=10), [1] * 3 + [0] * 7)
    assert_frequencies(np.bincount(ages[10_000:], minlength=10), PRIORITIES)
    least = 0.75 / PRIORITIES.sum()  # that of the starts of age 4 and 9
    np.testing.assert_allclose(weights, (least / density[ages]) ** 0.5, rtol=1e-5)
    assert weights.max() == pytest.approx(1)


def test_alf_weights_are_the_relative_probability_under_the_mixture():
    buffer, state = prioritized_mix(weighting="alf")
    ages, weights = drawn(buffer, state, 400)
    density = 0.75 * PRIORITIES / PRIORITIES.sum() + 0.25 * np.array([1 / 3] * 3 + [0] * 7)
    np.testing.assert_allclose(weights, 10 * density[ages], rtol=1e-5)


def test_a_mixture_corrected_wholly_has_the_uniform_mean():
    buffer, state = prioritized_mix(beta=1.0)
    ages, weights = drawn(buffer, state, 40_000)
    assert abs((weights * ages).sum() / weights.sum() - 4.5) < 0.15


def test_uniform_mixtures_are_not_corrected():
    """Recent data is wanted: weights correct priorities only."""
    sampler = jb.Combined(jb.Uniform(), (jb.LastN(2.0), jb.Uniform("distinct")), (0.5, 0.25))
    buffer, state = number_buffer(10, 2, sampler=sampler)
    state = helpers.add(buffer, state, scalars(range(10), 2))
    ages, weights = drawn(buffer, state, 16_000)
    assert set(weights.tolist()) == {0.0, 1.0}  # twenty distinct starts at most
    assert (weights > 0).sum() == 8_000 + 20 + 4_000
    assert_frequencies(np.bincount(ages[:8_000], minlength=10), [1, 1] + [0] * 8)


def test_updates_reach_the_prioritized_samplers_of_a_mixture():
    sampler = jb.Combined(jb.Prioritized(**RAW), (jb.Recent(jb.Prioritized(**RAW), c_min=2.0),), (0.5,))
    buffer, state = number_buffer(6, sampler=sampler)
    state = helpers.add(buffer, state, scalars(range(8)[:6]))
    state = helpers.update_priorities(
        buffer, state, jb.Handle(jnp.zeros(2, int), jnp.array([1, 5])), jnp.array([7.0, 9])
    )
    for part in (state.sampler.sampler, state.sampler.others[0].sampler):
        assert part.tree.leaves[:6].tolist() == [1, 7, 1, 1, 1, 9]


def test_a_least_probability_below_float32_does_not_make_all_weights_vanish():
    buffer, state = prioritized_mix(beta=0.5)
    handle = jb.Handle(jnp.zeros(1, int), jnp.array([3]))
    state = helpers.update_priorities(buffer, state, handle, jnp.zeros(1))
    _, weights = drawn(buffer, state, 40_000)
    assert (weights > 0).all()
    assert np.isfinite(weights).all()


@pytest.mark.parametrize("weighting", ["buffer", "batch", "alf"])
@pytest.mark.parametrize(("scale", "ratio"), [(1e-36, 0.25), (1e36, 0.25), (1e38, 0.25), (1e38, 0.75)])
def test_extreme_priorities_are_drawn_and_weighted_as_any_other(weighting, scale, ratio):
    """All starts of one priority, of which a part is drawn by a sampler that never sees half of them."""
    sampler = jb.Combined(jb.Prioritized(beta=2.0, weighting=weighting, **RAW), (jb.LastN(2.0),), (ratio,))
    buffer, state = number_buffer(4, sampler=sampler)
    state = helpers.add(buffer, state, scalars(range(4)), priorities=jnp.full((4, 1), scale))
    ages, weights = drawn(buffer, state, 64)
    least = (1 - ratio) / 4
    density = np.where(ages < 2, least + ratio / 2, least)
    expected = 4 * density if weighting == "alf" else (least / density) ** 2
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    old = 32 * (1 - ratio)
    assert np.bincount(ages // 2).tolist() == [64 - old, old]


def test_parameters_inside_a_mixture_have_names():
    buffer, _ = prioritized_mix()
    assert jb.parameters(buffer)["sampler.others.0.num_starts"] == 3.0
    changed = jb.with_parameters(buffer, {"sampler.others.0.num_starts": 5.0, "sampler.sampler.beta": 0.9})
    assert changed.sampler.others[0].num_starts == 5.0
    assert changed.sampler.sampler.beta == 0.9


@pytest.mark.parametrize(
    ("others", "ratios", "message"),
    [
        ((jb.Uniform(),), (), "got 1 `others` and 0 `ratios`"),
        ((jb.Uniform(), jb.Uniform()), (0.6, 0.6), "more than the batch"),
        ((jb.Uniform(),), (-0.1,), "at least 0 and at most 1"),
    ],
)
def test_bad_options_are_refused(others, ratios, message):
    with pytest.raises(ValueError, match=message):
        jb.Combined(jb.Uniform(), others, ratios)
