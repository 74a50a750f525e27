"""Places in the mass of a tree, each stored as the sum of two float32 numbers.

A draw picks a place in `[0, total)` and finds the leaf there. One float32 has 24 bits, so it can distinguish at most
2^24 leaves. Two float32 numbers have twice the bits, and a search can subtract masses from a place without losing bits.
So one random place is enough for the whole way from the root to a leaf. If the sums of a tree are exact, a place is in
the same leaf for every fan-out.

Some compilers join a product and a sum into one operation that rounds once. The large products below are exact, so this
makes no difference.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl_buffers._random.hashing import unrolled

HALF_BITS = 12  # half of the 24 bits of a float32: the product of two such halves is exact
UNIT = np.float32(2.0**-24)
FIRST_HALF = np.int32(-(2**HALF_BITS))  # a mask that removes the last bits
SMALL, SCALE = np.float32(2.0**-64), np.float32(2.0**64)  # masses below SMALL are scaled up; else parts would be zero


class Place(NamedTuple):
    """How much mass is before each place."""

    high: jax.Array  # float32[B]: the float32 nearest to that mass
    low: jax.Array  # float32[B]: the mass minus `high`; it may be negative


def at(mass: jax.Array) -> Place:
    """Return the places `[B]` given by float32 numbers."""
    return Place(mass.astype(jnp.float32), jnp.zeros(mass.shape, jnp.float32))


def draw(key: jax.Array, batch_size: int, total: jax.Array, stratified: bool) -> Place:
    """Draw `B` places in `[0, total)`, independently or one in each of `B` equal parts; consumes `key`."""
    # The data of a new key is 64 random bits, and costs as much as 32 random bits do.
    words = jax.random.key_data(jax.random.split(unrolled(key), batch_size))
    units, rest = ((words[:, number] >> 8).astype(jnp.float32) for number in range(2))
    rest = rest * UNIT
    return scaled(*(_in_strata(units, rest) if stratified else (units, rest)), total)


def _in_strata(units: jax.Array, rest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Move each of `B` places into its own part of `[0, 1)`; a place is `(units + rest) / 2^24` with a rest below 1."""
    count = units.shape[0]
    begins = np.arange(count, dtype=np.float64) * 2.0**24 / count
    whole = jnp.floor(units / count)
    rest = (units - whole * count + rest) / count
    return whole + np.floor(begins).astype(np.float32), rest + (begins % 1).astype(np.float32)


def scaled(units: jax.Array, rest: jax.Array, total: jax.Array) -> Place:
    """Return the places `(units + rest) / 2^24 * total`; `units` are whole numbers up to 2^24."""
    scale = jnp.where(total < SMALL, SCALE, 1)
    total = total * scale
    total_high = _first_half(total)
    total_low = total - total_high
    units_high = _first_half_of_units(units)
    units_low = (units - units_high) * UNIT
    units_high = units_high * UNIT
    middle, error = _sum(units_high * total_low, units_low * total_high)
    high, low = _sum(units_high * total_high, middle)
    low = low + (error + (units_low * total_low + rest * UNIT * total))
    back = 1 / scale
    return Place(*(part * back for part in _ordered_sum(high, low)))


def before(place: Place) -> jax.Array:
    """Return the largest float32 that is not above each place. Any larger float32 is above the place."""
    return jnp.where(place.low < 0, previous(place.high), place.high)


def previous(value: jax.Array) -> jax.Array:
    """Return the next smaller float32 of each positive one."""
    return lax.bitcast_convert_type(lax.bitcast_convert_type(value, jnp.int32) - 1, jnp.float32)


def minus(place: Place, mass: jax.Array) -> Place:
    """Return `place - mass`: each place, counted from the end of a mass that comes before it."""
    high, error = _sum(place.high, -mass)
    return Place(*_ordered_sum(high, place.low + error))


def _sum(one: jax.Array, other: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the rounded sum and its rounding error (Knuth's two-sum)."""
    total = one + other
    added = total - one
    return total, (one - (total - added)) + (other - added)


def _ordered_sum(larger: jax.Array, smaller: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the rounded sum and its rounding error, for a first number that is the larger one (Dekker)."""
    total = larger + smaller
    return total, smaller - (total - larger)


def _first_half(value: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(lax.bitcast_convert_type(value, jnp.int32) & FIRST_HALF, jnp.float32)


def _first_half_of_units(units: jax.Array) -> jax.Array:
    return jnp.floor(units * np.float32(2.0**-HALF_BITS)) * np.float32(2.0**HALF_BITS)
