"""What `import jaxrl_buffers` loads, and what comes when it is asked for."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxrl_buffers as jb

ROOT = Path(jb.__file__).parents[1]
NOT_NEEDED = [
    "pydantic",
    "optax",
    "gymnax",
    "chex",
    "xxhash",
    "orbax",
    "tensorstore",
    "matplotlib",
    "gymnasium",
    "minari",
    "h5py",
]


@functools.cache
def loaded(code):
    """Return the modules that a fresh process has loaded after running some code."""
    code = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", NOT_NEEDED)
def test_importing_loads_neither_this_nor_its_like(name):
    assert name not in loaded("import jaxrl_buffers")


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("jb.checkpoint.save", "xxhash"),
        ("jb.config.register", "pydantic"),
        ("jb.from_config", "pydantic"),
        ("jb.to_config(jb.Uniform())", "pydantic"),
        ("from jaxrl_buffers import checkpoint, from_config", "pydantic"),
    ],
)
def test_the_rest_comes_when_it_is_asked_for(code, name):
    assert name in loaded(f"import jaxrl_buffers as jb\n{code}")


def test_all_public_names_are_there_and_listed():
    assert {*jb.__all__} <= {*dir(jb)}
    assert all(getattr(jb, name) is not None for name in jb.__all__)
    assert jb.from_config is importlib.import_module("jaxrl_buffers.config").from_config
    with pytest.raises(AttributeError, match="no attribute 'from_toml'"):
        _ = jb.from_toml
    with pytest.raises(ImportError):
        exec("from jaxrl_buffers import from_toml")


def layers():
    """Return the layers that the package's docstring lists, by module: 0 is the lowest."""
    rows = re.findall(r"^    ((?:\w+, )*\w+)  ", jb.__doc__, re.MULTILINE)
    return {name: height for height, row in enumerate(reversed(rows)) for name in row.split(", ")}


def imported(path):
    """Return the public modules of this package that a file imports when it is loaded."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jaxrl_buffers"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name.split(".")[1] for name in names)


def test_the_map_is_read():
    assert {"recipes", "replay", "samplers", "views", "storage", "types"} <= {*layers()}
    assert layers()["types"] == 0


@pytest.mark.parametrize("name", sorted(layers()))
def test_every_layer_is_built_on_those_below(name):
    height, package = layers(), ROOT / "jaxrl_buffers"
    files = [*package.glob(f"{name}.py"), *package.glob(f"{name}/*.py")]
    assert files
    for file in files:
        for other in imported(file):
            assert height.get(other, -1) <= height[name], f"{file.name} imports {other}"
