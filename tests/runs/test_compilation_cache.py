"""The cache of compiled programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from algorithms.runs import compilation_cache

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path):
    """The folder of a cache in which nothing is kept yet."""
    enabled = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", True)
    with compilation_cache.kept(tmp_path):
        pass
    yield next(tmp_path.iterdir())
    jax.config.update("jax_enable_compilation_cache", enabled)


def test_half_an_entry_of_a_killed_process_is_never_read(cache, tmp_path):
    dead = cache / "process_999999999_x"
    dead.mkdir()
    (dead / "half-cache").write_bytes(b"half")
    (cache / "kept-cache").write_bytes(b"whole")
    with compilation_cache.kept(tmp_path):
        (own,) = cache.glob("process_*")
        assert [path.name for path in own.iterdir()] == ["kept-cache"]
        (own / "new-cache").write_bytes(b"new")
    assert sorted(path.name for path in cache.iterdir()) == ["kept-cache", "new-cache"]


def test_the_cache_is_bounded(cache, tmp_path):
    for age, name in enumerate(("newest", "middle", "oldest")):
        (cache / f"{name}-cache").write_bytes(bytes(10))
        os.utime(cache / f"{name}-cache", (1e9 - age, 1e9 - age))
    with compilation_cache.kept(tmp_path, max_bytes=25):
        pass
    assert sorted(path.name for path in cache.iterdir()) == ["middle-cache", "newest-cache"]


@pytest.mark.usefixtures("cache")
def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with compilation_cache.kept(tmp_path / "file"):
        assert jax.config.jax_compilation_cache_dir is None
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.usefixtures("cache")
def test_a_cache_of_the_users_own_choice(tmp_path):
    jax.config.update("jax_compilation_cache_dir", "elsewhere")
    try:
        with compilation_cache.kept(tmp_path / "ours"):
            assert jax.config.jax_compilation_cache_dir == "elsewhere"
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
    assert not (tmp_path / "ours").exists()


def test_a_second_process_compiles_nothing(tmp_path):
    program = (
        "import jax, pathlib, sys\n"
        "from algorithms.runs import compilation_cache\n"
        "misses = []\n"
        "jax.monitoring.register_event_listener(lambda name, **_: misses.append('cache_misses' in name))\n"
        "with compilation_cache.kept(pathlib.Path(sys.argv[1])):\n"
        "    jax.jit(lambda x: 2 * x)(1.0)\n"
        "print(sum(misses))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_ENABLE_COMPILATION_CACHE": "true"}
    command = [sys.executable, "-c", program, str(tmp_path)]
    printed = [subprocess.run(command, env=environment, capture_output=True, text=True).stdout for _ in range(2)]
    assert printed == ["1\n", "0\n"]
