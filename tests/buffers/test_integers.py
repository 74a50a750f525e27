"""Random integers below a traced bound."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_buffers._random.integers import _high_word, random_below


def test_high_words_of_products():
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 2**32, (2, 10_000), dtype=np.uint64)
    one[:4], other[:4] = [0, 2**32 - 1, 2**32 - 1, 2**16], [2**32 - 1, 2**32 - 1, 1, 2**16]
    got = _high_word(jnp.asarray(one, jnp.uint32), jnp.asarray(other, jnp.uint32))
    np.testing.assert_array_equal(got, (one * other) >> np.uint64(32))


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 1000, 3 * 2**28])
def test_every_integer_is_equally_likely(bound):
    """Also below a bound where 32 random bits would favor some by a third: counted in twelve equal parts."""
    key = jax.random.key(bound + 1)
    drawn = np.asarray(jax.jit(random_below)(key, jnp.full(120_000, bound)), np.int64)
    high, low = np.asarray(jax.random.key_data(jax.random.split(key, 120_000)).T, dtype=object)
    assert (drawn == (high * 2**32 + low) * bound // 2**64).all()
    assert drawn.min() >= 0
    assert drawn.max() < bound
    parts = min(bound, 12)
    edges = np.arange(parts + 1) * bound // parts
    expected = 120_000 * np.diff(edges) / bound
    counts = np.histogram(drawn, edges)[0]
    assert ((counts - expected) ** 2 / expected).sum() < parts + 5 * np.sqrt(2 * parts) + 5
    if bound > 2**20:
        low_bits = np.bincount(drawn % 3, minlength=3)
        assert np.abs(low_bits - 40_000).max() < 5 * np.sqrt(120_000 * 2 / 9)
