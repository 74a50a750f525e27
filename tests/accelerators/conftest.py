"""Tests that compile for TPUs and GPUs, with no such device; collected only where their compilers are installed.

`bash scripts/test --accelerators` runs them in an environment of their own.
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
    """Run tests that take a `kind` once for every kind of accelerator, if they do not choose it themselves."""
    is_chosen = any("kind" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "kind" in metafunc.fixturenames and not is_chosen:
        metafunc.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def compiled_as_usual(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile as users do: other tests leave most optimizations out.

    So do those for GPUs, which saves a quarter of their time. There, it concerns only the machine code of each kernel:
    what the tests read is decided before.
    """
    is_gpu = "kind" in request.fixturenames and request.getfixturevalue("kind") == "gpu"
    jax.config.update("jax_disable_most_optimizations", is_gpu)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
