"""Intermediate results that XLA's CPU backend is made to keep."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_buffers.materialized import materialized


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint32, jnp.uint8, jnp.bool_, jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("unknown", [0, 1, -1, 2**31 - 1])
def test_values_stay_as_they_are(dtype, unknown):
    values = jnp.array([[0, 1, 7], [2**31 - 1, -1, -(2**31)]], jnp.int32).astype(dtype)
    kept = jax.jit(materialized)(values, jnp.int32(unknown))
    assert kept.dtype == dtype
    np.testing.assert_array_equal(kept, values)
    np.testing.assert_array_equal(jax.vmap(materialized, in_axes=(0, None))(values, jnp.int32(unknown)), values)
    assert materialized(values[:0], jnp.int32(unknown)).shape == (0, 3)


@pytest.mark.parametrize("keep", [True, False])
def test_what_is_kept_is_not_computed_in_the_gather(keep, optimized_code):
    """Without it the multiplications are done again for each of the eight numbers of a row: the test can fail."""

    def rows(one, other, index, unknown):
        for _ in range(5):
            index = index * index + 3
        index = index & 63
        index = materialized(index, unknown) if keep else index
        return one[index], other[index]

    shapes = *jnp.zeros((2, 64, 8)), jnp.zeros(16, jnp.int32), jnp.int32(0)
    text = jax.jit(rows).lower(*shapes).compile().as_text()
    gathers = [part for part in re.split(r"\n\n", text) if " gather(" in part]
    assert gathers
    assert any(re.search(r"s32\S* multiply\(", part) for part in gathers) is not keep
