"""Strictness for every test: mixed ranks raise instead of broadcasting."""

from collections.abc import Iterator

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)


@pytest.fixture
def quick_compilation() -> Iterator[None]:
    """Compile without optimizing machine code: for tests of many small programs that each run briefly."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
