"""Tests that compile for TPUs and GPUs, with no such device; collected only where their compilers are installed.

`bash scripts/test --accelerators` runs them in an environment of their own. Each kind of accelerator is one group, for
one process: then a compiler is loaded once, and only one program is compiled for TPUs at a time.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

import compilers
import jax
import pytest

KINDS = compilers.installed()
collect_ignore_glob = [] if KINDS else ["*"]
if KINDS:
    compilers.prepare()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that take a `kind` once for every kind of accelerator."""
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", [pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in KINDS])


@pytest.fixture(autouse=True, scope="module")
def compiled_as_usual() -> Iterator[None]:
    """Compile as users do: other tests leave most optimizations out."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
