"""Keys that give JAX's own random numbers in less time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_buffers as jb
from jaxrl_buffers._random.hashing import unrolled

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


def test_no_loop_is_left():
    """A loop of small kernels is what makes JAX's own hash slow on CPU."""
    buffer = jb.prioritized(64, num_envs=2)
    state = jax.eval_shape(buffer.init, jb.Transition(0.0, 0, 0.0, False, False, 0.0))
    sample = jax.jit(lambda state, key: buffer.sample(state, key, 4))
    assert "while" not in sample.lower(state, jax.random.key(0)).compile().as_text()
