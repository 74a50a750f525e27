"""Observations kept once, against the same rows kept whole: through wraps, ends of episodes, breaks and lost finals."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core
from support import helpers
from support.helpers import every_slot
from support.stacked import LENGTH, NUM_ENVS, STACK, Environment, History, pair

import jaxrl_buffers as jb
from jaxrl_buffers import host
from jaxrl_buffers.storage import ring


def check(buffer, naive, states, history):
    """Compare every start, bit for bit, but for the lost final observations."""
    (got, legal), (expected, naive_legal) = (
        jax.tree.map(np.asarray, every_slot(*each)) for each in zip((buffer, naive), states, strict=True)
    )
    positions = got.handle.position
    age = np.broadcast_to(states[0].storage.head, NUM_ENVS)[got.handle.env] - 1 - positions
    oldest = np.broadcast_to(states[0].storage.size, NUM_ENVS)[got.handle.env] - (STACK - 1)
    np.testing.assert_array_equal(legal, naive_legal & (age < oldest))
    for slot in np.flatnonzero(legal):
        one, other = (jax.tree.map(lambda leaf, slot=slot: leaf[slot], each.batch) for each in (got, expected))
        env, start = int(got.handle.env[slot]), int(positions[slot])
        if one.mask.ndim:
            lost = np.array([history.is_lost(env, start + step) for step in range(len(one.mask))])
            np.testing.assert_array_equal(one.mask, other.mask & ~lost)
        else:
            last = start
            while (
                last < start + buffer.view.n - 1 and last + 1 < len(history.ended[env]) and not history.ended[env][last]
            ):
                last += 1
            lost = np.array(history.is_lost(env, last))
            assert bool(one.mask) == (not lost) == (got.weights[slot] > 0)
        next_obs = (jax.tree.map(lambda leaf, lost=lost: leaf[~lost], each.next_obs) for each in (one, other))
        jax.tree.map(np.testing.assert_array_equal, *next_obs)
        plain = (each._replace(next_obs=(), mask=()) for each in (one, other))
        jax.tree.map(np.testing.assert_array_equal, *plain)
    return int((legal & ~np.asarray(got.batch.mask.reshape(len(legal), -1).all(1))).sum())


def follow(view, lockstep, axis, padding, num_finals, num_adds=20):
    """Take both buffers through random adds, drops and breaks."""
    buffer, naive = pair(view, lockstep, axis=axis, padding=padding, num_finals=num_finals)
    environments = [Environment(seed, axis, padding) for seed in range(NUM_ENVS)]
    states = [each.init(Environment(0, axis, padding).step()) for each in (buffer, naive)]
    rng, history, num_lost = np.random.default_rng(1), History(num_finals), 0
    for count in range(num_adds):
        num_rows = int(rng.choice([1, 5]))
        mask = None if lockstep else rng.random((num_rows, NUM_ENVS)) < 0.7
        blank = environments[0].observation()
        rows = []
        for step in range(num_rows):
            rows.append([])
            for env, environment in enumerate(environments):
                if mask is None or mask[step, env]:
                    row = environment.step()
                    history.ended[env].append(bool(row.terminated or row.truncated))
                else:
                    row = jb.Transition(blank, np.int32(-1), np.float32(0), np.bool_(True), np.bool_(True), blank)
                rows[-1].append(row)
        states = [helpers.add(each, state, helpers.stack(rows), mask=mask)
                  for each, state in zip((buffer, naive), states, strict=True)]  # fmt: skip
        if count % 6 == 5:
            broken = rng.permutation(NUM_ENVS)[: int(rng.integers(1, NUM_ENVS + 1))].astype(np.int32)
            states = [each.mark_break(state, broken) for each, state in zip((buffer, naive), states, strict=True)]
            for env in broken:
                environments[env].reset()
                if history.ended[env]:
                    history.ended[env][-1] = True
        if count % 8 == 7:
            states = [helpers.drop_oldest(each, state, num_rows=2)
                      for each, state in zip((buffer, naive), states, strict=True)]  # fmt: skip
        num_lost += check(buffer, naive, states, history)
    return buffer, states[0], history, num_lost


@pytest.mark.parametrize(
    ("view", "lockstep", "axis", "padding", "num_finals"),
    [
        (jb.NStep(), True, -1, "edge", 2),
        (jb.NStep(n=3), False, 0, "zeros", 9),
        (jb.Sequence(3), False, 1, "edge", 1),
    ],
)
def test_samples_are_those_of_rows_kept_whole(view, lockstep, axis, padding, num_finals):
    buffer, state, history, num_lost = follow(view, lockstep, axis, padding, num_finals)
    assert (num_lost > 0) == (num_finals < LENGTH)
    heads, sizes = (np.broadcast_to(cursor, NUM_ENVS) for cursor in (state.storage.head, state.storage.size))
    lost = [history.is_lost(env, position) for env in range(NUM_ENVS)
            for position in range(heads[env] - sizes[env], heads[env])]  # fmt: skip
    assert int(buffer.stats(state)["lost_finals"]) == sum(lost)


def test_rows_are_read_back_whole():
    buffer, naive = pair(jb.NStep(), True, num_finals=LENGTH)
    environments = [Environment(seed, -1, "edge", ends=0.1) for seed in range(NUM_ENVS)]
    chunk = helpers.stack([[environment.step() for environment in environments] for _ in range(7)])
    states = [helpers.add(each, each.init(environments[0].step()), chunk) for each in (buffer, naive)]
    one, other = (
        jax.tree.map(np.asarray, helpers.gather_all(*each)) for each in zip((buffer, naive), states, strict=True)
    )
    np.testing.assert_array_equal(one[1], other[1])
    jax.tree.map(lambda got, expected: np.testing.assert_array_equal(got[one[1]], expected[one[1]]), one[0], other[0])
    handle = jb.Handle(jnp.int32([0, 1]), jnp.int32([6, 4]))
    image, live = buffer.get_field(states[0], "next_obs.image", handle)
    assert live.all()
    np.testing.assert_array_equal(image, np.stack([chunk.next_obs["image"][6, 0], chunk.next_obs["image"][4, 1]]))


def numbered(length, num_finals=1, **options):
    """Return a buffer of stacks of three numbers, and a function that adds one row an element of `ends`."""
    buffer = jb.uniform(length).replace(frames=jb.Frames(STACK, num_finals=num_finals), **options)
    blank = np.zeros(STACK, np.float32)
    row = jb.Transition(blank, np.int32(0), np.float32(0), np.bool_(False), np.bool_(False), blank)

    def add(state, ends, begin=0):
        """Add rows whose newest frames are their numbers; those of `ends` finish an episode."""
        first = begin
        for number, end in enumerate(ends, begin):
            stacks = [np.float32(np.clip(np.arange(last - 2, last + 1), first, None)) for last in (number, number + 1)]
            one = row._replace(obs=stacks[0], action=np.int32(number), terminated=np.bool_(end), next_obs=stacks[1])
            state = helpers.add(buffer, state, helpers.stack([[one]]))
            first = number + 1 if end else first
        return state

    return buffer, buffer.init(row), add


def test_the_earliest_rows_are_no_starts_and_are_left_out():
    """Of a ring of 9 rows in one long episode: after 8 adds starts from 2 on, after 14 adds from 7 on."""
    buffer, empty, add = numbered(LENGTH)
    for num_rows, first_start, first_whole in ((3, 2, 0), (8, 2, 0), (14, 7, 7)):
        state = add(empty, [False] * num_rows)
        for method in ("independent", "stratified", "distinct"):
            drawing = buffer.replace(sampler=jb.Uniform(method))
            sample = helpers.sample(drawing, state, jax.random.key(0), batch_size=64)
            drawn = np.asarray(sample.handle.position)[np.asarray(sample.weights) > 0]
            assert set(drawn.tolist()) == set(range(first_start, num_rows))
        rows = host.gather_all(buffer, state)
        assert rows.action[:, 0].tolist() == list(range(first_whole, num_rows))
        expected = np.clip(np.arange(first_whole, num_rows)[:, None] + np.arange(-2, 1)[None], 0, None)
        np.testing.assert_array_equal(rows.obs[:, 0], expected)
        np.testing.assert_array_equal(rows.next_obs[:, 0, -1], expected[:, -1] + 1)


def test_rows_whose_frames_are_gone_are_told_apart_from_rows_that_are():
    """Six rows after nine: 3 and 4 lack older frames; with one final kept, 6 lacks its `next_obs` once 8 has ended."""
    buffer, empty, add = numbered(6)
    state = add(empty, [False] * 9)
    assert host.gather_all(buffer, state).action[:, 0].tolist() == [5, 6, 7, 8]
    with pytest.raises(ValueError, match=r"dequeue\(\).* 2 rows.* frames .* gone"):
        host.dequeue(buffer, state, 2)
    with pytest.raises(ValueError, match=r"asked for 5 rows, but the environments hold \[4\]"):
        host.dequeue(buffer, buffer.drop_oldest(state, 2), 5)
    taken, rows = host.dequeue(buffer, add(empty, [False] * 4), 2)
    assert rows.action[:, 0].tolist() == [0, 1]
    assert int(taken.storage.size) == 2
    handle = jb.Handle(jnp.zeros(6, jnp.int32), jnp.arange(3, 9))
    for field, live in (("action", [1] * 6), ("obs", [0, 0, 1, 1, 1, 1]), ("next_obs", [0, 0, 1, 1, 1, 1])):
        assert buffer.get_field(state, field, handle)[1].tolist() == live
    with pytest.raises(ValueError, match=r"not stored.*\[3, 4\]"):
        host.get_field(buffer, state, "obs", handle)
    lost = add(empty, [number in (6, 8) for number in range(9)])
    for field, live in (("action", [1] * 6), ("obs", [0, 0, 1, 1, 1, 1]), ("next_obs", [0, 0, 1, 0, 1, 1])):
        assert buffer.get_field(lost, field, handle)[1].tolist() == live
    with pytest.raises(ValueError, match=r"gather_all\(\).*final.*num_finals"):
        host.gather_all(buffer, lost)


def test_raw_sequences_with_a_lost_final_have_weight_zero():
    """Rows that are no transitions come without a mask."""
    buffer, state, add = numbered(6, view=jb.Sequence(2))
    state = add(state, [number in (3, 5) for number in range(6)])
    raw = buffer.gather_all(state)[0]._asdict()
    state = helpers.add(buffer, buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], raw)), raw)
    sample, legal = every_slot(buffer, state)
    assert sample.batch["obs"].shape == (6, 2, STACK)
    assert np.asarray(sample.weights)[np.asarray(legal)].tolist() == [0, 0, 1]  # starts 2, 3 and 4


@pytest.mark.parametrize("before", [0, 3])
def test_finals_are_counted_beyond_the_limit(before):
    """The number of the final frame to come starts again at 0, and which ones are lost stays the same."""
    ends = [number % 2 == 1 for number in range(LENGTH)]
    buffer, state, add = numbered(LENGTH, num_finals=2)
    number = jnp.full(1, (ring.POSITION_LIMIT - before) % ring.POSITION_LIMIT, jnp.int32)
    store = state.storage.frames.replace(next_final=number)
    state = add(state._replace(storage=state.storage._replace(frames=store)), ends)
    assert int(state.storage.frames.next_final[0]) == sum(ends) - before
    handle = jb.Handle(jnp.zeros(LENGTH, jnp.int32), jnp.arange(LENGTH))
    values, live = buffer.get_field(state, "next_obs", handle)
    assert live.tolist() == [number not in (1, 3) for number in range(LENGTH)]
    np.testing.assert_array_equal(np.asarray(values)[np.asarray(live), -1], np.flatnonzero(live) + 1)
    broken = buffer.mark_break(state)
    assert int(broken.storage.frames.next_final[0]) == sum(ends) - before + 1
    assert int(buffer.stats(broken)["lost_finals"]) == 3


def test_observations_that_are_not_stacked_are_kept_once():
    naive = jb.uniform(LENGTH, NUM_ENVS)
    buffer = naive.replace(frames=jb.Frames(stack=1, num_finals=LENGTH))
    environments = [Environment(seed, -1, "edge") for seed in range(NUM_ENVS)]
    chunk = helpers.stack([[environment.step() for environment in environments] for _ in range(8)])
    states = [helpers.add(each, each.init(environments[0].step()), chunk) for each in (buffer, naive)]
    got, expected = (every_slot(*each) for each in zip((buffer, naive), states, strict=True))
    jax.tree.map(lambda one, other: np.testing.assert_array_equal(one[:16], other[:16]), got, expected)


def test_stacked_images_take_a_sixth_of_the_bytes():
    """At most 0.16 of the bytes of rows kept whole, on stacked uint8 frames of shape (84, 84, 4)."""
    image = jax.ShapeDtypeStruct((84, 84, 4), jnp.uint8)
    row = jb.Transition(image, np.int32(0), np.float32(0), np.bool_(False), np.bool_(False), image)
    sizes = []
    for buffer in (jb.uniform(10_000, 8).replace(frames=jb.Frames()), jb.uniform(10_000, 8)):
        leaves = jax.tree.leaves(jax.eval_shape(buffer.init, row))
        sizes.append(sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves))
    assert sizes[0] <= 0.16 * sizes[1]


def test_what_does_not_fit_is_refused():
    row = Environment(0, -1, "edge").step()
    with pytest.raises(ValueError, match=r"stack=4, axis=-1.* shape \(2, 3, 3\).*stacked="):
        jb.uniform(9).replace(frames=jb.Frames(stacked="image")).init(row)
    with pytest.raises(ValueError, match=r"Frames needs the field 'obs.picture'"):
        jb.uniform(9).replace(frames=jb.Frames(3, stacked="picture")).init(row)
    with pytest.raises(ValueError, match="alike"):
        jb.uniform(9).replace(frames=jb.Frames(1)).init(row._replace(next_obs=row.obs["image"]))
    with pytest.raises(ValueError, match="spans 4 rows"):
        jb.ReplayBuffer(length=3, frames=jb.Frames(4))
    with pytest.raises(ValueError, match="padding='none'"):
        jb.Frames(padding="none")
    buffer = jb.uniform(9).replace(frames=jb.Frames(3, stacked="image"))
    with pytest.raises(ValueError, match="image"):
        buffer.add(
            buffer.init(row), helpers.stack([[row._replace(obs=row.obs | {"image": np.zeros((2, 3), np.uint8)})]])
        )


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.float32])
@pytest.mark.parametrize(("stack", "axis"), [(4, -1), (4, 0), (4, 1), (2, -1)])
def test_frames_are_joined_along_their_axis(dtype, stack, axis):
    """Four frames of bytes go another way than the rest, as words."""
    frames = np.random.default_rng(0).integers(0, 256, (3, stack, 2, 5)).astype(dtype)
    joined = jax.jit(jb.Frames(stack, axis)._joined)(frames)
    assert joined.dtype == dtype
    np.testing.assert_array_equal(joined, np.moveaxis(frames, 1, axis % 3 + 1))


def test_images_of_flags_are_kept():
    buffer = jb.ReplayBuffer(frames=jb.Frames(stack=2), length=6)
    images = np.random.default_rng(1).random((6, 1, 3, 2)) < 0.5
    images[1:, ..., 0] = images[:-1, ..., 1]
    images[0, ..., 0] = images[0, ..., 1]
    zeros, flags = np.zeros((5, 1), np.float32), np.zeros((5, 1), bool)
    chunk = jb.Transition(images[:-1], zeros, zeros, flags, flags, images[1:])
    state = buffer.add(buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk)), chunk)
    rows = jb.host.gather_all(buffer, state)
    assert rows.obs.dtype == rows.next_obs.dtype == bool
    np.testing.assert_array_equal(rows.obs, images[:-1])
    np.testing.assert_array_equal(rows.next_obs, images[1:])


def scattered(jaxpr, num_rows):
    """Return how many elements scatters write to arrays of at least that many rows, also inside other operations."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scatter" and equation.invars[0].aval.shape[0] >= num_rows:
            total += equation.invars[2].aval.size
        total += sum(scattered(inner, num_rows) for inner in core.jaxprs_in_params(equation.params))
    return total


@pytest.mark.parametrize("num_rows", [1, 3])
def test_in_lockstep_only_final_frames_are_scattered(num_rows):
    """Frames of rows, and those behind the head, are written contiguously, as are the numbers beside them."""
    buffer = jb.uniform(1_000, 2).replace(frames=jb.Frames(stack=4))
    image = jax.ShapeDtypeStruct((5, 6, 4), jnp.uint8)
    row = jb.Transition(image, np.int32(0), np.float32(0), np.bool_(False), np.bool_(False), image)
    chunk = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num_rows, 2, *leaf.shape), leaf.dtype), row)
    jaxpr = jax.make_jaxpr(buffer.add)(jax.eval_shape(buffer.init, row), chunk)
    assert scattered(jaxpr.jaxpr, 1_000) == max(num_rows * 2, 2) * 5 * 6
