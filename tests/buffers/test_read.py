"""Samples of given handles: as `sample` would have drawn them, and nothing where there is no start."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import EXAMPLE, number_buffer, random_transition, scalars, stack, transition
from support.registry import ALL

import jaxrl_buffers as jb

LENGTH, NUM_ENVS, BATCH = 8, 2, 10


def filled(buffer, num_rows=14, seed=0):
    """Return a state after random rows were added one by one."""
    rng, state = np.random.default_rng(seed), buffer.init(EXAMPLE)
    add = jax.jit(type(buffer).add, static_argnames="part") if isinstance(buffer, jb.Mixture) else helpers.add
    for number in range(num_rows):
        row = stack([[random_transition(rng, 10 * number + env) for env in range(NUM_ENVS)]])
        for options in ({"part": 0}, {"part": 1}) if isinstance(buffer, jb.Mixture) else ({},):
            state = add(buffer, state, row, **options)
    return state


@pytest.mark.parametrize(
    "name",
    ["balanced", "prioritized_sequences", "prioritized_per_env", "within_episode", "recent_prioritized", "mixture"],
)
def test_what_was_sampled_is_read_again(name):
    buffer = ALL[name](LENGTH, NUM_ENVS)
    state = filled(buffer)
    first = buffer.sample(state, jax.random.key(0), BATCH)
    state = buffer.update_priorities(state, first.handle, jnp.linspace(0.1, 2.0, BATCH))
    drawn = buffer.sample(state, jax.random.key(1), BATCH, 0.5)
    assert np.asarray(drawn.weights).min() > 0
    read = buffer.read(state, drawn.handle, progress=0.5)
    chex.assert_trees_all_equal(read._replace(weights=0), drawn._replace(weights=0))
    np.testing.assert_allclose(read.weights, drawn.weights, rtol=1e-6)
    order = np.random.default_rng(0).permutation(BATCH)
    shuffled = buffer.read(state, jax.tree.map(lambda leaf: leaf[order], drawn.handle), progress=0.5)
    chex.assert_trees_all_close(shuffled, jax.tree.map(lambda leaf: leaf[order], read), rtol=1e-6)


@pytest.mark.parametrize("sampler", [jb.Uniform(), jb.Prioritized()])
def test_nothing_is_read_where_there_is_no_start(sampler):
    """Overwritten, too near the newest row, not written yet, of no environment: neither mask nor weight nor handle."""
    buffer = jb.ReplayBuffer(sampler, jb.Sequence(2), length=4)
    state = buffer.init(EXAMPLE)
    for number in range(6):
        state = helpers.add(buffer, state, stack([[transition(number)]]))
    handle = jb.Handle(jnp.array([0, 0, 0, 0, 0, 1, -1]), jnp.array([4, 1, 5, 6, -1, 4, 4]))
    sample = buffer.read(state, handle)
    assert sample.weights.tolist() == [1, 0, 0, 0, 0, 0, 0]
    assert sample.batch.mask.tolist() == [[True, True], *[[False, False]] * 6]
    assert sample.handle.position.tolist() == [4, *[-1] * 6]
    assert sample.batch.action[0].tolist() == [4, 5]


def test_a_start_that_the_sampler_leaves_out_is_read_with_weight_zero():
    buffer = jb.ReplayBuffer(jb.LastN(2.0), length=6)
    state = buffer.init(EXAMPLE)
    state = helpers.add(buffer, state, stack([[transition(number)] for number in range(6)]))
    sample = buffer.read(state, jb.Handle(jnp.zeros(3, int), jnp.array([1, 4, 5])))
    assert sample.weights.tolist() == [0, 1, 1]
    assert sample.batch.mask.tolist() == [True] * 3
    assert sample.batch.action.tolist() == [1, 4, 5]


def test_random_views_need_a_key():
    buffer = ALL["hindsight"](LENGTH, NUM_ENVS)
    state = filled(buffer)
    drawn = buffer.sample(state, jax.random.key(0), BATCH)
    with pytest.raises(ValueError, match=r"read\(\) needs a `key`, because Hindsight is random"):
        buffer.read(state, drawn.handle)
    read = buffer.read(state, drawn.handle, jax.random.key(1))
    np.testing.assert_array_equal(read.batch.action, drawn.batch.action)
    np.testing.assert_allclose(read.weights, drawn.weights, rtol=1e-6)


def test_unknown_sources_of_a_mixture_and_bad_handles():
    buffer = jb.Mixture((jb.uniform(4), jb.uniform(4)))
    state = buffer.add(buffer.init(EXAMPLE), stack([[transition(3)]]))
    one = jnp.zeros(1, jnp.int32)
    for source, weight in ((0, 1), (1, 0), (7, 0)):
        sample = buffer.read(state, jb.MixtureHandle(one + source, one, one))
        assert sample.weights.tolist() == sample.batch.mask.tolist() == [weight]
    with pytest.raises(ValueError, match=r"`handle\.env` of shape \(2,\); \(1,\) is needed"):
        buffer.buffers[0].read(state.parts[0], jb.Handle(jnp.zeros(2, int), one))


def test_a_replaced_view_reads_only_its_own_starts():
    """Priorities know the starts of the view that rows were added under; the newest row starts no sequence of two."""
    buffer, state = number_buffer(4, 2, sampler=jb.Prioritized(), lockstep=False)
    state = helpers.add(buffer, state, scalars(range(6)[:4], 2))
    state = helpers.add(buffer, state, scalars([4, 5], 2))
    pairs = buffer.replace(view=jb.Sequence(2))
    keys = jax.random.split(jax.random.key(0), 50)

    def draw(state):
        sample = jax.jit(jax.vmap(lambda key: pairs.sample(state, key, 8)))(keys)
        is_drawn = np.asarray(sample.weights) > 0
        first, second = np.asarray(sample.batch)[is_drawn].T
        np.testing.assert_array_equal(second, first + 1)  # none across the write head
        np.testing.assert_array_equal(np.asarray(sample.handle.position) >= 0, is_drawn)
        return np.bincount(first.astype(int), minlength=6), is_drawn.mean()

    counts, share = draw(state)
    helpers.assert_frequencies(counts, [0, 0, 1, 1, 1, 0])
    assert share == pytest.approx(0.75, abs=0.1)  # what was drawn from the newest rows is masked
    counts, share = draw(pairs.reprioritize(state))
    helpers.assert_frequencies(counts, [0, 0, 1, 1, 1, 0])
    assert share == 1
    assert pairs.stats(state)["drawn_age_min"] == 1


def test_starts_of_a_replaced_view_are_drawn_once_priorities_are_made_anew():
    buffer, state = number_buffer(4, view=jb.Sequence(4), sampler=jb.Prioritized(alpha=1.0, epsilon=0.0))
    state = helpers.add(buffer, state, scalars(range(4)))
    state = helpers.update_priorities(buffer, state, jb.Handle(jnp.zeros(1, int), jnp.zeros(1, int)), jnp.full(1, 3.0))
    single = buffer.replace(view=jb.Sequence(1))
    assert helpers.leaves(state).tolist() == [3, 0, 0, 0]
    assert helpers.leaves(single.reprioritize(state)).tolist() == [3, 1, 1, 1]
    assert helpers.leaves(buffer.reprioritize(state)).tolist() == [3, 0, 0, 0]
