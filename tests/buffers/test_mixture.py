"""Several buffers behind the interface of one: shares, routing of priorities, empty parts."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import assert_frequencies, scalars

import jaxrl_buffers as jb
from algorithms import DDQN, Plan, Torso, environments, train

RAW = {"alpha": 1.0, "epsilon": 0.0}
add = jax.jit(jb.Mixture.add, static_argnames="part")
sample = jax.jit(jb.Mixture.sample, static_argnames="batch_size")
update_priorities = jax.jit(jb.Mixture.update_priorities)


def online_and_offline():
    """Return a prioritized ring that has wrapped, holding 2..9, and a larger uniform one, holding 100..119."""
    view = jb.Sequence(1)
    online = jb.ReplayBuffer(jb.Prioritized(beta=0.5, **RAW), view, length=8)
    offline = jb.ReplayBuffer(jb.Prioritized(beta=1.0, **RAW), view, length=32, num_envs=2)
    mixture = jb.Mixture((online, offline), (1, 3))
    state = mixture.init(jnp.float32(0))
    state = add(mixture, state, scalars([0, 1]))
    state = add(mixture, state, scalars(range(2, 10)), priorities=jnp.arange(1.0, 9.0)[:, None])
    return mixture, add(mixture, state, scalars(range(100, 120), 2), part=1)


def test_fixed_shares_with_the_distribution_of_each_buffer():
    mixture, state = online_and_offline()
    assert mixture.counts(8) == [2, 6]
    assert mixture.counts(6) == [2, 4]
    assert jb.Mixture(mixture.buffers).counts(7) == [4, 3]
    drawn = sample(mixture, state, jax.random.key(0), batch_size=16_000)
    np.testing.assert_array_equal(drawn.handle.source, np.repeat([0, 1], [4_000, 12_000]))
    values = np.asarray(drawn.batch[:, 0]).astype(int)
    assert_frequencies(np.bincount(values[:4_000], minlength=10), [0, 0, *range(1, 9)])
    assert_frequencies(np.bincount(values[4_000:] - 100, minlength=20), np.ones(20))
    np.testing.assert_allclose(drawn.weights[:4_000], (1 / (values[:4_000] - 1)) ** 0.5, rtol=1e-5)
    assert (drawn.weights[4_000:] == 1).all()


def test_priorities_go_back_to_where_the_samples_came_from_in_any_order():
    mixture, state = online_and_offline()
    drawn = sample(mixture, state, jax.random.key(1), batch_size=16)
    order = np.random.default_rng(0).permutation(16)
    handle = jax.tree.map(lambda leaf: leaf[order], drawn.handle)
    new = 10.0 + jnp.arange(16.0)
    updated = update_priorities(mixture, state, handle, new)
    for number, part in enumerate(mixture.buffers):
        chosen = np.asarray(handle.source) == number
        own = jb.Handle(handle.env[chosen], handle.position[chosen])
        expected = part.update_priorities(state.parts[number], own, new[chosen])
        chex.assert_trees_all_equal(updated.parts[number], expected)
        assert not np.array_equal(helpers.leaves(expected), helpers.leaves(state.parts[number]))
    unknown = handle._replace(source=jnp.full(16, 7))
    chex.assert_trees_all_equal(update_priorities(mixture, state, unknown, new), state)


def test_an_empty_part_is_masked_and_the_others_keep_their_share():
    buffer = jb.prioritized(8)
    mixture = jb.Mixture((buffer, jb.uniform(8)), (1, 1))
    state = mixture.init(jb.Transition(0.0, 0, 0.0, False, False, 0.0))
    assert not mixture.can_sample(state)
    chunk = jax.tree.map(jnp.ones_like, state.parts[0].storage.data)
    state = mixture.add(state, chunk, part=1)
    drawn = sample(mixture, state, jax.random.key(0), batch_size=10)
    assert drawn.weights.tolist() == drawn.batch.mask.tolist() == [0] * 5 + [1] * 5
    assert mixture.can_sample(state, at_least=8)
    assert int(mixture.num_valid(state)) == int(mixture.size(state)) == 8
    updated = update_priorities(mixture, state, drawn.handle, jnp.full(10, 5.0))
    chex.assert_trees_all_equal(updated, state)
    assert not mixture.can_sample(mixture.clear(state, part=1))


def test_it_serves_where_a_buffer_does():
    """In `scan` with everything in it: the state keeps its types, and a whole loop is one program."""
    mixture, state = online_and_offline()

    @jax.jit
    def loop(mixture, state, keys):
        def step(state, key):
            state = mixture.add(state, jnp.ones((1, 1)))
            drawn = mixture.sample(state, key, 6, progress=0.5)
            state = mixture.update_priorities(state, drawn.handle, jnp.ones(6))
            return mixture.report_return(state, 1.0), drawn.weights.sum()

        return jax.lax.scan(step, state, keys)

    last, weights = loop(mixture, state, jax.random.split(jax.random.key(0), 10))
    assert jax.tree.map(jax.typeof, last) == jax.tree.map(jax.typeof, state)
    assert np.isfinite(weights).all()
    chex.assert_trees_all_equal(last.parts[1].storage, state.parts[1].storage)
    chex.assert_trees_all_close(mixture.reprioritize(last), last, rtol=1e-6)
    assert set(mixture.stats(last)) == {
        f"{i}/{name}" for i in (0, 1) for name in mixture.buffers[0].stats(last.parts[0])
    }
    assert "buffers.0.sampler.beta" in jb.parameters(mixture)


def test_offline_and_online_data_train_together():
    """Through the training loop: new rows go to the first part, priorities to both."""
    env = environments.make("CartPole-v1")
    agent = DDQN(env.action_space, Torso((4,)))
    online, offline = jb.prioritized(40, 2), jb.prioritized(8)
    mixture = jb.Mixture((online, offline), (3, 1))
    options = {
        "total_steps": 48,
        "num_envs": 2,
        "start_steps": 24,
        "update_every": 12,
        "num_updates": 2,
        "test_every": 0,
    }
    plan = Plan(**options, mini_batch_size=8)
    state = mixture.init(env.transition(()))
    chunk = jax.tree.map(lambda leaf: jnp.ones((8, 1, *leaf.shape[2:]), leaf.dtype), state.parts[0].storage.data)
    state = mixture.add(state, chunk, part=1)
    trained, metrics = jax.jit(lambda key: train(key, agent, mixture, env, plan, state))(jax.random.key(0))
    first, second = trained.buffer.parts
    assert int(first.storage.head) == 24
    chex.assert_trees_all_equal(second.storage, state.parts[1].storage)
    for part in trained.buffer.parts:
        stored = helpers.leaves(part)[helpers.leaves(part) > 0]
        assert np.unique(stored).size > 1
    assert 0 < float(metrics["sample_age"][-1]) < 24
    newest = mixture.mark_break(trained.buffer).parts[0].storage.data
    assert (newest.truncated | newest.terminated)[23].all()
    with pytest.raises(ValueError, match="only 24 samples can be drawn"):
        Plan(**options, mini_batch_size=36).check_buffer(mixture)


def test_ages_count_in_the_buffer_of_each_row():
    mixture, state = online_and_offline()
    handle = jb.MixtureHandle(jnp.int32([0, 1, 1]), jnp.int32([0, 1, 0]), jnp.int32([9, 19, 4]))
    assert mixture.age(state, handle).tolist() == [0, 0, 15]
    assert mixture.num_envs == 1


def test_misuse_is_refused():
    buffer = jb.uniform(4)
    with pytest.raises(ValueError, match="no buffer to draw from"):
        jb.Mixture(())
    with pytest.raises(ValueError, match="2 buffers have 1 `ratios`"):
        jb.Mixture((buffer, buffer), (1,))
    with pytest.raises(ValueError, match="nothing would be drawn"):
        jb.Mixture((buffer,), (0,))
    with pytest.raises(ValueError, match="at least 0"):
        jb.Mixture((buffer, buffer), (1, -1))
    mixture = jb.Mixture((buffer,))
    state = mixture.init(jb.Transition(0.0, 0, 0.0, False, False, 0.0))
    with pytest.raises(ValueError, match=r"add\(part=1\): there are 1 buffers"):
        mixture.add(state, state.parts[0].storage.data, part=1)
    with pytest.raises(ValueError, match="batch_size"):
        mixture.sample(state, jax.random.key(0), 0)
    handle = jb.MixtureHandle(jnp.zeros(2, int), jnp.zeros(3, int), jnp.zeros(3, int))
    with pytest.raises(ValueError, match=r"handle\.source"):
        mixture.update_priorities(state, handle, jnp.ones(3))
