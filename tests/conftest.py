"""Strictness for every test: mixed ranks raise instead of broadcasting."""

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)
