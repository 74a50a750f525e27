"""The episode index, episodic returns and breaks, against brute force and hand-worked numbers."""

from __future__ import annotations

import functools

import chex
import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import rewards_chunk
from reference_episodes import History

import jaxrl_buffers as jb
from jaxrl_buffers.storage import ring

NUM_STREAMS, NUM_STEPS, NUM_ENVS, CHUNK = 500, 12, 2, 3  # streams of each of two cases


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
        rows = buffer._reader(state.storage).read(row, env)
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
            histories[env].add(*(field[step, k, env] for field in row))
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


@pytest.mark.parametrize("case", [(5, False), (19, True)])
def test_row_62_1000_random_streams_match_brute_force(case):
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
