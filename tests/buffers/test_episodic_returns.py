"""Returns of episodes, which are stored with their rows."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import rewards_chunk

import jaxrl_buffers as jb
from jaxrl_buffers.storage import ring


def described(buffer, state, env=0):
    """Return what the index says about each stored row of an environment, oldest first."""
    size, head = (int(np.broadcast_to(x, buffer.num_envs)[env]) for x in (state.storage.size, state.storage.head))
    position = jnp.arange(head - size, head)
    return jax.tree.map(np.asarray, buffer.episode(state, jb.Handle(jnp.full(size, env), position)))


def recorded_returns(returns, chunk, length=None):
    """Return the episodic return of each stored row, oldest first, after adding a chunk `[K, 1]`."""
    buffer = jb.ReplayBuffer(length=length or chunk.reward.shape[0], returns=returns)
    state = helpers.add(buffer, buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk)), chunk)
    return stored_returns(buffer, state, 0, buffer.length)


def test_returns_of_one_episode():
    """Rewards 1, 2, 4 with gamma 0.5 give 3, 4, 4; the step behind has none yet. Clipping comes first."""
    chunk = rewards_chunk([1, 2, 4, 7], terminated=[0, 0, 1, 0])
    returns = jb.EpisodicReturns(gamma=0.5, default=-1000.0)
    np.testing.assert_allclose(recorded_returns(returns, chunk), [3, 4, 4, -1000])
    clipped = returns.replace(reward_clip=(-1.0, 1.5))
    np.testing.assert_allclose(recorded_returns(clipped, chunk), [2.125, 2.25, 1.5, -1000])
    on_one_side = [((-np.inf, 1.5), [2.125, 2.25, 1.5, -1000]), ((2.0, np.inf), [4, 4, 4, -1000])]
    for bounds, expected in on_one_side:
        np.testing.assert_allclose(recorded_returns(returns.replace(reward_clip=bounds), chunk), expected)


def test_time_limits_leave_the_default_unless_bootstrapped():
    chunk = rewards_chunk([1, 2, 4, 7], truncated=[0, 0, 1, 0])._replace(extras={"next_value": jnp.full((4, 1), 8.0)})
    returns = jb.EpisodicReturns(gamma=0.5, default=-1000.0)
    np.testing.assert_allclose(recorded_returns(returns, chunk), [-1000] * 4)
    bootstrapped = returns.replace(bootstrap="extras.next_value")
    np.testing.assert_allclose(recorded_returns(bootstrapped, chunk), [4, 6, 8, -1000])


def test_two_environments_with_zero_discounts_inside_episodes():
    """The steps of 3.5 as transitions; `x` stands where the original has a boundary step.

    What follows a zero discount is a beginning of its own: its rewards count (the original drops the first of them).
    """
    x, default = None, -1000.0
    first = [[-1.99, -1, x, -1, 0, -1, x, default], [-1, x, 0, -1.99, -1, x, default, default]]
    second = [[-1.99, -1, x, -2.9701, -1.99, -1, x, default], [-1, x, -2.9701, -1.99, -1, x, default, default]]
    ends = [[0, 1, x, 0, 0, 1, x, 0], [1, x, 0, 0, 1, x, 0, 0]]
    buffer = jb.ReplayBuffer(
        length=8, num_envs=2, lockstep=False, returns=jb.EpisodicReturns(0.99, default, discount="extras.discount")
    )
    state = buffer.init(zero_discount_row(0, False, 1.0))
    for expected, zeros in ((first, {(0, 4), (1, 2)}), (second, set())):
        state = buffer.mark_break(state)  # the second pass begins anew
        for t in range(8):
            rows = [
                zero_discount_row(0.0 if (env, t) in zeros else -1.0, bool(ends[env][t]), float((env, t) not in zeros))
                for env in range(2)
            ]
            mask = np.array([ends[env][t] is not x for env in range(2)])
            state = helpers.add(buffer, state, helpers.stack([rows]), mask=mask)
        for env in range(2):
            wanted = [value for value in expected[env] if value is not x]
            got = stored_returns(buffer, state, env, len(wanted))
            np.testing.assert_allclose(got, wanted, rtol=1e-5)


def zero_discount_row(reward, terminated, discount):
    flags = np.bool_(terminated), np.bool_(False)
    return jb.Transition(
        np.int32(0), np.int32(0), np.float32(reward), *flags, np.int32(0), {"discount": np.float32(discount)}
    )


@functools.partial(jax.jit, static_argnames="count")
def stored_returns(buffer, state, env, count):
    """Return the episodic returns of the newest rows of an environment, oldest first."""
    age, env = jnp.arange(count - 1, -1, -1, dtype=jnp.int32), jnp.full(count, env, jnp.int32)
    return (
        buffer.storage.reader(state.storage)
        .read(ring.row_of_age(state.storage, age, env), env)
        .extras["episodic_return"]
    )


def test_factors_that_grow_out_of_float32_change_no_return_that_does_not_need_them():
    """With gamma 2, behind 150 steps: next to them is an episode that is over, and in them no reward but the first."""
    rewards, ends = np.zeros(700), np.zeros(700, bool)
    rewards[:4], ends[[2, 600]] = [1, 2, 4, 5], True
    got = recorded_returns(jb.EpisodicReturns(gamma=2.0, default=-1.0), rewards_chunk(rewards, terminated=ends))
    np.testing.assert_array_equal(got, [21, 10, 4, 5, *[0] * 597, *[-1] * 99])
    rewards[600] = 1  # which is worth more than a float32 can say, from 128 steps before it on
    got = recorded_returns(jb.EpisodicReturns(gamma=2.0, default=-1.0), rewards_chunk(rewards, terminated=ends))
    np.testing.assert_array_equal(got, [21, 10, 4, *[np.inf] * 470, *2.0 ** np.arange(127, -1, -1), *[-1] * 99])


def test_long_episodes_have_no_nan_and_discounts_multiply():
    rewards = np.random.default_rng(0).normal(size=2000)
    chunk = rewards_chunk(rewards, terminated=np.arange(2000) == 1999)
    got = recorded_returns(jb.EpisodicReturns(gamma=0.9, default=np.nan), chunk)
    expected = np.zeros(2001)
    for t in range(1999, -1, -1):
        expected[t] = rewards[t] + 0.9 * expected[t + 1]
    np.testing.assert_allclose(got, expected[:-1], rtol=1e-5, atol=1e-5)
    half = rewards_chunk([1, 1, 1], terminated=[0, 0, 1])._replace(extras={"discount": jnp.full((3, 1), 0.5)})
    settings = jb.EpisodicReturns(gamma=1.0, discount="extras.discount")
    np.testing.assert_allclose(recorded_returns(settings, half), [1.75, 1.5, 1.0])


def test_clearing_an_environment_clears_its_index_and_returns():
    buffer = jb.ReplayBuffer(
        jb.Episodic(), length=4, num_envs=2, lockstep=False, returns=jb.EpisodicReturns(0.5, -1000.0)
    )
    state = buffer.init(zero_discount_row(0, False, 1.0))
    rows = [[zero_discount_row(1, k == 2, 1.0)] * 2 for k in range(4)]
    cleared = helpers.clear(buffer, helpers.add(buffer, state, helpers.stack(rows)), np.array([0]))
    assert described(buffer, cleared).is_stored.tolist() == []
    assert described(buffer, cleared, env=1).steps_to_end.tolist() == [2, 1, 0, 0]
    sample = helpers.sample(buffer, cleared, jax.random.key(0), batch_size=32)
    assert set(np.asarray(sample.handle.env).tolist()) == {1}
    # What follows goes on with the episode that was cleared: its begin is not stored.
    state = helpers.add(buffer, cleared, helpers.stack(rows), env_ids=np.array([0, 1]))
    assert described(buffer, state).begin_is_stored.tolist() == [False] * 3 + [True]
    np.testing.assert_allclose(stored_returns(buffer, state, 0, 4), [1.75, 1.5, 1.0, -1000.0])


@pytest.mark.parametrize(
    ("returns", "change", "message"),
    [
        (jb.EpisodicReturns(), {"reward": np.zeros(2)}, r"a single number as 'reward'"),
        (jb.EpisodicReturns(), {"extras": np.zeros(2)}, r"these are ShapeDtypeStruct; make them a dict"),
        (jb.EpisodicReturns(bootstrap="extras.value"), {}, r"needs the field 'extras\.value'"),
    ],
)
def test_returns_that_cannot_be_recorded(returns, change, message):
    example = jb.Transition(0.0, 0, 0.0, False, False, 0.0)._replace(**change)
    with pytest.raises(ValueError, match=message):
        jb.ReplayBuffer(length=4, returns=returns).init(example)


def test_bad_gamma():
    with pytest.raises(ValueError, match=r"gamma=-1"):
        jb.EpisodicReturns(gamma=-1)
