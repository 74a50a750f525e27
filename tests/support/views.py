"""Views that only tests have."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct


class Older(struct.PyTreeNode):
    """A view that looks back: the two rows before each start, and the start."""

    lookahead, lookback, stride, span, needs_episodes, is_random, fields = 0, 2, 1, 3, False, False, ()

    def __call__(self, reader, slots, key):
        row, env = reader.locate(slots)
        rows = reader.later(row[:, None], jnp.array([[-2, -1, 0]]))
        return reader.read(rows, jnp.broadcast_to(env[:, None], rows.shape)).action
