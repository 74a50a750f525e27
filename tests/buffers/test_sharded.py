"""Buffers that are split over devices: what is learned from them on average is what one buffer would teach."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from support import helpers, registry
from support.mesh import AXIS, on_devices
from support.shards import COLUMNS, D, K, N, T, masks, priorities, rows

import jaxrl_buffers as jb
from jaxrl_buffers.storage import ring


def every_start(buffer, state, key, progress):
    """Return for every slot its value, its probability and its weight, as if it were drawn."""
    inner = buffer.local if isinstance(buffer, jb.Sharded) else buffer
    length, num_envs = ring.shape(state.storage)
    slots = jnp.arange(length * num_envs, dtype=jnp.int32)
    handle = ring.handles_of(state.storage, slots, jnp.ones_like(slots, bool))
    sample = buffer.read(state, handle, key, progress)
    row, env = ring.unravel(state.storage, slots)
    draw = inner.sampler.measure(state.sampler, state.storage, slots, inner.window(state), progress)
    total = jnp.where(draw.total > 0, draw.total, 1)
    return {
        "value": ring.read(state.storage, row, env).obs,
        "probability": jnp.where(sample.weights > 0, draw.mass / total, 0),
        "weight": sample.weights,
        "factor": jnp.broadcast_to(jnp.asarray(draw.factor, jnp.float32), slots.shape),
    }


def compared(make, lockstep=True, progress=0.0, seed=0, betas=(None,)):
    """Return `every_start` of one buffer `[T N]` and of its parts on devices `[D, T n]`, for each `beta`."""
    chunk, given, mask = rows(seed), priorities(seed), masks(seed, lockstep)
    key = jax.random.key(seed)

    def filled(buffer, chunk, given, mask):
        state = buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk))
        for begin in range(0, K, 3):  # the ring wraps
            part = jax.tree.map(lambda leaf: leaf[begin : begin + 3], (chunk, given, mask))  # noqa: B023
            state = buffer.add(state, part[0], priorities=part[1], mask=part[2])
        return every_start(buffer, state, key, progress)

    def buffer_of(num_envs, beta):
        buffer = make(num_envs)
        return buffer if beta is None else buffer.replace(sampler=buffer.sampler.replace(beta=beta))

    one = jax.jit(lambda beta, *args: filled(buffer_of(N, beta), *args))
    specs = P(), COLUMNS, COLUMNS, COLUMNS
    many = on_devices(lambda beta, *args: filled(jb.Sharded(buffer_of(N // D, beta), AXIS), *args), D, *specs)
    given_betas = [None if beta is None else jnp.float32(beta) for beta in betas]
    return [jax.device_get((one(beta, chunk, given, mask), many(beta, chunk, given, mask))) for beta in given_betas]


def expected(starts) -> np.ndarray:
    """Return the expected weighted mean of the values."""
    probability, weight, value = (starts[name].astype(np.float64) for name in ("probability", "weight", "value"))
    return np.sum(probability * weight * value)


def check_same(whole, split):
    """Check the expected weighted mean, and that each device draws its starts in proportion to their mass."""
    factor = np.where(split["factor"] > 0, split["factor"], 1).astype(np.float64)
    here = D * split["probability"] / factor  # the probability with which its device draws a start
    has_starts = np.sum(split["probability"], axis=1) > 0
    np.testing.assert_allclose(np.sum(here, axis=1)[has_starts], 1, rtol=1e-5)
    assert has_starts.sum() >= 3
    np.testing.assert_allclose(np.sum(split["probability"]), 1, rtol=1e-5)
    mean_of_devices = np.mean([np.sum(here[d] * split["weight"][d] * split["value"][d]) for d in range(D)])
    np.testing.assert_allclose(mean_of_devices, expected(whole), rtol=2e-5)
    # Rows are in the order of environments, or of devices and then environments: compare what belongs together.
    order = np.lexsort(np.stack([whole["value"].ravel()])), np.lexsort(np.stack([split["value"].ravel()]))
    of_whole, of_split = (
        starts["probability"].ravel()[index] for starts, index in zip((whole, split), order, strict=True)
    )
    np.testing.assert_allclose(of_split, of_whole, rtol=1e-5, atol=1e-12)
    return here


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "cursors"])
@pytest.mark.parametrize("weighting", ["buffer", "alf"])
def test_the_expected_weighted_mean_is_that_of_one_buffer(lockstep, weighting):
    def make(num_envs):
        sampler = jb.Prioritized(alpha=0.7, weighting=weighting)
        return jb.ReplayBuffer(sampler, length=T, num_envs=num_envs, lockstep=lockstep)

    for whole, split in compared(make, lockstep, betas=(0.0, 0.4, 1.0)):
        here = check_same(whole, split)
        shares = np.sum(split["probability"], axis=1)
        assert shares.max() > 20 * shares[shares > 0].min()  # the devices are very unequal
        np.testing.assert_allclose(
            here[shares > 0], (split["probability"] / np.where(shares, shares, 1)[:, None])[shares > 0], rtol=1e-5
        )


SAMPLERS = {
    "uniform": (jb.Uniform(), False),
    "balanced": (jb.Uniform(balanced=True), False),
    "episodic": (jb.Episodic(), False),
    "recent": (jb.Recent(jb.Prioritized(), eta=0.9995, c_min=3.0), True),
    "recent_cursors": (jb.Recent(jb.Prioritized(weighting="alf"), eta=0.9995, c_min=3.0), False),
    "combined": (jb.Combined(jb.Prioritized(beta=0.4), (jb.Uniform(), jb.LastN(2.0)), (0.25, 0.25)), True),
    "combined_cursors": (jb.Combined(jb.Prioritized(beta=1.0), (jb.LastN(1.0, max_share=0.6),), (0.5,)), False),
    "recent_combined": (jb.Recent(jb.Combined(jb.Prioritized(), (jb.Uniform(),), (0.5,)), eta=0.9995, c_min=3.0), True),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler(name):
    sampler, lockstep = SAMPLERS[name]

    def make(num_envs):
        return jb.ReplayBuffer(sampler, length=T, num_envs=num_envs, lockstep=lockstep, keep_episodes=True)

    check_same(*compared(make, lockstep, progress=0.5)[0])


def test_sequences_within_episodes():
    """Devices have different numbers of starts even in lock-step."""

    def make(num_envs):
        view = jb.Sequence(2, within_episode=True)
        return jb.ReplayBuffer(jb.Prioritized(beta=0.4), view, length=T, num_envs=num_envs)

    check_same(*compared(make)[0])


def test_samples_have_the_weights_that_were_checked():
    """`sample` gives what `read` gives for the same starts, and devices draw different ones with one key."""
    for sampler in (jb.Prioritized(beta=0.4), jb.Combined(jb.Prioritized(beta=0.4), (jb.Uniform(),), (0.5,))):
        buffer = jb.Sharded(jb.ReplayBuffer(sampler, length=T, num_envs=N // D), AXIS)

        def drawn(chunk, given, key, buffer=buffer):
            state = buffer.add(buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk)), chunk, priorities=given)
            sample = buffer.sample(state, key, 16)
            return sample, buffer.read(state, sample.handle)

        chunk, given = jax.tree.map(lambda leaf: leaf[:T], (rows(0), priorities(0)))
        sample, read = on_devices(drawn, D, COLUMNS, COLUMNS, P())(chunk, given, jax.random.key(1))
        np.testing.assert_allclose(sample.weights, read.weights, rtol=1e-5)
        np.testing.assert_array_equal(sample.batch.obs, read.batch.obs)
        positions = np.asarray(sample.handle.position)
        assert all(not np.array_equal(positions[0], positions[d]) for d in range(1, D))


@pytest.mark.parametrize("view", ["single", "hindsight"])
def test_devices_with_the_same_rows_and_the_same_key_have_different_samples(view):
    """Where nothing but the device differs: the starts that `sample` draws, and the goals that `read` draws."""
    buffer = jb.Sharded(registry.BUFFERS["hindsight" if view == "hindsight" else "uniform"](8, 2), AXIS)
    chunk = helpers.stack([[helpers.transition(8 * env + row) for env in range(2)] for row in range(8)])

    def drawn(chunk, key):
        state = buffer.add(buffer.init(helpers.EXAMPLE), chunk)
        sample = buffer.sample(state, key, 16)
        if view == "single":
            return sample.handle.position
        starts = jnp.arange(16, dtype=jnp.int32)
        handle = ring.handles_of(state.storage, starts, jnp.ones_like(starts, bool))
        return jnp.stack(
            [leaf.reshape(16, -1)[:, 0] for leaf in jax.tree.leaves(buffer.read(state, handle, key).batch.obs)]
        )

    found = np.asarray(on_devices(drawn, D, P(), P())(chunk, jax.random.key(0)))
    assert len(np.unique(found.reshape(D, -1), axis=0)) == D


def test_weights_of_a_batch_are_refused():
    with pytest.raises(ValueError, match="largest weight of a batch"):
        jb.Sharded(jb.ReplayBuffer(jb.Recent(jb.Prioritized(weighting="batch")), length=4), AXIS)
    with pytest.raises(ValueError, match="one Combined"):
        jb.Sharded(jb.ReplayBuffer(jb.Combined(jb.Recent(jb.Combined()), (jb.Uniform(),), (0.5,)), length=4), AXIS)
    with pytest.raises(ValueError, match="shard\\(buffer, axis\\)"):
        jb.Sharded(jb.Mixture((jb.uniform(4),)), AXIS)


KINDS = ("recent_prioritized", "mix", "frames", "episodic", "hindsight", "prioritized_within_episode")


@pytest.mark.parametrize("name", [*KINDS, "mixture"])
def test_every_kind_of_buffer_in_a_loop(name):
    """A loop inside of `shard_map` keeps the types of the state, and every device learns from its own rows."""
    if name == "mixture":
        local = jb.Mixture((registry.BUFFERS["frames"](8, 2), registry.BUFFERS["uniform"](8, 1)), (3, 1))
    else:
        local = registry.BUFFERS[name](8, 2)
    buffer = jb.shard(local, AXIS)

    def looped(chunk, key):
        state = buffer.init(helpers.EXAMPLE)
        if name == "mixture":
            state = buffer.add(state, jax.tree.map(lambda leaf: leaf[:4, :1], chunk), part=1)

        def step(state, inputs):
            row, key = inputs
            state = buffer.add(state, jax.tree.map(lambda leaf: leaf[None], row))
            sample = buffer.sample(state, key, 6, 0.5)
            state = buffer.report_return(state, jnp.float32(1))
            errors = jnp.abs(sample.weights) + 1
            return buffer.update_priorities(state, sample.handle, errors), (sample.batch.action, sample.weights)

        state, outputs = jax.lax.scan(step, state, (chunk, jax.random.split(key, 12)))
        return *outputs, buffer.size(state)

    numbers = np.arange(12)[:, None] + 20 * np.arange(2 * 2)[None]
    chunk = helpers.stack([[helpers.transition(int(n), truncated=bool(n % 5 == 4)) for n in row] for row in numbers])
    action, weights, size = on_devices(looped, 2, COLUMNS, P())(chunk, jax.random.key(0))
    for device in range(2):
        drawn = np.asarray(action[device])[np.asarray(weights[device]).reshape(action[device].shape[:2]) > 0]
        np.testing.assert_array_equal(np.unique(drawn // 40), [device])
    assert np.all(np.isfinite(weights))
    assert size[0] == size[1] == (2 * 2 * 8 if name != "mixture" else 2 * 2 * 8 + 2 * 4)
