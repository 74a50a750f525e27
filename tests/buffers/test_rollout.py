"""On-policy rollouts against hand-worked numbers and a slow model of paths."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import number_buffer, scalars

import jaxrl_buffers as jb
from jaxrl_buffers import advantages
from jaxrl_buffers.rollouts import RETURNS

GAMMA, LAMBDA = 0.9, 0.8
GOLDEN_ADVANTAGE, GOLDEN_RETURN = [5.14792, 5.136, 3.8], [6.688, 6.32, 4.8]

add, finish_path, batch_of = jb.Rollout.add, jb.Rollout.finish_path, jb.Rollout.batch


def make(length, num_envs=1, **options):
    options = {"gamma": GAMMA, "gae_lambda": LAMBDA, "normalize": False, "returns": "rewards_to_go"} | options
    rollout = jb.rollout(length, num_envs, **options)
    return rollout, rollout.init(steps([[0.0]], [[0.0]], unbatched=True))


def steps(reward, value, terminated=None, truncated=None, obs=None, unbatched=False):
    """Return transitions `[K, N]` whose observation is their number, by default counted from 0."""
    reward = np.asarray(reward, np.float32)
    numbers = np.arange(reward.size, dtype=np.int32).reshape(reward.shape) if obs is None else np.asarray(obs, np.int32)
    no = np.zeros(reward.shape, bool)
    chunk = jb.Transition(
        obs=numbers,
        action=-numbers,
        reward=reward,
        terminated=no if terminated is None else np.asarray(terminated, bool),
        truncated=no if truncated is None else np.asarray(truncated, bool),
        next_obs=(),
        extras={"value": np.asarray(value, np.float32), "log_prob": numbers.astype(np.float32)},
    )
    return jax.tree.map(lambda leaf: leaf[0, 0], chunk) if unbatched else chunk


def column(values):
    return np.asarray(values)[:, None]


GOLDEN = steps(column([1, 2, 3]), column([0, 0.5, 1]))


def reference_path(reward, value, last_value, gamma=GAMMA, lam=LAMBDA):
    """Return the advantages and rewards-to-go of one path, each by its defining sum."""
    value = [*value, last_value]
    count = len(reward)
    delta = [reward[t] + gamma * value[t + 1] - value[t] for t in range(count)]
    advantage = [sum((gamma * lam) ** (i - t) * delta[i] for i in range(t, count)) for t in range(count)]
    returns = [
        sum(gamma ** (i - t) * reward[i] for i in range(t, count)) + gamma ** (count - t) * last_value
        for t in range(count)
    ]
    return advantage, returns


def test_discount_cumsum():
    np.testing.assert_allclose(jb.discount_cumsum(jnp.array([1.0, 2, 3]), 0.5), [2.75, 3.5, 3])
    two = jb.discount_cumsum(jnp.array([[1, 1], [2, 2], [3, 3]]), jnp.array([[0.5, 1.0], [0.5, 0.0], [9.0, 9.0]]))
    np.testing.assert_allclose(two, [[2.75, 3], [3.5, 2], [3, 3]])
    assert two.dtype == jnp.float32


@pytest.mark.parametrize("returns", RETURNS)
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_within_its_own_path(returns, normalize, bad):
    """Of three paths of two steps, the second one has a broken reward; and the one behind them is not closed."""
    rollout, state = make(7, returns=returns, normalize=normalize)
    rewards, ends = column([1, 2, 3, bad, 5, 6, bad]), column([0, 1, 0, 1, 0, 1, 0])
    chunk = steps(rewards, np.ones((7, 1)), terminated=ends)
    got = batch_of(rollout, add(rollout, state, chunk))
    is_good = np.array([True, True, False, False, True, True, False])
    zeroed = steps(np.where(np.isfinite(rewards), rewards, 0), np.ones((7, 1)), terminated=ends)
    sound = batch_of(rollout, add(rollout, state, zeroed))
    assert got.mask[:, 0].tolist() == [True] * 6 + [False]
    assert np.isfinite(got.return_[is_good]).all()
    assert not np.isfinite(got.advantage[2:4]).any()
    if normalize:
        np.testing.assert_allclose(np.mean(got.advantage[is_good]), 0, atol=1e-6)
        np.testing.assert_allclose(np.std(got.advantage[is_good]), 1, rtol=1e-5)
    else:
        np.testing.assert_array_equal(got.advantage[is_good], sound.advantage[is_good])
    np.testing.assert_array_equal(got.return_[is_good], sound.return_[is_good])


def test_hand_worked_advantages_and_returns():
    """Gamma 0.9, lambda 0.8, cut off with a last value of 2; the return is the return."""
    rollout, _ = make(3)
    batch = rollout.advantages(GOLDEN, jnp.array([[9.0], [9.0], [2.0]]))  # only the last one is read
    np.testing.assert_allclose(batch.advantage[:, 0], GOLDEN_ADVANTAGE, rtol=1e-6)
    np.testing.assert_allclose(batch.return_[:, 0], GOLDEN_RETURN, rtol=1e-6)
    assert batch.mask.all()
    np.testing.assert_array_equal(batch.extras["log_prob"], GOLDEN.extras["log_prob"])
    default = rollout.replace(returns="lambda").advantages(GOLDEN, jnp.full((3, 1), 2.0))
    np.testing.assert_allclose(default.return_, default.advantage + GOLDEN.extras["value"], rtol=1e-6)


@pytest.mark.parametrize(
    ("flag", "last_value"), [("terminated", 0.0), ("truncated", 2.0), (None, 2.0)], ids=["over", "cut off", "goes on"]
)
def test_what_comes_behind_the_end(flag, last_value):
    """Nothing when terminated, the given value of the final observation when cut off."""
    rollout, state = make(3)
    chunk = GOLDEN if flag is None else GOLDEN._replace(**{flag: column([False, False, True])})
    given = jnp.full((3, 1), 2.0)
    advantage, returns = reference_path([1, 2, 3], [0, 0.5, 1], last_value)
    together = rollout.advantages(chunk, given)
    stored = batch_of(rollout, finish_path(rollout, add(rollout, state, chunk), given[0]))
    at_once = batch_of(rollout, finish_path(rollout, add(rollout, state, chunk, given), given[0]))
    for batch in (together, stored, at_once):
        np.testing.assert_allclose(batch.advantage[:, 0], advantage, rtol=1e-6)
        np.testing.assert_allclose(batch.return_[:, 0], returns, rtol=1e-6)
        assert batch.mask.all()


def random_chunk(rng, num_rows, num_envs, first=0):
    shape = (num_rows, num_envs)
    numbers = np.arange(first * num_envs, (first + num_rows) * num_envs).reshape(shape)
    ends = rng.random(shape)
    return steps(rng.normal(size=shape), rng.normal(size=shape), ends < 0.15, (ends > 0.1) & (ends < 0.3), numbers)


def test_random_chunks_match_the_sums_path_by_path():
    rng = np.random.default_rng(0)
    rollout, _ = make(12, 3)
    for _ in range(10):
        chunk, next_value = random_chunk(rng, 12, 3), rng.normal(size=(12, 3)).astype(np.float32)
        batch = rollout.advantages(chunk, next_value)
        for env in range(3):
            begin = 0
            for t in range(12):
                if not (chunk.terminated[t, env] or chunk.truncated[t, env] or t == 11):
                    continue
                last = 0 if chunk.terminated[t, env] else next_value[t, env]
                path = slice(begin, t + 1), env
                advantage, returns = reference_path(chunk.reward[path], chunk.extras["value"][path], last)
                np.testing.assert_allclose(batch.advantage[path], advantage, rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(batch.return_[path], returns, rtol=1e-4, atol=1e-5)
                begin = t + 1


@pytest.mark.parametrize("offset", range(5))
def test_paths_that_wrap_or_fill_the_buffer_are_like_any_other(offset):
    """Rows stored one by one from every offset, in a ring just as long as the path and in a longer one."""
    for length in (3, 5):
        rollout, state = make(length)
        for number in range(offset):
            before = steps([[7]], [[7]], obs=[[-number]])
            state = finish_path(rollout, add(rollout, state, before), jnp.array([5.0]))
        for row in range(3):
            state = add(rollout, state, jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], GOLDEN))
        open_path = batch_of(rollout, state)
        assert int(open_path.mask.sum()) == min(offset, length - 3)
        batch = batch_of(rollout, finish_path(rollout, state, jnp.array([2.0])))
        newest = slice(min(offset, length - 3), min(offset, length - 3) + 3)
        np.testing.assert_array_equal(batch.obs[newest, 0], [0, 1, 2])
        np.testing.assert_allclose(batch.advantage[newest, 0], GOLDEN_ADVANTAGE, rtol=1e-6)
        np.testing.assert_allclose(batch.return_[newest, 0], GOLDEN_RETURN, rtol=1e-6)
        assert int(batch.mask.sum()) == min(offset + 3, length)


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
