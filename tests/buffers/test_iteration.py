"""Scans over batches and epochs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import number_buffer, scalars

import jaxrl_buffers as jb


def collect(carry, state, sample):
    return carry + 1, state, sample


def test_exactly_k_batches():
    buffer, state = number_buffer(8)
    state = helpers.add(buffer, state, scalars(range(8)))
    carry, _, samples = jb.scan_batches(
        collect, jnp.int32(0), buffer, state, jax.random.key(0), batch_size=5, num_batches=3
    )
    assert int(carry) == 3
    assert samples.batch.shape == (3, 5, 1)
    first = buffer.sample(state, jax.random.fold_in(jax.random.key(0), 0), 5)
    np.testing.assert_array_equal(samples.batch[0], first.batch)
    assert not np.array_equal(samples.batch[0], samples.batch[1])


def test_priorities_flow_from_batch_to_batch():
    buffer, state = number_buffer(8, sampler=jb.Prioritized(alpha=1.0, epsilon=0.0))
    state = helpers.add(buffer, state, scalars(range(8)))

    def forget_seen(carry, state, sample):
        return carry, buffer.update_priorities(state, sample.handle, jnp.full(2, 1e-12)), sample.batch[:, 0]

    _, state, seen = jb.scan_batches(forget_seen, (), buffer, state, jax.random.key(0), batch_size=2, num_batches=4)
    assert sorted(np.asarray(seen).ravel().tolist()) == list(range(8))


@pytest.mark.parametrize(("lockstep", "period"), [(True, 1), (False, 1), (True, 2), (False, 2)])
def test_every_start_comes_once_an_epoch_in_a_new_order(lockstep, period):
    buffer, state = number_buffer(
        10, 2, view=jb.Sequence(2, period=period), lockstep=lockstep, sampler=jb.Prioritized()
    )
    state = helpers.add(buffer, state, scalars(range(7), 2))
    if not lockstep:
        state = helpers.add(buffer, state, scalars([7], 1), env_ids=np.array([1]))
    run = jax.jit(
        lambda state, key: jb.scan_epochs(collect, jnp.int32(0), buffer, state, key, batch_size=4, num_epochs=3)
    )
    _, _, samples = run(state, jax.random.key(0))
    env, position, weights = (
        np.asarray(leaf).reshape(3, -1) for leaf in (samples.handle.env, samples.handle.position, samples.weights)
    )
    assert weights.shape == (3, {1: 20, 2: 12}[period])  # room for the 18, or 10, starts of a full buffer
    orders = []
    for epoch in range(3):
        drawn = weights[epoch] > 0
        starts = list(zip(env[epoch][drawn].tolist(), position[epoch][drawn].tolist(), strict=True))
        expected = [(e, p) for e in range(2) for p in range(0, 6 + (e == 1 and not lockstep), period)]
        assert sorted(starts) == expected
        assert drawn[: len(starts)].all()
        orders.append(tuple(starts))
    assert len(set(orders)) == 3
    assert set(weights.ravel().tolist()) == {0.0, 1.0}


def test_epochs_are_fair_in_their_order():
    """Which start comes first is uniform."""
    buffer, state = number_buffer(6)
    state = helpers.add(buffer, state, scalars(range(6)))

    @jax.jit
    @jax.vmap
    def first(key):
        return jb.scan_epochs(collect, 0, buffer, state, key, batch_size=2, num_batches=1)[2].batch[0, 0, 0]

    counts = np.bincount(np.asarray(first(jax.random.split(jax.random.key(0), 30_000))).astype(int), minlength=6)
    assert ((counts - 5000) ** 2 / 5000).sum() < 25


def test_counts_are_checked():
    buffer, state = number_buffer(6)
    with pytest.raises(ValueError, match="num_batches=0"):
        jb.scan_batches(collect, 0, buffer, state, jax.random.key(0), batch_size=2, num_batches=0)
    with pytest.raises(ValueError, match="num_epochs=0"):
        jb.scan_epochs(collect, 0, buffer, state, jax.random.key(0), batch_size=2, num_epochs=0)


def test_an_epoch_over_frames_is_as_long_as_their_starts():
    """The two oldest rows of each environment only hold frames, so three batches of four do."""
    buffer = jb.ReplayBuffer(frames=jb.Frames(stack=3), length=8, num_envs=2)
    images, flags = jnp.zeros((8, 2, 5, 3), jnp.uint8), jnp.zeros((8, 2), bool)
    chunk = jb.Transition(images, jnp.zeros((8, 2)), jnp.zeros((8, 2)), flags, flags, images)
    state = buffer.add(buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk)), chunk)
    weights = jb.scan_epochs(collect, 0, buffer, state, jax.random.key(0), batch_size=4)[2].weights
    assert weights.shape == (3, 4)
    assert weights.sum() == 12
