"""Uniform random integers below a traced bound."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_buffers._random.hashing import unrolled

LOW_HALF = 0xFFFF


def random_below(key: jax.Array, bound: jax.Array) -> jax.Array:
    """Draw an integer in `[0, bound)` for each bound; consumes `key`.

        floor(u * bound / 2^64)   with 64 random bits u

    Every integer is equally likely up to 2^-33, for any bound below 2^31 (`jax.random.randint` costs more here, for it
    splits its key and divides, which XLA's CPU backend does not vectorize).

    Args:
        key: a PRNG key.
        bound: `int32[...]`, at least 1.

    Example:
        >>> print(random_below(jax.random.key(0), jnp.array([1, 1, 1])))
        [0 0 0]
    """
    words = jax.random.key_data(jax.random.split(unrolled(key), bound.shape))  # 64 random bits for the price of 32
    high, low = words[..., 0], words[..., 1]
    bound = bound.astype(jnp.uint32)
    middle = high * bound
    carry = (middle + _high_word(low, bound) < middle).astype(jnp.uint32)
    return (_high_word(high, bound) + carry).astype(jnp.int32)


def _high_word(one: jax.Array, other: jax.Array) -> jax.Array:
    """Return the upper 32 bits of a 64-bit product, by halves: JAX has no 64-bit integers by default."""
    one_high, one_low, other_high, other_low = one >> 16, one & LOW_HALF, other >> 16, other & LOW_HALF
    cross = one_high * other_low + (one_low * other_low >> 16)
    other_cross = one_low * other_high + (cross & LOW_HALF)
    return one_high * other_high + (cross >> 16) + (other_cross >> 16)
