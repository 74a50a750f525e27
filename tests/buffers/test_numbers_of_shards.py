"""Numbers of buffers that are split over devices: they are those of all devices together."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from support import helpers
from support.mesh import AXIS, on_devices
from support.shards import COLUMNS, D, K, N, T, masks, priorities, rows

import jaxrl_buffers as jb
from jaxrl_buffers import _statistics as statistics
from jaxrl_buffers.storage import ring


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


CHANGES = {
    "update_priorities": lambda buffer, state, starts, env_ids: buffer.update_priorities(state, *starts),
    "reprioritize": lambda buffer, state, starts, env_ids: buffer.reprioritize(state),
    "clear": lambda buffer, state, starts, env_ids: buffer.clear(state, env_ids),
    "mark_break": lambda buffer, state, starts, env_ids: buffer.mark_break(state, env_ids),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_those_of_one_buffer(name):
    """Of every slot the mass and the row, and of all devices the statistics, after the same change everywhere."""
    rng = np.random.default_rng(0)
    errors, counts = rng.exponential(size=(T, N, 3)).astype(np.float32), rng.random((T, N, 3)) < 0.5

    def make(num_envs, alpha):
        sampler = jb.Prioritized(alpha=alpha)
        return jb.ReplayBuffer(sampler, jb.Sequence(3), length=T, num_envs=num_envs, lockstep=False)

    def changed(split, chunk, given, errors, counts):
        num_envs = given.shape[1]
        before, after = (split(make(num_envs, alpha)) for alpha in (0.7, 0.3))
        state = before.add(before.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk)), chunk, priorities=given)
        row, env = jnp.divmod(jnp.arange(T * num_envs, dtype=jnp.int32), num_envs)
        starts = jb.Handle(env, row), errors.reshape(-1, 3), counts.reshape(-1, 3)
        state = CHANGES[name](after, state, starts, jnp.arange(1, num_envs, 2))
        mass = statistics.measure(after.local if split is shard else after, state).mass
        mass = mass[ring.slot(state.storage, row, env)].reshape(T, num_envs)
        return (mass, state.storage.data.truncated), after.stats(state)

    def shard(buffer):
        return jb.Sharded(buffer, AXIS)

    inputs = rows(0, T), priorities(0)[:T], errors, counts
    whole, stats = changed(lambda buffer: buffer, *inputs)
    of_devices, stats_of_devices = on_devices(lambda *args: changed(shard, *args), D, *[COLUMNS] * 4)(*inputs)
    for one, many in zip(whole, of_devices, strict=True):
        np.testing.assert_allclose(np.concatenate(np.asarray(many), axis=1), one, rtol=1e-6)
    for key, value in stats.items():
        np.testing.assert_allclose(stats_of_devices[key], np.full(D, value), rtol=1e-6, err_msg=key)


def test_progress_makes_samples_of_all_devices_recent():
    buffer = jb.Sharded(jb.ReplayBuffer(jb.Recent(eta=0.99, c_min=1.0), length=T, num_envs=N // D), AXIS)

    def ages(chunk, key):
        state = buffer.add(buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk)), chunk)
        return [buffer.age(state, buffer.sample(state, key, 32, progress).handle) for progress in (0.0, 0.9)]

    early, late = on_devices(ages, D, COLUMNS, P())(rows(0, T), jax.random.key(0))
    np.testing.assert_array_equal(np.max(early, axis=1), T - 1)
    np.testing.assert_array_equal(late, 0)  # T N 0.99^900 slots are less than a row
