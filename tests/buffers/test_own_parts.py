"""The sampler and the view of the guide `own_parts` work as any other, in every kind of buffer."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.guides import blocks
from support.helpers import EXAMPLE, assert_frequencies, random_transition, stack

import jaxrl_buffers as jb

LENGTH, NUM_ENVS, HORIZON, GAMMA = 12, 6, 4, 0.5


@pytest.fixture(scope="module")
def guide():
    """Return the names that the code of the guide defines."""
    names = {"__name__": "guide"}
    for language, _, text in blocks("own_parts"):
        if language == "python" and "class " in text:
            exec(compile(text, "guide", "exec", dont_inherit=True), names)
    return names


def made(guide, lockstep, frames=None):
    sampler = guide["HeldOut"](every=2)
    view = guide["Outcome"](horizon=HORIZON, gamma=GAMMA)
    return jb.ReplayBuffer(sampler, view, length=LENGTH, num_envs=NUM_ENVS, lockstep=lockstep, frames=frames)


def rows(num_rows, seed=0):
    """Return numbered random rows `[num_rows, NUM_ENVS]`; the number is that of the slot in order of time."""
    rng = np.random.default_rng(seed)
    return [[random_transition(rng, t * NUM_ENVS + n) for n in range(NUM_ENVS)] for t in range(num_rows)]


def outcome(rows, t, n):
    """Return what the view should say of a start: the return as far as it is known, and whether it terminates."""
    total, factor = 0.0, 1.0
    for step in [row[n] for row in rows[t : t + HORIZON]]:
        total, factor = total + factor * float(step.reward), factor * GAMMA
        if step.terminated or step.truncated:
            return total, bool(step.terminated)
    return total, False


@pytest.mark.parametrize("lockstep", [True, False])
def test_samples_are_what_they_should_be(guide, lockstep):
    """Also when the ring has wrapped."""
    buffer, given = made(guide, lockstep), rows(LENGTH + 5)
    state = buffer.init(EXAMPLE)
    for begin in range(0, LENGTH + 5, 3):
        state = buffer.add(state, stack(given[begin : begin + 3]))
    sample = jax.jit(lambda state, key: buffer.sample(state, key, 4_000))(state, jax.random.key(1))
    assert set(np.asarray(sample.handle.env).tolist()) == {0, 2, 4}
    number = np.asarray(sample.batch.action)
    counts = np.bincount(number, minlength=(LENGTH + 5) * NUM_ENVS).reshape(-1, NUM_ENVS)
    assert_frequencies(counts[5:, ::2].reshape(-1), np.full(LENGTH * 3, 1 / (LENGTH * 3)))
    expected = {one: outcome(given, *divmod(int(one), NUM_ENVS)) for one in set(number.tolist())}
    np.testing.assert_allclose(sample.batch.reward, [expected[one][0] for one in number.tolist()], rtol=1e-5, atol=1e-6)
    assert np.asarray(sample.batch.mask).tolist() == [expected[one][1] for one in number.tolist()]
    assert {True, False} == set(np.asarray(sample.batch.mask).tolist())
    chex.assert_trees_all_equal(sample.weights, sample.batch.mask.astype(jnp.float32))


@pytest.mark.parametrize("lockstep", [True, False])
def test_nothing_is_drawn_from_an_empty_buffer(guide, lockstep):
    buffer = made(guide, lockstep)
    sample = buffer.sample(buffer.init(EXAMPLE), jax.random.key(0), 5)
    assert not np.asarray(sample.batch.mask).any()
    assert not np.asarray(sample.weights).any()


def test_they_go_with_other_parts_and_with_scan_and_vmap(guide):
    """Inside `Combined` and `Recent`, and with `Frames`; a read of what was drawn gives the same."""
    frames = jb.Frames(stack=2, axis=0, stacked="image", num_finals=LENGTH)
    buffer = made(guide, False, frames)
    inside = jb.Recent(buffer.sampler, c_min=4.0 * NUM_ENVS)
    buffer = buffer.replace(sampler=jb.Combined(jb.Prioritized(), (inside,), (0.5,)))
    chunk = stack(rows(LENGTH + 3))

    def step(state, inputs):
        row, key = inputs
        state = buffer.add(state, jax.tree.map(lambda leaf: leaf[None], row))
        sample = buffer.sample(state, key, 8, progress=0.9)
        return buffer.update_priorities(state, sample.handle, jnp.ones(8)), sample

    keys = jax.random.split(jax.random.key(0), LENGTH + 3)
    state, samples = jax.jit(lambda state: jax.lax.scan(step, state, (chunk, keys)))(buffer.init(EXAMPLE))
    assert not (np.asarray(samples.handle.env)[:, :4] % 2).any()  # the share of the sampler that holds out
    assert (np.asarray(samples.handle.env)[:, 4:] % 2).any()
    many = jax.vmap(lambda key: buffer.sample(state, key, 8))(keys)
    again = jax.vmap(lambda handle: buffer.read(state, handle))(many.handle)
    chex.assert_trees_all_equal(again.batch, many.batch)


def test_leaves_change_without_a_new_program(guide):
    buffer = made(guide, True)
    state = buffer.add(buffer.init(EXAMPLE), stack(rows(LENGTH)))
    traced = jax.jit(lambda buffer, state: buffer.sample(state, jax.random.key(0), 64).handle.env)
    for every in (2, 3, 6):
        changed = jb.with_parameters(buffer, {"sampler.every": every, "view.gamma": 0.1 * every})
        assert set(np.asarray(traced(changed, state)).tolist()) == set(range(0, NUM_ENVS, every))
    assert traced._cache_size() == 1
    assert isinstance(buffer.sampler, jb.Sampler)
    assert isinstance(buffer.view, jb.View)
