"""Intermediate results that XLA's CPU backend is made to keep."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def materialized(values: jax.Array, unknown: jax.Array) -> jax.Array:
    """Return numbers as they are, but computed once and kept for all who use them.

    XLA's CPU backend computes cheap values anew for each element that depends on them: an index, with all that it comes
    from, for every number that is gathered through it. It does not repeat divisions, so these values stand behind one:
    by a one that XLA does not know to be constant. The machine code has no division.

    Args:
        values: numbers of any shape.
        unknown: any integer, a scalar, that is known at run time only and costs nothing.
    """
    if values.dtype == jnp.bool_:
        return materialized(values.astype(jnp.uint8), unknown).astype(jnp.bool_)
    kind = jnp.dtype(f"uint{8 * values.dtype.itemsize}")
    one = jnp.minimum(lax.convert_element_type(unknown, kind) | kind.type(1), kind.type(1))
    words = lax.bitcast_convert_type(values, kind)
    return lax.bitcast_convert_type(lax.div(words, jnp.broadcast_to(one, words.shape)), values.dtype)
