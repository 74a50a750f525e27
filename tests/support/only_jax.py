"""A Python that has JAX and what JAX needs, and nothing else: for programs that do without this library."""

from __future__ import annotations

import importlib.util
import venv
from pathlib import Path

import pytest

NEEDED = ("jax", "jaxlib", "numpy", "ml_dtypes", "scipy", "opt_einsum", "flatbuffers")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return its interpreter."""
    folder = tmp_path_factory.mktemp("alone")
    venv.create(folder / "venv", with_pip=False)
    packages = folder / "packages"
    packages.mkdir()
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        package = Path(spec.origin).parent
        for source in (package, package.with_name(f"{name}.libs")):
            if source.exists():
                (packages / source.name).symlink_to(source)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (site / "alone.pth").write_text(f"{packages}\n")
    return folder / "venv" / "bin" / "python"
