"""Uniform draws: the right starts, equally often, and never twice where that is promised."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import number_buffer, scalars

import jaxrl_buffers as jb
from jaxrl_buffers import host
from jaxrl_buffers._random.integers import permute, round_keys

draw_many = jax.jit(
    jax.vmap(jb.ReplayBuffer.sample, in_axes=(None, None, 0, None)), static_argnames=("batch_size",), static_argnums=3
)


def filled(length, num_rows, num_envs=1, **options):
    buffer, state = number_buffer(length, num_envs, **options)
    for begin in range(0, num_rows, length):
        state = helpers.add(buffer, state, scalars(range(begin, min(begin + length, num_rows)), num_envs))
    return buffer, state


def uneven(view, method="independent", balanced=False):
    """Environments that hold 2, 5 and 1 rows of a ring of 5."""
    buffer, state = number_buffer(5, 3, view=view, sampler=jb.Uniform(method, balanced), lockstep=False)
    counts = np.array([2, 8, 1])
    state = helpers.add(buffer, state, scalars(range(5), 3), mask=np.arange(5)[:, None] < counts[None])
    state = helpers.add(buffer, state, scalars(range(5, 8), 3), mask=np.arange(5, 8)[:, None] < counts[None])
    return buffer, state


def drawn_starts(buffer, state, num_keys, batch_size):
    """Return the `(env, position)` of many batches as `[num_keys, batch_size]` arrays, and their validity."""
    samples = draw_many(buffer, state, jax.random.split(jax.random.key(3), num_keys), batch_size)
    return np.asarray(samples.handle.env), np.asarray(samples.handle.position), np.asarray(samples.weights) > 0


def chi_square(counts):
    expected = counts.sum() / counts.size
    return ((counts - expected) ** 2 / expected).sum()


def assert_uniform(counts):
    """|chi-square - degrees of freedom| within five standard deviations."""
    freedom = counts.size - 1
    assert chi_square(counts) < freedom + 5 * np.sqrt(2 * freedom) + 5


@pytest.mark.parametrize("method", ["independent", "stratified", "distinct"])
def test_every_stored_slot_is_equally_likely(method):
    buffer, state = filled(10, 13, num_envs=3, sampler=jb.Uniform(method))
    partly, partly_state = filled(10, 7, num_envs=3, sampler=jb.Uniform(method))
    for case, case_state, rows in ((buffer, state, range(3, 13)), (partly, partly_state, range(7))):
        env, position, valid = drawn_starts(case, case_state, 6250, 16)
        assert valid.all()
        assert set(position.ravel().tolist()) == set(rows)
        counts = np.zeros((len(rows), 3))
        np.add.at(counts, (position - rows[0], env), 1)
        assert counts.sum() == 100_000
        assert_uniform(counts.ravel())
        repeats = sum(len(set(zip(e, p, strict=True))) < 16 for e, p in zip(env, position, strict=True))
        assert (repeats > 0) == (method == "independent")  # strata do not overlap either


@pytest.mark.parametrize("method", ["independent", "stratified", "distinct"])
def test_uneven_environments_count_by_their_starts(method):
    buffer, state = uneven(jb.Sequence(2), method)
    env, position, _ = drawn_starts(buffer, state, 20_000, 5)
    starts, counts = np.unique(np.stack([env, position], -1).reshape(-1, 2), axis=0, return_counts=True)
    assert starts.tolist() == [[0, 0], [1, 3], [1, 4], [1, 5], [1, 6]]
    assert_uniform(counts)


@pytest.mark.parametrize("method", ["independent", "stratified", "distinct"])
@pytest.mark.parametrize("lockstep", [True, False])
def test_sequences_start_at_every_period(method, lockstep):
    """Of a ring of 9 rows that hold 5..13, and, with cursors of their own, another one that holds 0..4."""
    view = jb.Sequence(2, period=3)
    buffer, state = number_buffer(9, 2, view=view, sampler=jb.Uniform(method), lockstep=lockstep)
    mask = None if lockstep else np.array([[True, True]] * 5 + [[True, False]] * 2)
    for begin in (0, 7):
        state = helpers.add(buffer, state, scalars(range(begin, begin + 7), 2), mask=mask)
        mask = None if lockstep else np.array([[True, False]] * 7)
    expected = [[0, 6], [0, 9], [0, 12], *([[1, 6], [1, 9], [1, 12]] if lockstep else [[1, 0], [1, 3]])]
    env, position, valid = drawn_starts(buffer, state, 5_000, 5)
    assert valid.all()
    starts, counts = np.unique(np.stack([env, position], -1).reshape(-1, 2), axis=0, return_counts=True)
    assert starts.tolist() == expected
    assert int(buffer.num_valid(state)) == len(expected)
    if method != "independent":  # five of five or six
        counts = counts[counts < 5_000]
    if counts.size:
        assert_uniform(counts)


@pytest.mark.parametrize("method", ["independent", "stratified", "distinct"])
def test_balanced_environments_get_equal_shares_in_order(method):
    buffer, state = uneven(jb.Sequence(1), method, balanced=True)
    env, position, valid = drawn_starts(buffer, state, 20_000, 8)
    assert ((env[:, :6] == np.array([[0, 1, 2, 0, 1, 2]])) | ~valid[:, :6]).all()
    if method != "distinct":
        assert valid.all()
        assert (env[:, 6] != env[:, 7]).all()
        assert_uniform(np.bincount(env[:, 6:].ravel()))
    for number, rows in enumerate([range(2), range(3, 8), range(1)]):
        chosen = position[(env == number) & valid]
        assert set(chosen.tolist()) == set(rows)
        assert_uniform(np.bincount(chosen - rows[0], minlength=len(rows)))
    if method == "distinct":  # environment 2 holds one row only
        assert (valid & (env == 2)).sum(axis=1).max() == 1


def test_starts_of_sequences():
    buffer, state = filled(8, 6, view=jb.Sequence(2))
    _, position, _ = drawn_starts(buffer, state, 200, 16)
    assert set(position.ravel().tolist()) == set(range(5))
    batch = helpers.sample(buffer, state, jax.random.key(0), batch_size=32).batch
    assert (batch[:, 1] == batch[:, 0] + 1).all()
    buffer, state = number_buffer(4, 8, view=jb.Sequence(2), sampler=jb.Uniform("stratified", balanced=True))
    state = helpers.add(buffer, state, scalars([0], 8))
    with pytest.raises(ValueError, match="needs at least 1 legal starts, but 0 are stored"):
        host.sample(buffer, state, jax.random.key(0), 8)
    state = helpers.add(buffer, state, scalars([1], 8))
    for batch_size in (8, 13, 128):
        env = host.sample(buffer, state, jax.random.key(0), batch_size).handle.env
        assert env[: batch_size // 8 * 8].tolist() == list(range(8)) * (batch_size // 8)


def test_balanced_draws_on_the_host_need_a_start_in_every_environment():
    buffer, state = number_buffer(4, 3, sampler=jb.Recent(jb.Uniform(balanced=True)), lockstep=False)
    state = helpers.add(buffer, state, scalars([0], 2), env_ids=np.array([0, 2]))
    with pytest.raises(ValueError, match=r"every environment alike, but \[1\] hold no legal start; add rows to them"):
        host.sample(buffer, state, jax.random.key(0), 2)
    unbalanced = buffer.replace(sampler=jb.Uniform())
    assert (host.sample(unbalanced, state, jax.random.key(0), 2).handle.env != 1).all()
    state = helpers.add(buffer, state, scalars([0], 1), env_ids=np.array([1]))
    assert host.sample(buffer, state, jax.random.key(0), 3).handle.env.tolist() == [0, 1, 2]


def test_as_many_strata_as_starts_draw_each_once():
    buffer, state = filled(10, 13, num_envs=3, sampler=jb.Uniform("stratified"))
    env, position, _ = drawn_starts(buffer, state, 50, 30)
    slots = np.sort((position - 3) * 3 + env, axis=1)
    assert (slots == np.arange(30)).all()


@pytest.mark.parametrize("balanced", [False, True])
def test_more_strata_than_starts_draw_each_equally_often(balanced):
    buffer, state = filled(10, 3, num_envs=2, sampler=jb.Uniform("stratified", balanced))
    env, position, _ = drawn_starts(buffer, state, 20, 32)
    for batch in position * 2 + env:
        assert sorted(np.bincount(batch, minlength=6).tolist()) == [5, 5, 5, 5, 6, 6]


def test_stratified_draws_of_a_million_do_not_repeat():
    """float32 strata would repeat some 2 % of them."""
    buffer, state = number_buffer(2**17, 8, sampler=jb.Uniform("stratified"))
    state = state._replace(storage=state.storage._replace(head=jnp.int32(2**17 + 5), size=jnp.int32(2**17)))
    handle = helpers.sample(buffer, state, jax.random.key(0), batch_size=2**20).handle
    assert np.unique(np.asarray(handle.position) * 8 + np.asarray(handle.env)).size == 2**20


def test_distinct_masks_what_is_not_there():
    buffer, state = filled(10, 3, num_envs=2, sampler=jb.Uniform("distinct"), view=jb.Sequence(1))
    sample = helpers.sample(buffer, state, jax.random.key(0), batch_size=9)
    assert sample.weights.tolist() == [1] * 6 + [0] * 3
    assert len({*zip(sample.handle.env.tolist(), sample.handle.position.tolist(), strict=True)} - {(0, -1)}) == 6
    assert (sample.handle.position[6:] == -1).all()  # handles to nothing


def test_an_empty_buffer_gives_nothing():
    for name in ("independent", "stratified", "distinct"):
        buffer = jb.uniform(4, method=name)
        state = buffer.init(helpers.EXAMPLE)
        sample = helpers.sample(buffer, state, jax.random.key(0), batch_size=3)
        assert sample.weights.tolist() == [0, 0, 0]
        assert not sample.batch.mask.any()
        assert not buffer.can_sample(state)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
def test_permutations_are_bijections_with_uniform_pairs(size):
    keys = jax.random.split(jax.random.key(size), 40_000)

    @jax.jit
    @jax.vmap
    def shuffle(key):
        return permute(round_keys(key, 1), jnp.arange(size), jnp.int32(size))

    shuffled = np.asarray(shuffle(keys))
    assert (np.sort(shuffled, axis=1) == np.arange(size)).all()
    if size > 1:
        pairs = np.bincount(shuffled[:, 0] * size + shuffled[:, 1], minlength=size**2).reshape(size, size)
        assert_uniform(pairs[~np.eye(size, dtype=bool)])
    if size == 3:
        assert_uniform(np.unique(shuffled, axis=0, return_counts=True)[1])
    assert_uniform(np.bincount(shuffled[:, -1], minlength=size))


def test_all_options_are_named_and_progress_begins_at_zero():
    parameters = inspect.signature(jb.ReplayBuffer).parameters.values()
    assert [option.name for option in parameters if option.kind is not option.KEYWORD_ONLY] == ["sampler", "view"]
    for method in (jb.ReplayBuffer.sample, jb.ReplayBuffer.stats):
        assert inspect.signature(method).parameters["progress"].default == 0
