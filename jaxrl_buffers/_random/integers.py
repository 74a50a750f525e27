"""Random integers: uniform ones below a traced bound, and random permutations evaluated point by point.

A permutation of `[0, size)` is a swap-or-not shuffle. Every round draws a random `r` and pairs each `x` with
`(r - x) mod size`. A hash of the pair decides whether the two are swapped. Each round is its own inverse, so the whole
is a bijection for any hash. No array of length `size` is stored.

Hoang, Morris, Rogaway: An Enciphering Scheme Based on a Card Shuffle, https://arxiv.org/abs/1208.1176
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_buffers._random.hashing import unrolled

LOW_HALF = 0xFFFF
NUM_ROUNDS = 24  # of the shuffle


def random_below(key: jax.Array, bound: jax.Array) -> jax.Array:
    """Draw an integer in `[0, bound)` for each bound; consumes `key`.

        floor(u * bound / 2^64)   with 64 random bits u

    For any bound below 2^31, the probabilities of two integers differ by a factor of at most `1 + 2^-33`.
    `jax.random.randint` costs more: it splits its key, and it divides, which XLA's CPU backend does not vectorize.

    Args:
        key: a PRNG key.
        bound: `int32[...]`, at least 1.

    Example:
        >>> print(random_below(jax.random.key(0), jnp.array([1, 1, 1])))
        [0 0 0]
    """
    # The data of a new key is 64 random bits, and costs as much as 32 random bits do.
    words = jax.random.key_data(jax.random.split(unrolled(key), bound.shape))
    high, low = words[..., 0], words[..., 1]
    bound = bound.astype(jnp.uint32)
    middle = high * bound
    carry = (middle + _high_word(low, bound) < middle).astype(jnp.uint32)
    return (_high_word(high, bound) + carry).astype(jnp.int32)


def round_keys(key: jax.Array, num_permutations: int) -> jax.Array:
    """Return the random words `uint32[rounds, 2, num_permutations]` of independent permutations; consumes `key`."""
    return jax.random.bits(unrolled(key), (NUM_ROUNDS, 2, num_permutations), jnp.uint32)


def permute(words: jax.Array, index: jax.Array, size: jax.Array) -> jax.Array:
    """Return where a permutation of `[0, size)` sends `index`.

    Args:
        words: `uint32[rounds, 2, ...]` from `round_keys`; the other axes are broadcast against `index`.
        index: `int32[...]` in `[0, size)`; any other index gives an arbitrary number in that range.
        size: `int32[...]`, at least 1 and below 2^31.

    Example:
        >>> words = round_keys(jax.random.key(0), 1)
        >>> sorted(permute(words, jnp.arange(5), jnp.int32(5)).tolist())
        [0, 1, 2, 3, 4]
    """
    size = jnp.maximum(size, 1).astype(jnp.uint32)
    index = jnp.minimum(jnp.maximum(index, 0).astype(jnp.uint32), size - 1)

    def swap_or_not(index: jax.Array, words: jax.Array) -> tuple[jax.Array, None]:
        pairing, coin = words
        pivot = pairing % size
        partner = jnp.where(index <= pivot, pivot - index, pivot + size - index)
        swap = _mix(jnp.maximum(index, partner) ^ coin) >> 31
        return jnp.where(swap == 1, partner, index), None

    # Not fully unrolled: that takes long to compile and runs no faster.
    index, _ = lax.scan(swap_or_not, index, words, unroll=4)
    return index.astype(jnp.int32)


def _high_word(one: jax.Array, other: jax.Array) -> jax.Array:
    """Return the upper 32 bits of a 64-bit product, by halves: JAX has no 64-bit integers by default."""
    one_high, one_low, other_high, other_low = one >> 16, one & LOW_HALF, other >> 16, other & LOW_HALF
    cross = one_high * other_low + (one_low * other_low >> 16)
    other_cross = one_low * other_high + (cross & LOW_HALF)
    return one_high * other_high + (cross >> 16) + (other_cross >> 16)


def _mix(word: jax.Array) -> jax.Array:
    """Scramble a word so that every output bit depends on every input bit (the finalizer of MurmurHash3)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
