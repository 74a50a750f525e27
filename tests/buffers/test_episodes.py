"""The episode index, episodic returns and breaks, against brute force and hand-worked numbers."""

from __future__ import annotations

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.episodes import History
from support import helpers
from support.helpers import every_slot, rewards_chunk
from support.views import Older

import jaxrl_buffers as jb
from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage.episodes import FAR

NUM_STREAMS, NUM_STEPS, NUM_ENVS, CHUNK = 500, 9, 2, 3  # streams of each of two cases


def stream_buffer(length, bootstrap):
    returns = jb.EpisodicReturns(
        gamma=0.7,
        default=-1000.0,
        reward_clip=(-1.5, 1.5),
        bootstrap="extras.value" if bootstrap else None,
        discount="extras.discount",
    )
    return jb.ReplayBuffer(length=length, num_envs=NUM_ENVS, lockstep=False, returns=returns)


def random_streams(rng, length):
    """Return chunks `[S, steps, K, N]` with their masks, rows to forget and breaks, and the first head."""
    shape = (NUM_STREAMS, NUM_STEPS, CHUNK, NUM_ENVS)
    likely = rng.choice([0.05, 0.2, 0.6], (NUM_STREAMS, 1, 1, 1))  # long, middling and short episodes
    extras = {
        "discount": rng.choice([1, 1, 0.5, 0], shape, p=[0.4, 0.3, 0.2, 0.1]).astype(np.float32),
        "value": rng.normal(size=shape).astype(np.float32),
    }
    zeros = np.zeros(shape, np.float32)
    reward = rng.normal(size=shape).astype(np.float32)
    chunk = jb.Transition(zeros, zeros, reward, rng.random(shape) < likely, rng.random(shape) < likely / 2, zeros)
    mask = rng.random(shape) < rng.choice([0.3, 0.7, 1], (NUM_STREAMS, 1, 1, 1))
    forget = rng.choice([0, 0, 0, 1, 2, length], (NUM_STREAMS, NUM_STEPS, NUM_ENVS)).astype(np.int32)
    is_break = rng.random((NUM_STREAMS, NUM_STEPS)) < 0.1
    limit = ring.POSITION_LIMIT // length * length
    head = rng.choice([0, limit - 4 * length, limit - length], NUM_STREAMS).astype(np.int32)
    return (chunk._replace(extras=extras), mask, forget, is_break), head


@functools.partial(jax.jit, static_argnums=0)
def run_streams(buffer, streams, heads):
    """Return all that the index says after every step, for every slot by age: leaves `[S, steps, T, N]`."""
    chunk, *_ = streams
    state = buffer.init(jax.tree.map(lambda leaf: leaf[0, 0, 0, 0], chunk))
    age = jnp.broadcast_to(jnp.arange(buffer.length)[:, None], (buffer.length, NUM_ENVS))
    env = jnp.broadcast_to(jnp.arange(NUM_ENVS)[None], age.shape)

    def one_step(state, inputs):
        chunk, mask, forget, is_break = inputs
        state = buffer.add(state, chunk, mask=mask)
        broken = buffer.mark_break(state)
        state = jax.tree.map(lambda one, other: jnp.where(is_break, one, other), broken, state)
        storage = state.storage  # what clear, dequeue and drop_oldest do to a ring
        state = state._replace(storage=storage._replace(size=jnp.maximum(storage.size - forget, 0)))
        handle = jb.Handle(env, ring.position_of_age(state.storage, age, env))
        row = ring.row_of_age(state.storage, age, env)
        rows = buffer.storage.reader(state.storage).read(row, env)
        return state, (handle.position, buffer.episode(state, handle), rows.extras["episodic_return"])

    def one_stream(inputs, head):
        start = state._replace(storage=state.storage._replace(head=jnp.full(NUM_ENVS, head, jnp.int32)))
        return jax.lax.scan(one_step, start, inputs)[1]

    return jax.vmap(one_stream)(streams, heads)


def expected_answers(case, stream, head):
    """Follow one stream with the model; return where rows are stored, and what must be said about them."""
    length, bootstrap = case
    chunk, mask, forget, is_break = stream
    limit = ring.POSITION_LIMIT // length * length
    histories = [History(length) for _ in range(NUM_ENVS)]
    where, answers = [], []
    for step in range(NUM_STEPS):
        for k, env in np.argwhere(mask[step]):
            row = (chunk.reward, chunk.terminated, chunk.truncated, chunk.extras["discount"], chunk.extras["value"])
            histories[env].add(*(field[step, k, env].item() for field in row))
        for env, history in enumerate(histories):
            if is_break[step]:
                history.mark_break()
            history.forget(forget[step, env])
            for position in history.stored():
                begin, end, zero = history.begin(position), history.end(position), history.last_zero(position)
                where.append((step, len(history.ended) - 1 - position, env))
                absolute = [(head + part) % limit for part in (position, begin, end, zero)]
                absolute[3] = absolute[3] if zero >= 0 else -1
                flags = (begin in history.stored(), history.ended[end])
                total = history.discounted_return(position, 0.7, -1000.0, bootstrap)
                answers.append((*absolute, end - position, *flags, total))
    return tuple(np.array(where).T), np.array(answers, np.float64).T


@pytest.mark.parametrize("case", [(5, False), (11, True)])
def test_1000_random_streams_match_brute_force(case):
    """Partial adds, drops, clears, breaks, episodes longer than the ring, and counters that run over."""
    streams, heads = random_streams(np.random.default_rng(case[0]), case[0])
    results = jax.tree.map(np.asarray, run_streams(stream_buffer(*case), streams, heads))
    clipped = jax.tree.map(np.asarray, streams[0]._replace(reward=np.clip(streams[0].reward, -1.5, 1.5)))
    for number in range(NUM_STREAMS):
        stream, result = jax.tree.map(lambda leaf, n=number: leaf[n], ((clipped, *streams[1:]), results))
        where, expected = expected_answers(case, stream, int(heads[number]))
        position, found, returns = result
        assert found.is_stored.sum() == len(where[0])
        assert found.is_stored[where].all()
        got = (position, found.begin, found.end, found.last_zero, found.steps_to_end)
        got = (*got, found.begin_is_stored, found.is_ended)
        np.testing.assert_array_equal([part[where] for part in got], expected[:-1])
        np.testing.assert_allclose(returns[where], expected[-1], rtol=1e-4, atol=1e-5)


def described(buffer, state, env=0):
    """Return what the index says about each stored row of an environment, oldest first."""
    size, head = (int(np.broadcast_to(x, buffer.num_envs)[env]) for x in (state.storage.size, state.storage.head))
    position = jnp.arange(head - size, head)
    return jax.tree.map(np.asarray, buffer.episode(state, jb.Handle(jnp.full(size, env), position)))


def add_one_by_one(buffer, state, chunk, rows):
    for row in rows:
        state = helpers.add(buffer, state, jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], chunk))
    return state


def test_the_example_before_and_after_the_wrap():
    """Steps F M M L F M, then three more M, in a ring of 8: here an L is the row that ended its episode."""
    buffer = jb.ReplayBuffer(length=8, keep_episodes=True)
    chunk = rewards_chunk([0] * 9, terminated=[0, 0, 0, 1, 0, 0, 0, 0, 0])
    state = buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk))
    state = add_one_by_one(buffer, state, chunk, range(6))
    found = described(buffer, state)
    assert found.steps_to_end.tolist() == [3, 2, 1, 0, 1, 0]
    assert found.begin.tolist() == [0, 0, 0, 0, 4, 4]
    assert found.end.tolist() == [3, 3, 3, 3, 5, 5]
    assert found.last_zero.tolist() == [3, 3, 3, 3, -1, -1]
    assert found.is_ended.tolist() == [True] * 4 + [False] * 2
    state = add_one_by_one(buffer, state, chunk, range(6, 9))
    found = described(buffer, state)
    assert found.steps_to_end.tolist() == [2, 1, 0, 4, 3, 2, 1, 0]
    assert found.begin.tolist() == [0, 0, 0, 4, 4, 4, 4, 4]
    assert found.begin_is_stored.tolist() == [False] * 3 + [True] * 5
    # An episode of a billion steps: its length stops counting, and nothing overflows.
    storage = state.storage
    endless = storage.episodes.open._replace(length=jnp.full(1, FAR - 1, jnp.int32))
    state = state._replace(storage=storage._replace(episodes=storage.episodes._replace(open=endless)))
    found = described(buffer, add_one_by_one(buffer, state, chunk, [0, 1, 2] * 4))
    assert found.steps_to_end.tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    assert not found.begin_is_stored.any()
    assert not found.is_ended.any()


def test_the_index_costs_nothing_unless_asked_for():
    buffer, example = jb.uniform(4), rewards_chunk([0.0])
    state = buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], example))
    assert state.storage.episodes == ()
    with pytest.raises(ValueError, match="pass `keep_episodes=True`"):
        buffer.episode(state, jb.Handle(jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32)))
    with pytest.raises(ValueError, match="the episode index needs the field 'terminated'"):
        jb.ReplayBuffer(view=jb.Sequence(1), length=4, keep_episodes=True).init(jnp.float32(0))


def test_the_earliest_rows_are_left_out():
    """A view that looks two rows back: no start among the first two rows, also of what is stored after a wrap."""
    for sampler in (jb.Prioritized(), jb.Episodic()):
        buffer = jb.ReplayBuffer(sampler, Older(), length=9)
        chunk = rewards_chunk(np.arange(1, 15))
        state = buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk))
        for row, expected in enumerate([None, None, {2}, {2, 3}]):
            state = add_one_by_one(buffer, state, chunk, [row])
            sample = helpers.sample(buffer, state, jax.random.key(0), batch_size=16)
            drawn = set(np.asarray(sample.handle.position).tolist())
            assert drawn == ({-1} if expected is None else expected)
            assert set(np.asarray(sample.weights).tolist()) == {float(expected is not None)}
        state = add_one_by_one(buffer, state, chunk, range(4, 8))
        assert buffer.slice(state, 2, 6)[0].reward[:, 0].tolist() == [3, 4, 5, 6, 7, 8]
        state = add_one_by_one(buffer, state, chunk, range(8, 14))
        assert buffer.slice(state, 2, 7)[0].reward[:, 0].tolist() == [8, 9, 10, 11, 12, 13, 14]
        assert np.asarray(every_slot(buffer, state)[1]).sum() == 7


def test_a_break_ends_what_was_going_on():
    """N-step windows, sequences and the index stop at the newest row; rows that ended anyway stay as they are."""
    buffer = jb.ReplayBuffer(view=jb.NStep(3, 1.0), length=8, num_envs=3, lockstep=False, keep_episodes=True)
    rows = [[helpers.transition(10 * env + k, 1.0, terminated=(env == 1 and k == 1)) for env in range(3)]
            for k in range(2)]  # fmt: skip
    state = buffer.init(helpers.EXAMPLE)
    state = helpers.add(buffer, state, helpers.stack(rows), env_ids=np.array([0, 1, 2]))
    state = helpers.clear(buffer, state, np.array([2]))
    state = jax.jit(jb.ReplayBuffer.mark_break)(buffer, state)
    state = jax.jit(jb.ReplayBuffer.mark_break)(buffer, state)  # again: nothing is open any more
    state = helpers.add(buffer, state, helpers.stack(rows), env_ids=np.array([0, 1, 2]))
    data = jax.tree.map(np.asarray, state.storage.data)
    assert data.truncated[:4, 0].tolist() == [False, True, False, False]
    assert data.truncated[:4, 1].tolist() == [False] * 4
    assert described(buffer, state).begin.tolist() == [0, 0, 2, 2]
    assert described(buffer, state, env=2).begin_is_stored.tolist() == [True, True]
    sample, legal = every_slot(buffer, state)
    rewards = {
        (int(env), int(position)): float(reward)
        for env, position, reward in zip(*sample.handle, sample.batch.reward, strict=True)
    }
    assert np.asarray(legal).sum() == 10
    assert [rewards[0, position] for position in range(4)] == [2, 1, 2, 1]
    plain = jb.ReplayBuffer(view=jb.Sequence(2), length=4)
    with pytest.raises(ValueError, match="no field 'truncated'"):
        plain.mark_break(plain.init({"x": np.float32(0)}))


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_break_of_some_environments_leaves_the_others_alone(lockstep):
    """Of three open episodes, that of environment 1 is closed; which becomes a return only there."""
    returns = jb.EpisodicReturns(gamma=1.0, bootstrap="extras.logp", default=-9.0)
    buffer = jb.ReplayBuffer(length=8, num_envs=3, lockstep=lockstep, returns=returns)
    state = buffer.init(helpers.EXAMPLE)
    chunk = helpers.stack([[helpers.transition(k, 1.0) for _ in range(3)] for k in range(2)])
    state = helpers.add(buffer, state, chunk)
    mark_break = jax.jit(jb.ReplayBuffer.mark_break)
    broken = mark_break(buffer, state, jnp.array([1, -1, 3]))  # unknown ones are ignored
    chex.assert_trees_all_equal(broken, buffer.mark_break(state, np.array([1])))
    assert broken.storage.data.truncated[:2].tolist() == [[False] * 3, [False, True, False]]
    after = helpers.add(buffer, broken, chunk)
    assert [described(buffer, after, env).begin.tolist() for env in range(3)] == [[0] * 4, [0, 0, 2, 2], [0] * 4]
    sample, _ = every_slot(buffer, after)
    slots = zip(np.asarray(sample.handle.env), np.asarray(sample.handle.position), strict=True)
    recorded = {slot: float(one) for slot, one in zip(slots, sample.batch.extras["episodic_return"], strict=True)}
    assert recorded[1, 0] != -9
    assert all(one == -9 for slot, one in recorded.items() if slot[0] != 1)
    with pytest.raises(ValueError, match="must lie between 0 and 2"):
        buffer.mark_break(state, np.array([3]))
    chex.assert_trees_all_equal(mark_break(buffer, state, jnp.arange(3)), mark_break(buffer, state))
