"""Windows of recent rows: exact bounds, also after a wrap; the distribution and weights inside; adaptive recency."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.recency import ReferenceTrend, recent_rows
from support import helpers
from support.helpers import assert_frequencies, number_buffer, scalars

import jaxrl_buffers as jb
from jaxrl_buffers import segment_tree, starts

RAW = {"alpha": 1.0, "epsilon": 0.0}


@jax.jit
def window_rows(buffer, state, progress):
    """Return how many rows each progress leaves."""
    window = buffer.window(state)
    newest = jax.vmap(lambda one: buffer.sampler.window(state.sampler, state.storage, window, one))(progress)
    return newest.oldest - newest.newest


def sized(state, size):
    """Return a state that claims to hold `size` rows."""
    return state._replace(storage=state.storage._replace(size=jnp.int32(size), head=jnp.int32(size)))


def test_the_window_shrinks_as_published():
    buffer, state = number_buffer(100_000, sampler=jb.Recent(eta=0.996, c_min=5_000))
    progress = jnp.array([0, 1, 10, 25, 49]) / 50
    rows = window_rows(buffer, sized(state, 100_000), progress)
    assert rows.tolist() == [100_000, 92_296, 44_860, 13_479, 5_000]


@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_window_matches_the_formula(num_envs):
    buffer, state = number_buffer(4_000, num_envs)
    rng = np.random.default_rng(0)
    for _ in range(40):
        size, eta, c_min = int(rng.integers(1, 4_000)), float(rng.uniform(0.9, 1)), float(rng.integers(0, 5_000))
        sampler = jb.Recent(eta=np.float32(eta), c_min=np.float32(c_min))
        case = buffer.replace(sampler=sampler)
        progress = np.append(0, rng.random(7)).astype(np.float32)
        got = window_rows(case, sized(state._replace(sampler=sampler.init((1, 1))), size), progress)
        for rows, one in zip(got.tolist(), progress.tolist(), strict=True):
            slots = size * num_envs * float(np.float32(eta)) ** (1000 * one)
            if one == 0 or abs(slots - round(slots)) > 0.02:  # float32 cannot tell on which side of an integer it is
                assert rows == recent_rows(size, num_envs, float(np.float32(eta)), c_min, one)


def test_everything_is_drawn_from_at_progress_zero_at_any_size():
    buffer, state = number_buffer(2**25 // 16, 16, sampler=jb.Recent(eta=0.9, c_min=1))
    state = jax.eval_shape(lambda: state)  # the rows themselves do not matter
    storage = state.storage._replace(head=jnp.int32(5), size=jnp.int32(2**21 - 1))
    window = starts.Window(jnp.int32(0), storage.size)
    newest = buffer.sampler.window(state.sampler, storage, window, 0.0)
    assert int(newest.oldest) == 2**21 - 1


def filled(sampler, num_rows, length=8, num_envs=1, chunk=3, **options):
    """Return a buffer to which rows were added, `chunk` at a time."""
    buffer, state = number_buffer(length, num_envs, sampler=sampler, **options)
    for begin in range(0, num_rows, chunk):
        state = helpers.add(buffer, state, scalars(range(begin, begin + chunk), num_envs))
    return buffer, state


def positions(buffer, state, progress, batch_size=256):
    sample = helpers.sample(buffer, state, jax.random.key(0), batch_size=batch_size, progress=progress)
    assert (np.asarray(sample.weights) > 0).all()
    np.testing.assert_array_equal(sample.batch[:, 0], sample.handle.position)
    return set(sample.handle.position.tolist())


@pytest.mark.parametrize("inside", [jb.Uniform("stratified"), jb.Prioritized()])
def test_only_the_newest_rows_are_drawn_also_after_a_wrap(inside):
    """Capacity 8, 12 inserts, c = 2: rows 10 and 11. Fewer rows than `c_min`: everything."""
    for num_rows in (6, 9, 12, 15, 24):
        buffer, state = filled(jb.Recent(inside, eta=0.9, c_min=2.0), num_rows)
        assert positions(buffer, state, 0.99) == {num_rows - 2, num_rows - 1}
        assert positions(buffer, state, 0.0) == set(range(max(num_rows - 8, 0), num_rows))
        many = buffer.replace(sampler=buffer.sampler.replace(c_min=50.0))
        assert positions(many, state, 0.99) == set(range(max(num_rows - 8, 0), num_rows))


def test_fewer_slots_than_c_min_are_drawn_uniformly():
    buffer, state = filled(jb.Recent(eta=0.9, c_min=5_000.0), 12, num_envs=3)
    sample = helpers.sample(buffer, state, jax.random.key(1), batch_size=10_000, progress=0.9)
    counts = np.zeros((8, 3))
    np.add.at(counts, (np.asarray(sample.handle.position) - 4, np.asarray(sample.handle.env)), 1)
    assert_frequencies(counts, np.ones((8, 3)))


def test_recent_uniform_draws_are_uniform_over_the_window():
    """Five slots of three environments: their two newest rows, right across the ring's end."""
    buffer, state = filled(jb.Recent(eta=0.9, c_min=5.0), 9, num_envs=3)
    sample = helpers.sample(buffer, state, jax.random.key(1), batch_size=10_000, progress=0.9)
    counts = np.zeros((9, 3))
    np.add.at(counts, (np.asarray(sample.handle.position), np.asarray(sample.handle.env)), 1)
    assert counts[:7].sum() == 0
    assert_frequencies(counts[7:], np.ones((2, 3)))


def prioritized_case(lockstep, stratified):
    """Return a buffer that has wrapped, with random priorities `[T, N]` by row and environment."""
    sampler = jb.Recent(jb.Prioritized(beta=0.5, stratified=stratified, **RAW), eta=0.99, c_min=6.0)
    buffer, state = number_buffer(40, 3, sampler=sampler, lockstep=lockstep)
    rng = np.random.default_rng(0)
    for begin in (0, 30):
        given = rng.gamma(1.0, size=(30, 3)).astype(np.float32) + 0.05
        state = helpers.add(buffer, state, scalars(range(begin, begin + 30), 3), priorities=given)
    if not lockstep:
        mask = np.arange(15)[:, None] < np.array([[3, 15, 0]])
        given = rng.gamma(1.0, size=(15, 3)).astype(np.float32) + 0.05
        state = helpers.add(buffer, state, scalars(range(60, 75), 3), priorities=given, mask=mask)
    return buffer, state


@pytest.mark.parametrize(("lockstep", "stratified"), [(True, True), (False, False)])
def test_priorities_count_within_the_window_and_so_do_the_weights(lockstep, stratified):
    """w = (c_k P)^-beta over its largest in the window; updates reach the rows that were drawn."""
    buffer, state = prioritized_case(lockstep, stratified)
    heads = np.broadcast_to(state.storage.head, 3)
    leaf = helpers.leaves(state).reshape((40, 3) if lockstep else (3, 40))
    leaf = leaf if lockstep else leaf.T
    for progress, rows in ((0.05, 24), (0.2, 6), (0.9, 2)):
        sample = helpers.sample(buffer, state, jax.random.key(2), batch_size=10_000, progress=progress)
        env, position = np.asarray(sample.handle.env), np.asarray(sample.handle.position)
        assert rows == recent_rows(40, 3, 0.99, 6, progress)
        assert (heads[env] - position).max() == rows
        counts, mass = np.zeros((rows, 3)), np.zeros((rows, 3))
        np.add.at(counts, (heads[env] - 1 - position, env), 1)
        for age in range(rows):
            mass[age] = leaf[(heads - 1 - age) % 40, range(3)]
        assert_frequencies(counts, mass)
        expected = (mass.min() / mass[heads[env] - 1 - position, env]) ** 0.5
        np.testing.assert_allclose(sample.weights, expected, rtol=1e-4)
    chosen = jax.tree.map(lambda leaf: leaf[:4], sample.handle)
    updated = helpers.update_priorities(buffer, state, chosen, jnp.full(4, 77.0))
    changed = helpers.leaves(updated).reshape((40, 3) if lockstep else (3, 40))
    changed = changed if lockstep else changed.T
    expected = leaf.copy()
    expected[np.asarray(chosen.position) % 40, np.asarray(chosen.env)] = 77
    np.testing.assert_array_equal(changed, expected)


def test_windows_of_sequences_hold_whole_sequences():
    buffer, state = filled(jb.Recent(jb.Prioritized(), eta=0.9, c_min=4.0), 12, view=jb.Sequence(3, period=2))
    sample = helpers.sample(buffer, state, jax.random.key(0), batch_size=64, progress=0.99)
    assert set(sample.handle.position.tolist()) == {6, 8}  # of the starts 4, 6, 8, those in the newest four rows
    assert (np.diff(sample.batch, axis=1) == 1).all()


def test_progress_reaches_the_sampler_through_scan_batches():
    buffer, state = filled(jb.Recent(eta=0.99, c_min=1.0), 100, length=100, chunk=100)

    def step(carry, state, sample):
        return carry, state, jnp.min(sample.handle.position)

    _, _, oldest = jb.scan_batches(step, (), buffer, state, jax.random.key(0), batch_size=512, num_batches=10)
    assert oldest.tolist() == [100 - recent_rows(100, 1, 0.99, 1, k / 10) for k in range(10)]


@jax.jit
def etas(buffer, state, returns):
    def step(state, mean_return):
        state = buffer.report_return(state, mean_return)
        return state, buffer.sampler.present_eta(state.sampler)

    return jax.lax.scan(step, state, returns)[1]


def test_eta_follows_the_returns():
    buffer, state = number_buffer(4, sampler=jb.Recent(eta=0.99, adaptive=True))
    rng = np.random.default_rng(0)
    ramp = np.arange(60.0)
    cases = {
        "rising": ramp,
        "falling": -ramp,
        "flat": np.full(60, 3.0),
        "wild": np.cumsum(rng.normal(size=60)),
        "sometimes missing": np.where(rng.random(60) < 0.3, np.nan, rng.normal(size=60)),
        "up and down": np.where(ramp < 30, ramp, 60 - ramp),
    }
    got = {name: np.asarray(etas(buffer, state, jnp.asarray(returns, jnp.float32))) for name, returns in cases.items()}
    for name, returns in cases.items():
        model = ReferenceTrend(0.99)
        np.testing.assert_allclose(got[name], [model.report_return(one) for one in returns], atol=2e-5, err_msg=name)
        assert (got[name][:19] == np.float32(0.99)).all()  # fewer than 20 returns change nothing
    np.testing.assert_allclose(got["rising"], 0.99, atol=1e-6)
    np.testing.assert_allclose(got["falling"][19:], 1.0, atol=1e-6)
    np.testing.assert_allclose(got["flat"][19:], 0.995, atol=1e-6)  # half the emphasis, and no division by zero


def test_observing_changes_nothing_for_samplers_that_do_not_ask():
    for sampler in (
        jb.Uniform(),
        jb.Prioritized(),
        jb.Recent(),
        jb.LastN(2),
        jb.Combined(jb.Recent(), (jb.Uniform(),), (0.5,)),
    ):
        buffer, state = number_buffer(4, sampler=sampler)
        jax.tree.map(np.testing.assert_array_equal, buffer.report_return(state, 3.0), state)


def test_an_adaptive_sampler_uses_the_eta_of_its_state():
    buffer, state = filled(jb.Recent(eta=0.5, c_min=1.0, adaptive=True), 8, chunk=8)
    assert positions(buffer, state, 0.9) == {7}
    for step in range(20):
        state = helpers.report_return(buffer, state, -float(step))
    assert positions(buffer, state, 0.9) == set(range(8))


@pytest.mark.parametrize("options", [{"eta": 1.1}, {"eta": -0.1}, {"c_min": -1}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=f"Recent\\({next(iter(options))}="):
        jb.Recent(**options)


@jax.jit
def drawn_and_reduced(tree, key, begins, ends):
    return segment_tree.draw_ranges(tree, key, 5_000, begins, ends), segment_tree.reduce_ranges(tree, begins, ends)


def test_draws_inside_ranges_of_a_deep_tree():
    """Five levels, so that numbers are drawn afresh on the way down; also empty ranges and zero leaves."""
    rng = np.random.default_rng(0)
    leaf = rng.gamma(0.5, size=5_000).astype(np.float32) * (rng.random(5_000) < 0.8)
    tree = segment_tree.from_leaves(jnp.asarray(leaf))
    for begins, ends in (
        [(4_000, 0), (5_000, 777)],
        [(13, 13), (4_999, 13)],
        [(700, 2_000), (701, 2_003)],
        [(5, 9), (5, 8)],
    ):
        (slots, mass, summary), reduced = drawn_and_reduced(tree, jax.random.key(1), jnp.array(begins), jnp.array(ends))
        inside = np.zeros(5_000, bool)
        for begin, end in zip(begins, ends, strict=True):
            inside[begin:end] = True
        chosen = np.where(inside, leaf, 0)
        for one in (summary, reduced):
            np.testing.assert_allclose(one.total, chosen.sum(), rtol=1e-5)
            assert float(one.least) == min(chosen[chosen > 0], default=np.inf)
            assert float(one.largest) == chosen.max()
        np.testing.assert_array_equal(mass, chosen[np.asarray(slots)] if inside.any() else 0)
        if chosen.sum() > 0:
            blocks = np.add.reduceat(chosen, np.arange(0, 5_000, 50))
            assert_frequencies(np.bincount(np.asarray(slots) // 50, minlength=100), blocks)
