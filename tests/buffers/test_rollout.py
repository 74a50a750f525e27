"""On-policy rollouts against hand-worked numbers and a slow model of paths."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import number_buffer, scalars
from support.paths import (
    GOLDEN,
    GOLDEN_ADVANTAGE,
    GOLDEN_RETURN,
    LAMBDA,
    add,
    batch_of,
    column,
    finish_path,
    make,
    random_chunk,
    reference_path,
    steps,
)

import jaxrl_buffers as jb
from jaxrl_buffers import advantages


class ReferenceStore:
    """One environment's rows as a list of paths; the newest `length` rows count."""

    def __init__(self, length):
        self.length, self.paths, self.open = length, [], []

    def add(self, number, reward, value, terminated):
        self.open.append((number, reward, value))
        if terminated:
            self.close(0.0)

    def close(self, last_value):
        if self.open:
            numbers, reward, value = zip(*self.open, strict=True)
            self.paths.append(list(zip(numbers, *reference_path(reward, value, last_value), strict=True)))
            self.open = []

    def lose(self):
        """A truncated row was not finished at once: its path has no worth."""
        self.paths.append([(number, None, None) for number, *_ in self.open])
        self.open = []

    def rows(self):
        every = [row for path in self.paths for row in path] + [(number, None, None) for number, *_ in self.open]
        return every[-self.length :]


def test_random_streams_match_the_model_through_wraps():
    rng = np.random.default_rng(1)
    length, num_envs = 5, 2
    rollout, state = make(length, num_envs)
    models = [ReferenceStore(length) for _ in range(num_envs)]
    for step in range(60):
        chunk = random_chunk(rng, 1, num_envs, step)
        state = add(rollout, state, chunk)
        where, last_value = rng.random(num_envs) < 0.4, rng.normal(size=num_envs).astype(np.float32)
        state = finish_path(rollout, state, last_value, where)
        for env, model in enumerate(models):
            terminated, truncated = bool(chunk.terminated[0, env]), bool(chunk.truncated[0, env])
            model.add(int(chunk.obs[0, env]), chunk.reward[0, env], chunk.extras["value"][0, env], terminated)
            if where[env]:
                model.close(last_value[env])
            elif truncated and not terminated:
                model.lose()
        batch = jax.tree.map(np.asarray, batch_of(rollout, state))
        for env, model in enumerate(models):
            expected = model.rows()
            assert batch.mask[:, env].tolist() == [row[1] is not None for row in expected] + [False] * (
                length - len(expected)
            )
            for t, (number, advantage, returns) in enumerate(expected):
                assert batch.obs[t, env] == number
                np.testing.assert_allclose(batch.advantage[t, env], advantage or 0, rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(batch.return_[t, env], returns or 0, rtol=1e-4, atol=1e-5)


def test_advantages_are_normalized_over_valid_rows_only_and_never_in_place():
    rollout, state = make(8, normalize=True, epsilon=1e-3)
    state = finish_path(rollout, add(rollout, state, GOLDEN), jnp.array([2.0]))
    state = add(rollout, state, GOLDEN)  # an open path, and two rows that were never written
    one, two = batch_of(rollout, state), batch_of(rollout, state)
    golden = np.array(GOLDEN_ADVANTAGE)
    expected = (golden - golden.mean()) / (golden.std() + 1e-3)
    for batch in (one, two):
        assert batch.mask[:, 0].tolist() == [True] * 3 + [False] * 5
        np.testing.assert_allclose(batch.advantage[:, 0], [*expected, 0, 0, 0, 0, 0], rtol=1e-5)
        np.testing.assert_allclose(batch.return_[:3, 0], GOLDEN_RETURN, rtol=1e-6)
    constant = advantages.normalize(jnp.ones(3), jnp.array([True, True, False]), 1e-8)
    np.testing.assert_array_equal(constant, [0, 0, 0])


def test_sampled_rows_are_distinct_and_masked_where_there_are_too_few():
    rollout, state = make(8)
    state = finish_path(rollout, add(rollout, state, GOLDEN), jnp.array([2.0]))
    state = add(rollout, state, GOLDEN._replace(obs=column([3, 4, 5])))
    orders = set()
    for seed in range(10):
        batch = rollout.sample(state, jax.random.key(seed), 4)
        assert batch.mask.tolist() == [True, True, True, False]
        order = tuple(batch.obs[:3].tolist())
        orders.add(order)
        np.testing.assert_allclose(batch.advantage[:3], np.array(GOLDEN_ADVANTAGE)[list(order)], rtol=1e-6)
    assert {frozenset(order) for order in orders} == {frozenset({0, 1, 2})}
    assert len(orders) > 1
    for many in (2, 20):
        batch = rollout.sample(state, jax.random.key(0), many)
        assert batch.mask.shape == batch.obs.shape == (many,)
        assert int(batch.mask.sum()) == min(many, 3)
    empty = rollout.sample(rollout.clear(state), jax.random.key(0), 4)
    assert not empty.mask.any()
    assert np.isfinite(empty.advantage).all()


def test_a_simple_replay_buffer_is_a_first_in_first_out_ring_with_distinct_draws():
    """Capacity 4 and 6 rows leave 4, 5, 2, 3 in the ring, and the next row goes to place 2."""
    buffer, state = number_buffer(4, sampler=jb.Uniform(method="distinct"))
    for number in range(6):
        state = buffer.add(state, scalars([number]))
    assert state.storage.data[:, 0].tolist() == [4, 5, 2, 3]
    assert int(state.storage.head) % 4 == 2
    sample = buffer.sample(state, jax.random.key(0), 5)
    assert sorted(sample.batch[:4, 0].tolist()) == [2, 3, 4, 5]
    assert sample.weights.tolist() == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("num_minibatches", [1, 3, 4, 12])
def test_minibatches_go_through_every_row_once_an_epoch_in_a_new_order(num_minibatches):
    rollout, _ = make(4, 3)
    batch = rollout.advantages(random_chunk(np.random.default_rng(0), 4, 3), jnp.zeros((4, 3)))
    batch = batch._replace(mask=batch.mask.at[1, 2].set(False))

    def step(count, minibatch):
        return count + 1, (minibatch.obs, minibatch.action, minibatch.advantage, minibatch.mask)

    @jax.jit
    def run(batch, key):
        return jb.scan_minibatches(step, jnp.int32(0), batch, key, num_epochs=3, num_minibatches=num_minibatches)

    count, (obs, action, advantage, mask) = jax.tree.map(np.asarray, run(batch, jax.random.key(0)))
    assert count == 3 * num_minibatches
    assert obs.shape == (3 * num_minibatches, -(-12 // num_minibatches))
    orders = set()
    for epoch in range(3):
        part = slice(epoch * num_minibatches, (epoch + 1) * num_minibatches)
        valid = mask[part].ravel()
        seen = obs[part].ravel()[valid]
        assert sorted(seen) == [number for number in range(12) if number != 5]
        np.testing.assert_array_equal(action[part].ravel()[valid], -seen)
        np.testing.assert_array_equal(advantage[part].ravel()[valid], np.asarray(batch.advantage).ravel()[seen])
        orders.add(tuple(seen))
    assert len(orders) == 3


def test_uneven_minibatches_are_padded():
    rollout, _ = make(5)
    chunk = random_chunk(np.random.default_rng(0), 5, 1)
    batch = rollout.advantages(chunk, jnp.zeros((5, 1)))
    _, (obs, mask) = jb.scan_minibatches(
        lambda carry, part: (carry, (part.obs, part.mask)),
        (),
        batch,
        jax.random.key(0),
        num_epochs=1,
        num_minibatches=3,
    )
    assert mask.tolist() == [[True, True], [True, True], [True, False]]
    assert sorted(obs[mask].tolist()) == list(range(5))


def test_hyper_parameters_are_leaves_and_states_keep_their_types():
    rollout, state = make(4, normalize=True)
    assert jb.parameters(rollout).keys() == {"gamma", "gae_lambda", "epsilon"}
    many = rollout.replace(gamma=jnp.array([0.0, 0.9]), gae_lambda=jnp.full(2, LAMBDA), epsilon=jnp.full(2, 1e-8))
    both = jax.vmap(lambda one: one.replace(normalize=False).advantages(GOLDEN, jnp.full((3, 1), 2.0)))(many)
    np.testing.assert_allclose(both.advantage[0, :, 0], [1, 1.5, 2], rtol=1e-6)
    np.testing.assert_allclose(both.advantage[1, :, 0], GOLDEN_ADVANTAGE, rtol=1e-6)
    with jax.enable_x64(True):
        _, state = make(4)
        chunk = jax.tree.map(jnp.asarray, GOLDEN)
        new = finish_path(rollout, add(rollout, state, chunk), jnp.array([2.0]))
        assert list(map(jax.typeof, jax.tree.leaves(new))) == list(map(jax.typeof, jax.tree.leaves(state)))
        batch = batch_of(rollout, new)
        assert batch.advantage.dtype == batch.return_.dtype == jnp.float32


def test_a_policy_gradient_step_runs_inside_one_program():
    """Collect by `scan`, form advantages and train on minibatches, all under `jit` and `vmap`."""
    rollout = jb.rollout(6, 2)

    @jax.jit
    @jax.vmap
    def train(key):
        key_collect, key_train = jax.random.split(key)

        def collect(obs, key):
            next_obs = jax.random.normal(key, (2,))
            flags = next_obs > 1
            extras = {"value": 0.5 * obs, "log_prob": -obs}
            return next_obs, jb.Transition(obs, obs, obs, flags, ~flags & (next_obs < -1), next_obs, extras)

        _, chunk = jax.lax.scan(collect, jnp.zeros(2), jax.random.split(key_collect, 6))
        batch = rollout.advantages(chunk, 0.5 * chunk.next_obs)

        def step(weight, part):
            def loss(weight):
                return jnp.mean((weight * part.obs - part.return_) ** 2, where=part.mask)

            return weight - 0.1 * jax.grad(loss)(weight), loss(weight)

        return jb.scan_minibatches(step, jnp.float32(0), batch, key_train, num_epochs=2, num_minibatches=3)

    weight, losses = train(jax.random.split(jax.random.key(0), 2))
    assert losses.shape == (2, 6)
    assert np.isfinite(losses).all()
    assert weight[0] != weight[1]


def test_bad_input_is_refused():
    rollout, state = make(3)
    with pytest.raises(ValueError, match=r"advantages\(\) got `next_value` of shape \(1,\); \(3, 1\) is needed"):
        rollout.advantages(GOLDEN, jnp.zeros(1))
    with pytest.raises(ValueError, match=r"advantages\(\) got `chunk.reward` of shape \(3,\)"):
        rollout.advantages(GOLDEN._replace(reward=jnp.zeros(3)), jnp.zeros((3, 1)))
    with pytest.raises(ValueError, match=r'extras\["value"\]`; there is no field .value.*: log_prob'):
        rollout.advantages(GOLDEN._replace(extras={"log_prob": 0}), jnp.zeros((3, 1)))
    with pytest.raises(ValueError, match=r'extras\["value"\]'):
        rollout.init(steps([[0.0]], [[0.0]], unbatched=True)._replace(extras=()))
    with pytest.raises(ValueError, match="got 4 rows but the ring holds 3"):
        rollout.add(state, steps(column([0] * 4), column([0] * 4)))
    with pytest.raises(ValueError, match=r"finish_path\(\) got `last_value` of shape \(\); \(1,\) is needed"):
        rollout.finish_path(state, jnp.float32(0))
    with pytest.raises(ValueError, match="5 minibatches, but the rollout has 3 rows"):
        jb.scan_minibatches(
            lambda carry, part: (carry, ()),
            (),
            rollout.batch(state),
            jax.random.key(0),
            num_epochs=1,
            num_minibatches=5,
        )
    for options in ({"gamma": -1}, {"gae_lambda": 1.5}, {"epsilon": -1.0}, {"returns": "td"}):
        with pytest.raises(ValueError, match=rf"Rollout\({next(iter(options))}="):
            jb.rollout(3, **options)
    with pytest.raises(ValueError, match=r"Rollout\(length=0\)"):
        jb.rollout(0)


def test_the_old_name_of_normalize_still_works():
    with pytest.warns(DeprecationWarning, match="`is_normalized` of Rollout is now called `normalize`"):
        rollout = jb.rollout(3, is_normalized=False)
    assert rollout.normalize is False
