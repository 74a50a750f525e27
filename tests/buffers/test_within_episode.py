"""Sequences that lie in one episode: which starts there are, how often each is drawn, and what cannot be asked for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import assert_frequencies, every_slot, rewards_chunk

import jaxrl_buffers as jb
from jaxrl_buffers import host

# Rows 2 to 11 of twelve are stored; episodes are 0-1, 2-6, 7-8 and 9-11, the last of which goes on.
ENDS = [0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0]
FITTING = [2, 3, 4, 9]  # the starts of sequences of three
VIEW = jb.Sequence(3, within_episode=True)


def filled(sampler, view=VIEW, num_envs=1, **options):
    """Return a wrapped ring of ten rows; in a second environment no episode ends."""
    buffer = jb.ReplayBuffer(sampler, view, length=10, num_envs=num_envs, **options)
    chunk = rewards_chunk(np.zeros(12), truncated=ENDS)
    chunk = jax.tree.map(lambda leaf: jnp.concatenate([leaf, *[jnp.zeros_like(leaf)] * (num_envs - 1)], 1), chunk)
    state = buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk))
    for rows in (np.s_[:5], np.s_[5:12]):
        state = helpers.add(buffer, state, jax.tree.map(lambda leaf, rows=rows: leaf[rows], chunk))
    return buffer, state


def drawn(buffer, state, batch_size=12, num_batches=100):
    """Return the environments and positions of many batches, and their masks."""
    keys = jax.random.split(jax.random.key(0), num_batches)
    sample = jax.jit(jax.vmap(lambda key: buffer.sample(state, key, batch_size)))(keys)
    return *map(np.asarray, sample.handle), np.asarray(sample.batch.mask)


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize(
    "sampler",
    [jb.Uniform(), jb.Uniform("stratified"), jb.Prioritized(), jb.Prioritized(stratified=False)],
    ids=lambda sampler: f"{type(sampler).__name__}-{getattr(sampler, 'method', sampler)}"[:25],
)
def test_every_start_that_fits_is_equally_likely(sampler, lockstep):
    buffer, state = filled(sampler, num_envs=2, lockstep=lockstep)
    assert int(buffer.num_valid(state)) == 4 + 8
    env, position, mask = drawn(buffer, state)
    assert mask.all()  # no end inside
    assert_frequencies(np.bincount(position[env == 0], minlength=12), [row in FITTING for row in range(12)])
    assert_frequencies(np.bincount(position[env == 1], minlength=12), [2 <= row < 10 for row in range(12)])
    assert_frequencies(np.bincount(np.ravel(env)), [4, 8])


def test_each_is_drawn_once_where_no_start_is_drawn_twice():
    buffer, state = filled(jb.Uniform("distinct"))
    _, position, _ = drawn(buffer, state, batch_size=6, num_batches=3)
    np.testing.assert_array_equal(np.sort(position), [[-1, -1, *FITTING]] * 3)

    def step(carry, state, sample):
        return carry, state, sample.handle.position

    positions = jb.scan_epochs(step, 0, buffer, state, jax.random.key(0), batch_size=4, num_epochs=2)[2]
    positions = np.asarray(positions).reshape(2, -1)
    assert np.sort(positions)[:, -5:].tolist() == [[-1, *FITTING]] * 2


def test_balanced_draws_and_environments_without_a_start():
    buffer, state = filled(jb.Uniform(balanced=True), num_envs=2)
    env, position, _ = drawn(buffer, state, batch_size=6)
    np.testing.assert_array_equal((env == 0).sum(axis=1), 3)
    assert_frequencies(np.bincount(position[env == 0], minlength=12), [row in FITTING for row in range(12)])
    longer = jb.Sequence(6, within_episode=True)
    buffer, state = filled(jb.Uniform(balanced=True), view=longer, num_envs=2)
    with pytest.raises(ValueError, match=r"every environment alike, but \[0\] hold no legal start"):
        host.sample(buffer, state, jax.random.key(0), 2)
    sample = helpers.sample(buffer, state, jax.random.key(0), batch_size=4)
    assert sample.weights.tolist() == [0, 1, 0, 1]


def test_periods_burn_in_and_hindsight():
    buffer, state = filled(jb.Prioritized(), jb.Sequence(3, burn_in=1, period=2, within_episode=True))
    _, position, mask = drawn(buffer, state)
    assert set(np.ravel(position)) == {2, 4}
    assert (mask == [False, True, True]).all()
    view = jb.Hindsight(VIEW, achieved="next_obs", relabel=lambda row, goal: row._replace(obs=goal))
    _, position, mask = drawn(*filled(jb.Uniform(), view))
    assert set(np.ravel(position)) == {*FITTING}
    assert mask.all()


def test_a_break_and_forgotten_rows_leave_what_fits():
    buffer, state = filled(jb.Prioritized())
    state = buffer.mark_break(state)
    more = rewards_chunk(np.zeros(2))
    state = helpers.drop_oldest(buffer, helpers.add(buffer, state, more), num_rows=0)
    sample, legal = every_slot(buffer, state)
    assert sorted(np.asarray(sample.handle.position)[np.asarray(legal)].tolist()) == [4, 9]
    state = helpers.add(buffer, helpers.drop_oldest(buffer, state, num_rows=1), rewards_chunk(np.zeros(1)))
    sample, legal = every_slot(buffer, state)
    assert sorted(np.asarray(sample.handle.position)[np.asarray(legal)].tolist()) == [9, 12]
    assert int(buffer.num_valid(state)) == np.count_nonzero(helpers.leaves(state)) == 2
    assert int(buffer.num_valid(helpers.clear(buffer, state))) == 0


def test_without_any_start_there_is_nothing_to_sample():
    buffer, state = filled(jb.Uniform(), jb.Sequence(6, within_episode=True))
    assert not buffer.can_sample(state)
    assert helpers.sample(buffer, state, jax.random.key(0), batch_size=3).weights.tolist() == [0, 0, 0]


def test_counts_go_on_beyond_the_limit_of_their_numbers():
    buffer, state = filled(jb.Uniform("distinct"))
    index = state.storage.episodes
    most = np.iinfo(np.int32).max
    moved = index.fits._replace(before=index.fits.before + most - 5, total=index.fits.total + most - 5)
    late = state._replace(storage=state.storage._replace(episodes=index._replace(fits=moved)))
    more = rewards_chunk(np.zeros(4))
    one, other = (helpers.add(buffer, each, more) for each in (state, late))
    assert int(other.storage.episodes.fits.total[0]) < 0
    assert int(buffer.num_valid(one)) == int(buffer.num_valid(other)) == 5
    np.testing.assert_array_equal(*(drawn(buffer, each, 6, 3)[1] for each in (one, other)))


def test_what_cannot_be_asked_for():
    with pytest.raises(ValueError, match=r"episodes of fewer than 3 rows have no start.*without `within_episode`"):
        drawn(*filled(jb.Episodic()))
    with pytest.raises(ValueError, match="Sequence needs the field 'terminated'"):
        jb.ReplayBuffer(view=VIEW, length=10).init(jnp.float32(0))
    buffer, state = filled(jb.Uniform(), jb.Sequence(3))
    with pytest.raises(ValueError, match=r"were not counted in this state; make the state by init\(\)"):
        buffer.replace(view=VIEW).num_valid(state)


@pytest.mark.parametrize("sampler", [jb.Uniform(), jb.Prioritized()])
def test_a_longer_view_on_a_live_state_reads_only_what_fits(sampler):
    buffer, state = filled(sampler)
    longer = buffer.replace(view=jb.Sequence(4, within_episode=True))
    _, position, mask = drawn(longer, state)
    assert set(np.ravel(position)) == {-1, 2, 3}
    np.testing.assert_array_equal(mask.all(axis=2), position >= 0)
