"""Places in a mass, each held as the sum of two float32 numbers.

One float32 number could not tell more than 2^24 leaves apart. Two have twice the bits, and keep them while masses are
taken off, so that a draw needs no other random numbers on its way down. Where sums are exact, a place lies in the same
leaf whatever the fan-out of the tree is.

Products of large terms are exact below: so it does not matter whether a compiler makes one operation of a product and a
sum.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl_buffers._random.hashing import unrolled

HALF_BITS = 12  # of the 24 that a float32 has: products of two halves are exact
UNIT = np.float32(2.0**-24)
FIRST_HALF = np.int32(-(2**HALF_BITS))  # masks out the last bits
SMALL, SCALE = np.float32(2.0**-64), np.float32(2.0**64)  # masses so small are scaled: parts of them would be zero


class Place(NamedTuple):
    """How much mass lies before each place."""

    high: jax.Array  # float32[B], the nearest float32
    low: jax.Array  # float32[B], the rest


def at(mass: jax.Array) -> Place:
    """Return places `[B]` that are float32 numbers."""
    return Place(mass.astype(jnp.float32), jnp.zeros(mass.shape, jnp.float32))


def draw(key: jax.Array, batch_size: int, total: jax.Array, stratified: bool) -> Place:
    """Draw places in `[0, total)`: anywhere, or one in each of `B` equal parts; consumes `key`."""
    words = jax.random.key_data(jax.random.split(unrolled(key), batch_size))  # 64 random bits for the price of 32
    units, rest = ((words[:, number] >> 8).astype(jnp.float32) for number in range(2))
    rest = rest * UNIT
    return scaled(*(_in_strata(units, rest) if stratified else (units, rest)), total)


def _in_strata(units: jax.Array, rest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Move `B` places, given as whole numbers of 2^-24 and a rest below one of them, into equal parts of `[0, 1)`."""
    count = units.shape[0]
    begins = np.arange(count, dtype=np.float64) * 2.0**24 / count
    whole = jnp.floor(units / count)
    rest = (units - whole * count + rest) / count
    return whole + np.floor(begins).astype(np.float32), rest + (begins % 1).astype(np.float32)


def scaled(units: jax.Array, rest: jax.Array, total: jax.Array) -> Place:
    """Return the places at `(units + rest) / 2^24` of a mass; `units` are whole numbers up to 2^24."""
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
    """Return the largest float32 not behind each place: another one exceeds it iff it exceeds the place."""
    return jnp.where(place.low < 0, previous(place.high), place.high)


def previous(value: jax.Array) -> jax.Array:
    """Return the largest float32 below each positive one."""
    return lax.bitcast_convert_type(lax.bitcast_convert_type(value, jnp.int32) - 1, jnp.float32)


def behind(place: Place, mass: jax.Array) -> Place:
    """Return the places counted from behind a mass that lies before them."""
    high, error = _sum(place.high, -mass)
    return Place(*_ordered_sum(high, place.low + error))


def _sum(one: jax.Array, other: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return a rounded sum and its error (Knuth)."""
    total = one + other
    added = total - one
    return total, (one - (total - added)) + (other - added)


def _ordered_sum(larger: jax.Array, smaller: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return a rounded sum and its error, where the first number is the larger one (Dekker)."""
    total = larger + smaller
    return total, smaller - (total - larger)


def _first_half(value: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(lax.bitcast_convert_type(value, jnp.int32) & FIRST_HALF, jnp.float32)


def _first_half_of_units(units: jax.Array) -> jax.Array:
    return jnp.floor(units * np.float32(2.0**-HALF_BITS)) * np.float32(2.0**HALF_BITS)
