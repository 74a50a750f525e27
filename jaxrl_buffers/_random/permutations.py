"""A keyed random permutation of `[0, size)` evaluated point by point, for any traced size.

Swap-or-not shuffle: each round pairs `x` with `(r - x) mod size` for a random `r` and swaps the pair on a hashed coin.
Every round is its own inverse, so the whole is a bijection whatever the coins are; nothing of length `size` is stored.

Hoang, Morris, Rogaway: An Enciphering Scheme Based on a Card Shuffle, https://arxiv.org/abs/1208.1176
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_buffers._random.hashing import unrolled

NUM_ROUNDS = 24


def round_keys(key: jax.Array, num_permutations: int) -> jax.Array:
    """Return the random words `uint32[rounds, 2, num_permutations]` of independent permutations; consumes `key`."""
    return jax.random.bits(unrolled(key), (NUM_ROUNDS, 2, num_permutations), jnp.uint32)


def permute(words: jax.Array, index: jax.Array, size: jax.Array) -> jax.Array:
    """Return where a permutation of `[0, size)` sends `index`.

    Args:
        words: `uint32[rounds, 2, ...]` from `round_keys`, broadcastable against `index` behind the first two axes.
        index: `int32[...]` in `[0, size)`; anything else gives an arbitrary number in that range.
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

    # A loop: unrolled, the rounds take long to compile and run no faster.
    index, _ = lax.scan(swap_or_not, index, words, unroll=4)
    return index.astype(jnp.int32)


def _mix(word: jax.Array) -> jax.Array:
    """Scramble a word so that every output bit depends on every input bit (the finalizer of MurmurHash3)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
