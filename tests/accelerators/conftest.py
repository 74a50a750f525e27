"""Tests that compile for TPUs and GPUs, with no such device; collected only where their compilers are installed.

`bash scripts/test --accelerators` runs them in an environment of their own. Those for TPUs are one group, which one
process runs: compilers for TPUs take turns.
"""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

KINDS = []
collect_ignore_glob = []
if importlib.util.find_spec("libtpu") or importlib.util.find_spec("jax_cuda12_plugin"):
    sys.path.append(str(Path(__file__).parents[2] / "scripts"))
    import compilers  # which prepares JAX, so not where it is of no use

    KINDS += compilers.installed()
else:
    collect_ignore_glob += ["*"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that take a `kind` once for every kind of accelerator."""
    marks = {"tpu": [pytest.mark.xdist_group("tpu")], "gpu": []}
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", [pytest.param(kind, marks=marks[kind]) for kind in KINDS])


@pytest.fixture(autouse=True, scope="module")
def compiled_as_usual() -> Iterator[None]:
    """Compile as users do: other tests leave most optimizations out."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
