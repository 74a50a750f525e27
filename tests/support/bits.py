"""Comparison of pytrees bit for bit."""

from __future__ import annotations

import jax
import numpy as np


def as_bytes(leaf):
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf).tobytes()


def assert_same_bits(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for (path, left), right in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(other), strict=True):
        assert jax.typeof(left) == jax.typeof(right), path
        assert as_bytes(left) == as_bytes(right), path
