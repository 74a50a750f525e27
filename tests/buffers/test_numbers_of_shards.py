"""Numbers of buffers that are split over devices: they are those of all devices together."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.mesh import AXIS, on_devices
from support.shards import COLUMNS, D, K, N, T, masks, priorities, rows

import jaxrl_buffers as jb


def test_new_rows_get_the_largest_priority_of_all_devices():
    buffer = jb.Sharded(jb.prioritized(T, N // D, alpha=0.3), AXIS)

    def twice(chunk, given):
        state = buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk))
        state = buffer.add(state, jax.tree.map(lambda leaf: leaf[:3], chunk), priorities=given[:3])
        return buffer.add(state, jax.tree.map(lambda leaf: leaf[3:5], chunk)).sampler.tree.leaves

    leaves = np.asarray(on_devices(twice, D, COLUMNS, COLUMNS)(rows(0), priorities(0)))
    first, new = (leaves[:, begin * 2 : end * 2] for begin, end in ((0, 3), (3, 5)))
    np.testing.assert_array_equal(new, first.max())
    assert (first.max(axis=1) < first.max()).sum() == D - 1


@pytest.mark.parametrize("progress", [0.0, 0.3, 0.9])
def test_recency_counts_the_slots_of_all_devices(progress):
    sampler = jb.Recent(eta=0.998, c_min=13.0)
    buffer = jb.ReplayBuffer(sampler, length=50, num_envs=2)

    def window(buffer, state):
        return sampler_of(buffer).window(state.sampler, state.storage, buffer.window(state), progress).oldest

    def sampler_of(buffer):
        return buffer.local.sampler.sampler if isinstance(buffer, jb.Sharded) else buffer.sampler

    def filled(buffer):
        state = buffer.init(helpers.EXAMPLE)
        storage = state.storage._replace(size=jnp.full_like(state.storage.size, 47), head=state.storage.head + 47)
        return window(buffer, state._replace(storage=storage))

    whole = filled(buffer.replace(num_envs=2 * D))
    of_devices = on_devices(lambda: filled(jb.Sharded(buffer, AXIS)), D)()
    np.testing.assert_array_equal(of_devices, int(whole))


def test_numbers_are_those_of_all_devices():
    buffer = jb.Sharded(jb.ReplayBuffer(length=T, num_envs=N // D, lockstep=False), AXIS)
    mask = masks(0, lockstep=False)[:T]

    def counted(chunk, mask):
        state = buffer.add(buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk)), chunk, mask=mask)
        enough = buffer.can_sample(state, 1), buffer.can_sample(state, 1_000)
        return buffer.num_valid(state), buffer.size(state), *enough

    num_valid, size, *enough = on_devices(counted, D, COLUMNS, COLUMNS)(rows(0, T), mask)
    stored = int(mask.sum())
    assert num_valid.tolist() == size.tolist() == [stored] * D
    assert np.all(enough[0])
    assert not np.any(enough[1])


@pytest.mark.parametrize("is_empty", [False, True])
def test_statistics_are_those_of_all_devices(is_empty):
    buffer = jb.ReplayBuffer(jb.Prioritized(), jb.NStep(n=2), length=T, num_envs=N, lockstep=False, keep_episodes=True)
    mask = masks(0, lockstep=False)[:T] & (not is_empty)

    def described(buffer, chunk, given, mask):
        state = buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk))
        return buffer.stats(buffer.add(state, chunk, priorities=given, mask=mask))

    inputs = rows(0, T), priorities(0)[:T], mask
    part = jb.Sharded(buffer.replace(num_envs=N // D), AXIS)
    of_devices = on_devices(lambda *args: described(part, *args), D, COLUMNS, COLUMNS, COLUMNS)(*inputs)
    whole = described(buffer, *inputs)
    assert of_devices.keys() == whole.keys()
    for name, value in whole.items():
        np.testing.assert_allclose(of_devices[name], np.full(D, value), rtol=1e-6, err_msg=name)


def test_advantages_are_normalized_over_all_devices():
    """Environments of different devices have rewards of very different sizes."""
    whole, part = (jb.rollout(K, num_envs, epsilon=0.0) for num_envs in (N, N // D))
    chunk = rows(0)
    scale = 10.0 ** np.repeat(np.arange(D), N // D)
    value = np.zeros((K, N), np.float32)
    chunk = chunk._replace(reward=(chunk.reward * scale).astype(np.float32), extras={"value": value})

    def computed(rollout, chunk, next_value):
        return rollout.advantages(chunk, next_value)

    expected = jax.device_get(computed(whole, chunk, value))
    found = on_devices(lambda *given: computed(jb.shard(part, AXIS), *given), D, COLUMNS, COLUMNS)(chunk, value)
    for name in ("advantage", "return_", "mask"):
        joined = np.concatenate(np.asarray(getattr(found, name)), axis=1)
        np.testing.assert_allclose(joined, getattr(expected, name), rtol=1e-4, atol=1e-6, err_msg=name)
    spread = np.std(np.asarray(found.advantage), axis=(1, 2))
    assert spread[-1] > 100 * spread[0] > 0
