"""Keys that give JAX's own random numbers in less time."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_buffers as jb
from algorithms import DDQN, SAC, Plan, environments
from algorithms.training import loop
from jaxrl_buffers._random.hashing import fold_in, split, unrolled

DRAWS = {
    "bits": lambda key: jax.random.bits(key, (3, 5)),
    "bytes": lambda key: jax.random.bits(key, (7,), jnp.uint8),
    "scalar": lambda key: jax.random.uniform(key),
    "nothing": lambda key: jax.random.uniform(key, (0, 2)),
    "normal": lambda key: jax.random.normal(key, (2, 2, 3)),
    "integers": lambda key: jax.random.randint(key, (4,), 0, 1000),
    "permutation": lambda key: jax.random.permutation(key, 10),
    "split": lambda key: jax.random.key_data(jax.random.split(key, (4, 2))),
    "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, 2**31 + 7)),
    "later": lambda key: jax.random.bits(jax.random.fold_in(jax.random.split(key)[1], 3)),
    "batch": lambda key: jax.vmap(lambda key: jax.random.uniform(key, (2,)))(jax.random.split(key, 3)),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_the_random_numbers_are_those_of_jax(draw):
    both = jax.jit(lambda key: (draw(key), draw(unrolled(key))))
    for seed in (0, 2**31 - 1):
        jax.tree.map(np.testing.assert_array_equal, *both(jax.random.key(seed)))


def test_words_of_64_bits():
    with jax.enable_x64(True):
        key = jax.random.key(3)
        expected = jax.random.bits(key, (5,), jnp.uint64)
        np.testing.assert_array_equal(jax.random.bits(unrolled(key), (5,), jnp.uint64), expected)


def test_raw_keys_and_batches_of_keys():
    raw = jax.random.PRNGKey(4)
    np.testing.assert_array_equal(jax.random.bits(unrolled(raw)), jax.random.bits(raw))
    keys = jax.random.split(jax.random.key(5), (2, 3))
    np.testing.assert_array_equal(jax.random.key_data(unrolled(keys)), jax.random.key_data(keys))
    np.testing.assert_array_equal(jax.random.key_data(unrolled(unrolled(keys))), jax.random.key_data(keys))


def test_other_keys_stay_as_they_are():
    key = jax.random.key(0, impl="rbg")
    assert unrolled(key) is key
    with jax.threefry_partitionable(False):  # whose bits are others
        key = jax.random.key(0)
        assert unrolled(key) is key


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_buffers_take_keys_of_any_generator(impl):
    buffer = jb.prioritized(8, num_envs=2)
    state = buffer.init(jb.Transition(0.0, 0, 0.0, False, False, 0.0))
    state = buffer.add(state, jax.tree.map(jnp.ones_like, state.storage.data))
    assert buffer.sample(state, jax.random.key(0, impl=impl), 3).batch.reward.tolist() == [1, 1, 1]


def test_keys_used_twice_are_still_found():
    buffer = jb.uniform(8)
    state = buffer.init(jb.Transition(0.0, 0, 0.0, False, False, 0.0))
    state = buffer.add(state, jax.tree.map(jnp.ones_like, state.storage.data))
    twice = jax.jit(lambda key: (buffer.sample(state, key, 2), buffer.sample(state, key, 2)))
    twice(jax.random.key(0))
    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        twice(jax.random.key(0))


@pytest.mark.parametrize("shape", [2, (4, 2), ()])
@pytest.mark.parametrize(
    "make_key",
    [jax.random.key, jax.random.PRNGKey, lambda seed: jax.random.key(seed, impl="rbg")],
    ids=["typed", "raw", "other"],
)
def test_keys_are_split_and_folded_as_by_jax(make_key, shape):
    """With the same words, and of the same type, which may be handed on."""
    key = make_key(7)
    for ours, expected in (
        (split(key, shape), jax.random.split(key, shape)),
        (fold_in(key, 2**31 + 7), jax.random.fold_in(key, 2**31 + 7)),
    ):
        assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(jax.random.key_data(ours), jax.random.key_data(expected))


def operations(platform, function, *args):
    """Return what a program does, as it is given to the compiler of a platform, without constants and plumbing."""
    text = jax.jit(function).trace(*args).lower(lowering_platforms=(platform,)).as_text()
    plumbing = "constant", "case", "return"  # cases are of the one branch that was chosen
    return [name for name in re.findall(r"stablehlo\.(\w+)", text) if name not in plumbing]


@pytest.mark.parametrize("name", ["bits", "normal", "split", "fold_in", "batch"])
def test_other_platforms_hash_as_jax_does(name):
    draw, key = DRAWS[name], jax.random.key(0)
    for platform in ("tpu", "cuda"):
        assert operations(platform, lambda key: draw(unrolled(key)), key) == operations(platform, draw, key)
    assert "while" in operations("cpu", draw, key)
    assert "while" not in operations("cpu", lambda key: draw(unrolled(key)), key)


def test_no_loop_is_left():
    """A loop of small kernels is what makes JAX's own hash slow on CPU."""
    buffer = jb.prioritized(64, num_envs=2)
    state = jax.eval_shape(buffer.init, jb.Transition(0.0, 0, 0.0, False, False, 0.0))
    sample = jax.jit(lambda state, key: buffer.sample(state, key, 4))
    assert "while" not in sample.lower(state, jax.random.key(0)).compile().as_text()


def hash_loops(compiled):
    """Return the loops of five rounds, which is what JAX's own hash is on CPU."""
    return re.findall(r' while\(.*"known_trip_count":\{"n":"5"\}', compiled.as_text())


@pytest.mark.parametrize(("agent", "name"), [(DDQN, "CartPole-v1"), (SAC, "Pendulum-v1")])
def test_training_has_no_loop_that_hashes(agent, name):
    """Neither in the buffer, nor in our agents, nor in environments of gymnax; a user's code is what it is."""
    env = environments.make(name)
    # No other loop of it has five rounds.
    plan = Plan(
        total_steps=360,
        start_steps=40,
        update_every=8,
        num_updates=3,
        test_every=80,
        num_test_episodes=4,
        mini_batch_size=16,
    )
    train = jax.jit(lambda key: loop.train(key, agent(env.action_space), jb.prioritized(64), env, plan))
    assert hash_loops(train.lower(jax.random.key(0)).compile()) == []
    plain = jax.jit(lambda key: env.env.reset(key, env.params))
    assert hash_loops(plain.lower(jax.random.key(0)).compile())  # as it is without all this
