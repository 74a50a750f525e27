"""Settings of every test: mixed ranks raise instead of broadcasting, and machine code is not optimized."""

import os
from collections.abc import Iterator
from pathlib import Path

# Most tests compile many programs that each run briefly. Set before JAX is imported, and inherited by subprocesses.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# Programs that were compiled once, by another worker, a subprocess or an earlier run, are not compiled again.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import pytest

jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)


@pytest.fixture
def optimized_code() -> Iterator[None]:
    """Compile to fast machine code: for tests that compute for long."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
