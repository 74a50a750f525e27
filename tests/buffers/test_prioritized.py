"""Prioritized draws: distribution, weights, what new and overwritten rows get, and what cannot be broken."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import number_buffer, scalars
from support.priorities import RAW, draw_counts, with_priorities

import jaxrl_buffers as jb
from jaxrl_buffers import segment_tree
from jaxrl_buffers.samplers._marking import mark
from jaxrl_buffers.storage import ring
from jaxrl_buffers.types import MarksRows

FAN_OUTS = [8, 128]  # a narrow tree and a wide one


def handles(positions, env=0):
    return jb.Handle(jnp.full(len(positions), env), jnp.asarray(positions))


def test_priorities_are_raised_to_alpha():
    _, state = with_priorities([2.0], alpha=0.6, epsilon=0.1)
    np.testing.assert_allclose(helpers.leaves(state), [1.56074], rtol=1e-5)


@pytest.mark.parametrize("sampler", [jb.Prioritized(**RAW), jb.Recent(jb.Prioritized(**RAW), c_min=100.0)])
@pytest.mark.parametrize("batch_size", [2, 60])
def test_rows_whose_priorities_are_all_zero_are_drawn_alike(sampler, batch_size):
    """Equal parts of so small a mass would be too small for a float32."""
    buffer, state = number_buffer(6, sampler=sampler)
    state = helpers.add(buffer, state, scalars(range(6)), priorities=jnp.zeros((6, 1)))
    keys = jax.random.split(jax.random.key(0), 600 // batch_size)
    sample = jax.jit(jax.vmap(lambda key: buffer.sample(state, key, batch_size)))(keys)
    helpers.assert_frequencies(np.bincount(np.ravel(sample.batch).astype(int), minlength=6), np.ones(6))
    np.testing.assert_allclose(sample.weights, 1, rtol=1e-6)


@pytest.mark.parametrize("stratified", [True, False])
def test_frequencies_follow_the_priorities(stratified):
    priorities = np.random.default_rng(0).gamma(0.5, size=50) + 0.01
    buffer, state = with_priorities(priorities, stratified=stratified, **RAW)
    counts, _ = draw_counts(buffer, state, 100_000)
    probability = priorities / priorities.sum()
    z = (np.array(counts) - 1e5 * probability) / np.sqrt(1e5 * probability * (1 - probability))
    assert np.abs(z).max() < 4


def test_draws_from_many_ranges_do_not_wear_out_their_random_numbers():
    """Of 2^16 environments with five starts each, by places of which a float32 could name 51 in each start."""
    begins = jnp.arange(0, 8 * 2**16, 8, dtype=jnp.int32)

    @jax.jit
    def draw(key):
        tree = segment_tree.from_leaves(jnp.ones(8 * 2**16))
        return segment_tree.draw_ranges(tree, key, 20_000, begins, begins + 5, stratified=False)[0]

    indices = draw(jax.random.key(0))
    helpers.assert_frequencies(np.bincount(np.asarray(indices) % 8), np.ones(5))
    assert np.unique(np.asarray(indices) // 8).size > 16_000


def test_alpha_zero_is_uniform_whatever_the_priorities():
    buffer, state = with_priorities([1, 2, 3, 4], alpha=0.0, epsilon=0.0)
    before, weights = draw_counts(buffer, state, 1000)
    assert before == [250] * 4
    assert set(weights.values()) == {1.0}
    state = helpers.update_priorities(buffer, state, handles([0, 1]), jnp.array([0.0, 99.0]))
    assert draw_counts(buffer, state, 1000)[0] == before


def test_an_overwritten_slot_gets_the_priority_of_new_rows():
    buffer, state = with_priorities([5, 0.1, 2, 3], **RAW)
    state = helpers.add(buffer, state, scalars([4]))
    assert helpers.leaves(state)[0] == 5
    state = helpers.add(buffer, state, scalars([5, 6]))
    assert helpers.leaves(state).tolist() == [5, 5, 5, 3]


def test_sequence_priorities_persist_for_several_environments():
    view = jb.Sequence(2)
    buffer, state = number_buffer(6, 3, view=view, sampler=jb.Prioritized(eta=0.9, **RAW))
    state = helpers.add(buffer, state, scalars(range(5), 3))
    handle = jb.Handle(jnp.array([0, 1, 2]), jnp.array([0, 2, 3]))
    state = helpers.update_priorities(buffer, state, handle, jnp.array([[1.0, 3.0], [2.0, 2.0], [0.0, 8.0]]))
    leaves = helpers.leaves(state).reshape(6, 3)
    np.testing.assert_allclose([leaves[0, 0], leaves[2, 1], leaves[3, 2]], [2.9, 2.0, 7.6], rtol=1e-6)
    mask = jnp.array([[True, False], [True, True], [False, True]])
    priorities = jnp.array([[1.0, 3.0], [2.0, 4.0], [np.nan, 8.0]])
    state = helpers.update_priorities(buffer, state, handle, priorities, mask)
    leaves = helpers.leaves(state).reshape(6, 3)
    np.testing.assert_allclose([leaves[0, 0], leaves[2, 1], leaves[3, 2]], [1.0, 3.9, 8.0], rtol=1e-6)
    state = helpers.update_priorities(buffer, state, handle, priorities, jnp.zeros((3, 2), bool))
    leaves = helpers.leaves(state).reshape(6, 3)  # nothing to learn from: as unlikely as can be
    assert 0 < max(leaves[0, 0], leaves[2, 1], leaves[3, 2]) < 1e-30


@pytest.mark.parametrize("fan_out", FAN_OUTS)
def test_the_last_duplicate_wins(fan_out):
    buffer, state = with_priorities([1, 1, 1, 1], fan_out=fan_out, **RAW)
    state = helpers.update_priorities(buffer, state, handles([2, 0, 2, 2, 0]), jnp.array([5.0, 1, 6, 7, 3]))
    assert helpers.leaves(state).tolist() == [3, 1, 7, 1]
    assert float(segment_tree.reduce(state.sampler.tree).total) == 12
    assert state.sampler.raw.tolist() == helpers.leaves(state).tolist()


def test_new_rows_get_the_largest_leaf_or_the_initial_priority():
    buffer, state = number_buffer(4, sampler=jb.Prioritized(initial=2.0, **RAW))
    state = helpers.add(buffer, state, scalars([0]))
    assert helpers.leaves(state)[0] == 2
    state = helpers.update_priorities(buffer, state, handles([0]), jnp.array([3.0]))
    state = helpers.add(buffer, state, scalars([1]))
    assert helpers.leaves(state)[1] == 3
    state = helpers.update_priorities(buffer, state, handles([0, 1]), jnp.array([0.5, 0.25]))
    state = helpers.add(buffer, state, scalars([2]))
    assert helpers.leaves(state).tolist() == [0.5, 0.25, 2, 0]


def test_handles_of_what_was_not_drawn_never_become_live():
    buffer, state = number_buffer(4, sampler=jb.Prioritized(**RAW))
    nothing = helpers.sample(buffer, state, jax.random.key(0), batch_size=2)
    state = helpers.add(buffer, state, scalars([0, 1]))
    chex.assert_trees_all_equal(helpers.update_priorities(buffer, state, nothing.handle, jnp.full(2, 77.0)), state)


def test_outdated_positions_are_ignored():
    buffer, state = with_priorities([1, 2, 3, 4], **RAW)
    state = helpers.add(buffer, state, scalars([4, 5]))
    updated = helpers.update_priorities(buffer, state, handles([0, 1, 6, -1]), jnp.full(4, 50.0))
    chex.assert_trees_all_equal(updated, state)
    outside = helpers.update_priorities(buffer, state, jb.Handle(jnp.array([7, -1]), jnp.array([3, 3])), jnp.ones(2))
    chex.assert_trees_all_equal(outside, state)


def test_short_environments_are_never_drawn_before_their_first_row():
    buffer, state = number_buffer(4, 3, view=jb.Sequence(3), sampler=jb.Prioritized(), lockstep=False)
    state = helpers.add(buffer, state, scalars([0, 1], 3))
    state = helpers.add(buffer, state, scalars([2], 1), env_ids=np.array([1]))
    sample = helpers.sample(buffer, state, jax.random.key(0), batch_size=64)
    assert set(sample.handle.env.tolist()) == {1}
    assert set(sample.handle.position.tolist()) == {0}
    assert sample.batch.tolist() == [[0, 1, 2]] * 64


def test_clear_clears_the_priorities_too():
    buffer, state = number_buffer(4, 3, sampler=jb.Prioritized(), lockstep=False)
    state = helpers.add(buffer, state, scalars(range(6)[:4], 3))
    some = helpers.clear(buffer, state, jnp.array([0, 2]))
    assert (helpers.leaves(some).reshape(3, 4) > 0).sum(axis=1).tolist() == [0, 4, 0]
    assert set(helpers.sample(buffer, some, jax.random.key(0), batch_size=32).handle.env.tolist()) == {1}
    everything = helpers.clear(buffer, state)
    assert helpers.leaves(everything).sum() == 0
    assert not buffer.can_sample(everything)
    assert helpers.sample(buffer, everything, jax.random.key(0), batch_size=3).weights.tolist() == [0, 0, 0]


def test_a_start_that_is_not_legal_cannot_regain_mass():
    """Stale updates, in the order sample, add, update: no broken sequence is ever drawn."""
    buffer, state = number_buffer(8, 2, view=jb.Sequence(4), sampler=jb.Prioritized())
    pending = []
    rng = np.random.default_rng(0)
    state = helpers.add(buffer, state, scalars(range(8), 2))
    for step in range(8, 60):
        pending.append(helpers.sample(buffer, state, jax.random.key(step), batch_size=16).handle)
        state = helpers.add(buffer, state, scalars([step], 2))
        if step == 40:
            state = helpers.clear(buffer, state)
            state = helpers.add(buffer, state, scalars(range(100, 106), 2))
        stale = pending[rng.integers(len(pending))]
        state = helpers.update_priorities(buffer, state, stale, rng.gamma(1.0, size=16))
        if buffer.can_sample(state) and step != 41:
            rows = np.asarray(helpers.sample(buffer, state, jax.random.key(step), batch_size=64).batch)
            steps = np.diff(rows, axis=1)
            assert ((steps == 1) | (rows[:, 1:] == 41)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0])
@pytest.mark.parametrize("fan_out", FAN_OUTS)
def test_bad_priorities_leave_the_others_alone(bad, fan_out):
    buffer, state = with_priorities([1, 2, 3, 4], fan_out=fan_out, **RAW)
    good = helpers.update_priorities(buffer, state, handles([3]), jnp.array([9.0]))
    mixed = helpers.update_priorities(buffer, state, handles([1, 3, 2]), jnp.array([bad, 9.0, bad]))
    chex.assert_trees_all_equal(mixed, good)
    given = helpers.add(buffer, state, scalars([4]), priorities=jnp.array([[bad]]))
    chex.assert_trees_all_equal(given, helpers.add(buffer, state, scalars([4])))


def test_huge_priorities_do_not_overflow_the_sum():
    buffer, state = with_priorities([3e38, 3e38, 1.0, 1.0], **RAW)
    assert np.isfinite(segment_tree.reduce(state.sampler.tree).total)
    assert draw_counts(buffer, state, 1000)[0] == [500, 500, 0, 0]


@pytest.mark.parametrize("fan_out", FAN_OUTS)
def test_reprioritize_applies_a_new_alpha_to_rows_written_under_any_other(fan_out):
    buffer, state = number_buffer(4, sampler=jb.Prioritized(alpha=0.5, epsilon=0.0, fan_out=fan_out))
    state = helpers.add(buffer, state, scalars([0, 1]), priorities=jnp.array([[4.0], [9.0]]))
    later = buffer.replace(sampler=buffer.sampler.replace(alpha=1.0))
    state = helpers.add(later, state, scalars([2]), priorities=jnp.array([[5.0]]))
    assert helpers.leaves(state).tolist() == [2, 3, 5, 0]
    state = later.reprioritize(state)
    np.testing.assert_allclose(helpers.leaves(state), [4, 9, 5, 0], rtol=1e-6)
    np.testing.assert_allclose(segment_tree.reduce(state.sampler.tree).total, 18, rtol=1e-6)
    default = buffer.reprioritize(helpers.add(later, state, scalars([3])))
    np.testing.assert_allclose(helpers.leaves(default), [2, 3, np.sqrt(5), 3], rtol=1e-6)


def test_given_priorities_count_for_starts_that_become_legal_at_once():
    buffer, state = number_buffer(8, view=jb.Sequence(2), sampler=jb.Prioritized(initial=1.0, **RAW))
    state = helpers.add(buffer, state, scalars([0, 1, 2]), priorities=jnp.array([[4.0], [7.0], [9.0]]))
    assert helpers.leaves(state).tolist() == [4, 7, 0, 0, 0, 0, 0, 0]
    state = helpers.add(buffer, state, scalars([3]))
    assert helpers.leaves(state)[:4].tolist() == [4, 7, 7, 0]


@pytest.mark.parametrize(
    ("is_recent", "lockstep", "fan_outs"), [(False, True, (4, 8, 32, 128)), (True, False, (8, 128))]
)
def test_the_fan_out_changes_no_batch_where_sums_are_exact(is_recent, lockstep, fan_outs):
    """Through adds that wrap, updates with duplicates, stale handles and drops: priorities are powers of two."""
    rng, states = np.random.default_rng(0), {}
    for fan_out in fan_outs:
        sampler = jb.Prioritized(fan_out=fan_out, **RAW)
        sampler = jb.Recent(sampler, eta=0.99, c_min=8.0) if is_recent else sampler
        states[fan_out] = number_buffer(50, 3, view=jb.Sequence(2), sampler=sampler, lockstep=lockstep)
    number = 0
    for step in range(12):
        num_rows = 17 if step % 2 else int(rng.choice([1, 17]))
        rows = scalars(range(number, number + num_rows), 3)
        number += num_rows
        given, updates = (2.0 ** rng.integers(-3, 4, shape) for shape in ((num_rows, 3), 40))
        samples = {}
        for fan_out, (buffer, state) in states.items():
            state = helpers.add(buffer, state, rows, priorities=given if step % 2 else None)
            if step == 8:
                state = helpers.drop_oldest(buffer, state, num_rows=5)
            samples[fan_out] = helpers.sample(buffer, state, jax.random.key(step), batch_size=40, progress=0.03)
            state = helpers.update_priorities(buffer, state, samples[fan_out].handle, updates)
            states[fan_out] = buffer, state
        for sample in samples.values():
            chex.assert_trees_all_equal(sample[:2], samples[8][:2])
            np.testing.assert_allclose(sample.weights, samples[8].weights, rtol=1e-6)
        for _, state in states.values():
            np.testing.assert_array_equal(helpers.leaves(state), helpers.leaves(states[8][1]))
    assert np.unique(samples[8].handle.position).size > 10


class Plain:
    """A sampler of a user's own, which knows of nothing but slots."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __getattr__(self, name):
        if name == "mark_rows":
            raise AttributeError(name)
        return getattr(self.sampler, name)


def test_rows_are_marked_alike_where_a_sampler_knows_of_slots_only():
    """In a wide tree, whose rows are else marked as a run: through wraps, with a lookahead, inside another sampler."""
    sampler = jb.Prioritized(fan_out=128, **RAW)
    assert isinstance(sampler, MarksRows)
    assert not isinstance(Plain(sampler), MarksRows)
    storage = ring.init(jax.ShapeDtypeStruct((), jnp.float32), 50, 3, lockstep=True)
    lookahead, env = 2, jnp.arange(3, dtype=jnp.int32)
    kinds = sampler, jb.LastN(100.0, sampler), jb.LastN(100.0, Plain(sampler))
    states = {kind: kind.init((50, 3)) for kind in kinds}
    for num_rows in (1, 30, 48, 7, 50):
        position = storage.head + jnp.arange(-lookahead, num_rows, dtype=jnp.int32)[:, None]
        storage = ring.write(storage, jnp.zeros((num_rows, 3)))
        window = jb.Window(jnp.int32(lookahead), storage.size)
        states = {kind: mark(kind, state, storage, window, position, env) for kind, state in states.items()}
        first, *others = states.values()
        for other in others:
            chex.assert_trees_all_equal(other, first)
