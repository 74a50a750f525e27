"""N-step transitions and sequences: hand-worked numbers, episode ends, the write head."""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import every_slot, number_buffer, rewards_chunk, scalars

import jaxrl_buffers as jb


def n_step_batch(n, gamma, rewards, terminated=None, truncated=None, length=None):
    """Return the n-step view of each stored row, oldest first."""
    buffer = jb.n_step(length or len(rewards), n=n, gamma=gamma)
    chunk = rewards_chunk(rewards, terminated, truncated)
    state = buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk))
    for row in range(len(rewards)):
        state = helpers.add(buffer, state, jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], chunk))
    sample, legal = every_slot(buffer, state)
    assert legal.all()
    order = np.argsort(np.asarray(sample.handle.position))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[order], sample.batch)


def test_one_step_is_the_plain_transition():
    rewards, ends = [1.5, -2.0, 3.0], [False, True, False]
    batch = n_step_batch(1, 0.9, rewards, terminated=ends)
    assert batch.obs.tolist() == [0, 1, 2]
    assert batch.reward.tolist() == rewards
    np.testing.assert_allclose(batch.discount, [0.9, 0, 0.9])
    assert batch.next_obs.tolist() == [1, 2, 3]


def test_three_steps_without_an_end():
    batch = n_step_batch(3, 0.9, [1] * 5)
    np.testing.assert_allclose(batch.reward[:3], 2.71, rtol=1e-6)
    np.testing.assert_allclose(batch.discount[:3], 0.729, rtol=1e-6)
    assert batch.next_obs.tolist() == [3, 4, 5, 5, 5]


def test_windows_shorten_at_the_write_head():
    batch = n_step_batch(3, 0.9, [1] * 5)
    np.testing.assert_allclose(batch.reward[3:], [1.9, 1.0], rtol=1e-6)
    np.testing.assert_allclose(batch.discount[3:], [0.81, 0.9], rtol=1e-6)


def test_a_termination_inside_the_window_ends_it():
    batch = n_step_batch(3, 0.9, [1] * 5, terminated=[False, True, False, False, False])
    np.testing.assert_allclose(batch.reward[:3], [1.9, 1.0, 2.71], rtol=1e-6)
    np.testing.assert_allclose(batch.discount[:3], [0, 0, 0.729], rtol=1e-6)


def test_a_truncation_inside_the_window_bootstraps_from_its_own_episode():
    batch = n_step_batch(3, 0.9, [1] * 5, truncated=[False, True, False, False, False])
    np.testing.assert_allclose(batch.reward[:3], [1.9, 1.0, 2.71], rtol=1e-6)
    np.testing.assert_allclose(batch.discount[:3], [0.81, 0.9, 0.729], rtol=1e-6)
    assert batch.next_obs[:3].tolist() == [2, 2, 5]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_no_window_crosses_the_write_head_after_the_wrap(n):
    """Rewards are powers of two, so a sum names its rows."""
    count, length = 15, 6
    batch = n_step_batch(n, 1.0, 2.0 ** np.arange(count), length=length)
    for start, total in zip(batch.action.tolist(), batch.reward.tolist(), strict=True):
        assert total == sum(2.0**row for row in range(start, min(start + n, count)))
    assert batch.action.tolist() == list(range(count - length, count))


def test_an_end_on_the_last_step_of_the_window():
    batch = n_step_batch(2, 0.5, [1, 1, 1, 1], terminated=[0, 1, 0, 0], truncated=[0, 1, 0, 1])
    np.testing.assert_allclose(batch.discount, [0, 0, 0.25, 0.5])  # both flags at once: the task has ended


def test_vector_rewards_and_low_precision():
    buffer = jb.n_step(4, n=2, gamma=0.5)
    chunk = rewards_chunk([0, 0, 0])._replace(reward=jnp.ones((3, 1, 2), jnp.bfloat16) * 3)
    state = buffer.add(buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk)), chunk)
    batch = buffer.sample(state, jax.random.key(0), 16).batch
    assert batch.reward.dtype == jnp.float32
    assert batch.reward.shape == (16, 2)
    assert set(np.asarray(batch.reward).ravel().tolist()) == {4.5, 3.0}


def test_rewards_behind_an_end_may_be_anything():
    batch = n_step_batch(2, 0.9, [1.0, np.nan, 2.0], terminated=[True, False, False])
    assert batch.reward[0] == 1.0
    assert np.isnan(batch.reward[1])


def test_flags_must_be_single():
    example = jb.Transition(0.0, 0, 0.0, np.zeros(1, bool), False, 0.0)
    for buffer in (jb.uniform(4), jb.sequences(4, sequence_length=2)):
        with pytest.raises(ValueError, match=r"'terminated' must be one flag per transition.*squeeze it"):
            buffer.init(example)


def test_rows_with_a_mask_of_their_own_keep_it():
    buffer = jb.ReplayBuffer(view=jb.Sequence(1), length=3)
    Row = collections.namedtuple("Row", "mask")
    state = buffer.add(buffer.init(Row(np.int32(0))), Row(np.full((1, 1), 6, np.int32)))
    assert buffer.sample(state, jax.random.key(0), 2).batch.mask.tolist() == [[6], [6]]


def test_rows_of_other_structures_are_read_by_name():
    row = {name: np.float32(0) for name in jb.NStep().fields}
    buffer = jb.uniform(3)
    state = buffer.add(buffer.init(row), {name: np.full((1, 1), 2.0, np.float32) for name in row})
    batch = buffer.sample(state, jax.random.key(0), 2).batch
    assert batch.obs.tolist() == [2, 2]
    assert batch.extras == ()
    with pytest.raises(ValueError, match=r"NStep needs the field 'reward'.*their fields are: action, obs"):
        buffer.init({"obs": 0.0, "action": 0})


def test_sequences_start_every_period_and_overlap():
    """`Sequence(length=4, period=2)` over rows 0..9."""
    buffer, state = number_buffer(10, view=jb.Sequence(4, period=2))
    state = helpers.add(buffer, state, scalars(range(10)))
    sample, legal = every_slot(buffer, state)
    rows = np.asarray(sample.batch)[np.asarray(legal)].astype(int)
    assert rows.tolist() == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9]]
    state = helpers.add(buffer, state, scalars([10, 11, 12]))
    sample, legal = every_slot(buffer, state)
    assert sorted(np.asarray(sample.batch)[np.asarray(legal)][:, 0].tolist()) == [4, 6, 8]


def test_sequences_mask_burn_in_and_what_follows_an_end():
    buffer = jb.sequences(6, sequence_length=5, burn_in=2, gamma=0.9)
    chunk = rewards_chunk([1] * 6, terminated=[0, 0, 0, 1, 0, 0])
    state = buffer.add(buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk)), chunk)
    sample, _ = every_slot(buffer, state)
    assert sample.batch.mask[0].tolist() == [False, False, True, True, False]
    np.testing.assert_allclose(sample.batch.discount[0], [0.9, 0.9, 0.9, 0, 0.9])
    assert sample.batch.mask[1].tolist() == [False, False, True, False, False]


def test_the_first_carry_comes_with_each_sequence():
    buffer = jb.sequences(6, 2, sequence_length=3)
    state = buffer.init(helpers.EXAMPLE)
    rows = [[helpers.transition(10 * env + row) for env in range(2)] for row in range(5)]
    state = helpers.add(buffer, state, helpers.stack(rows))
    batch = helpers.sample(buffer, state, jax.random.key(0), batch_size=8).batch
    assert batch.extras["carry"].shape == (8, 3)
    np.testing.assert_array_equal(batch.extras["carry"][:, 0], batch.action[:, 0])
    assert batch.extras["logp"].shape == (8, 3)


def test_sequences_sum_up_rewards_to_the_end_of_episode_and_sequence():
    buffer = jb.sequences(7, sequence_length=6, burn_in=1, n=3, gamma=0.5)
    chunk = rewards_chunk([1, 2, 4, 8, 16, 32, 64], terminated=[0, 0, 0, 1, 0, 0, 0], truncated=[0] * 6 + [1])
    state = buffer.add(buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk)), chunk)
    sample, _ = every_slot(buffer, state)
    batch = jax.tree.map(lambda leaf: np.asarray(leaf[0]), sample.batch)
    assert batch.mask.tolist() == [False, True, True, True, False, False]
    np.testing.assert_allclose(batch.reward[1:4], [2 + 4 / 2 + 8 / 4, 4 + 8 / 2, 8])
    np.testing.assert_allclose(batch.discount[1:4], [0, 0, 0])
    assert batch.next_obs[1:4].tolist() == [4, 4, 4]
    assert batch.num_steps[1:4].tolist() == [3, 2, 1]
    buffer = jb.sequences(7, sequence_length=3, n=2, gamma=0.5)
    state = buffer.add(buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk)), chunk)
    batch = jax.tree.map(lambda leaf: np.asarray(leaf[4]), every_slot(buffer, state)[0].batch)
    np.testing.assert_allclose(batch.reward, [16 + 32 / 2, 32 + 64 / 2, 64])
    np.testing.assert_allclose(batch.discount, [0.25, 0.25, 0.5])
    assert batch.next_obs.tolist() == [6, 7, 7]


def test_sequences_sum_up_vector_rewards_and_skip_what_is_not_used():
    buffer = jb.sequences(3, sequence_length=3, n=5, gamma=0.5)
    chunk = rewards_chunk([0, 0, 0], terminated=[0, 1, 0])
    chunk = chunk._replace(reward=jnp.array([[[1.0, 2.0]], [[4.0, 8.0]], [[np.nan, np.inf]]], jnp.bfloat16))
    state = buffer.add(buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk)), chunk)
    batch = buffer.sample(state, jax.random.key(0), 1).batch
    assert batch.reward.dtype == jnp.float32
    assert batch.reward[0, :2].tolist() == [[3, 6], [4, 8]]


def test_only_transitions_have_rewards_to_sum_up():
    names = dict.fromkeys(jb.NStep().fields, np.float32(0))
    buffer = jb.sequences(3, sequence_length=2, n=2)
    with pytest.raises(ValueError, match="Sequence needs the field 'obs'"):
        buffer.init(np.float32(0))
    state = buffer.init(names)
    with pytest.raises(ValueError, match=r"Sequence\(n=2\).*Transition.*dict.*leave `n` at 1"):
        buffer.sample(state, jax.random.key(0), 1)
    with pytest.raises(ValueError, match=r"Sequence\(n=0\)"):
        jb.Sequence(2, n=0)
