"""From drawn starts to the sample that a learner gets."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_buffers.storage import Reader, ring
from jaxrl_buffers.types import Batch, PyTree, Sample, View


def assembled(
    view: View, reader: Reader, slots: jax.Array, valid: jax.Array, weights: jax.Array, key: jax.Array
) -> Sample:
    """Return the sample that begins at `slots[B]`; consumes `key`.

    Where `valid` is False nothing was drawn: the mask is False and the weight 0. The same holds where the rows of a
    sample cannot be read any more, because their frames are gone.
    """
    slots = jnp.where(valid, slots, 0)
    batch = _masked(view(reader, slots, key), valid)
    handle = ring.handles_of(reader.ring, slots, valid)
    if not isinstance(batch, Batch):
        valid &= _is_whole(reader, slots, view.span)
    elif batch.mask.ndim == 1:
        valid = batch.mask
    return Sample(batch, handle, jnp.where(valid, weights, 0))


def _is_whole(reader: Reader, slots: jax.Array, span: int) -> jax.Array:
    """Return `bool[B]`: whether all rows of each sample can be read. Without a mask, only the weights can show this."""
    if reader.complete is None:
        return jnp.ones(slots.shape, bool)
    row, env = reader.locate(slots)
    rows = reader.later(row[:, None], jnp.arange(span, dtype=jnp.int32)[None])
    return jnp.all(reader.is_complete(rows, jnp.broadcast_to(env[:, None], rows.shape)), axis=1)


def _masked(batch: PyTree, valid: jax.Array) -> PyTree:
    """Mask out what was not drawn, if the batch has a mask."""
    if not isinstance(batch, Batch):
        return batch
    return batch._replace(mask=batch.mask & valid.reshape(-1, *[1] * (batch.mask.ndim - 1)))
