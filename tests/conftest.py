"""Settings of every test: mixed ranks raise instead of broadcasting, and machine code is not optimized."""

import ctypes
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

# Most tests compile many programs that each run briefly. Set before JAX is imported, and inherited by subprocesses.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# Scripts keep compiled programs in the user's cache folder; tests must not find those of earlier ones.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
# XLA's older emitters compile twice as fast as its fusion emitters, but fuse and so copy otherwise: tests of what is
# copied ask for the latter (`compiled_as_usual` in test_in_place.py). Flags given from outside come last and so count.
os.environ["XLA_FLAGS"] = " ".join(
    ["--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1", os.environ.get("XLA_FLAGS", "")]
)

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from support.lowering import reuse_contexts

# Behind `nohup`, and in the background of a script, these are ignored; processes that tests start would do so too.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 8)  # for tests of what is split over devices
reuse_contexts()


def pytest_collection_finish() -> None:
    """Look for garbage less often, and never among what was imported: this took a twelfth of the time of all tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


MAPPINGS, MEMORY = Path("/proc/self/maps"), Path("/proc/self/statm")  # on Linux
MANY_MAPPINGS = 20_000
MANY_PAGES = 2**20  # of memory: 4 GB


@pytest.fixture(autouse=True, scope="module")
def few_programs() -> Iterator[None]:
    """Forget compiled programs when there are many: each maps memory, and Linux allows a process 65,530 mappings."""
    yield
    if not MAPPINGS.exists():
        return
    num_pages = int(MEMORY.read_text().split()[1])
    if len(MAPPINGS.read_bytes().splitlines()) > MANY_MAPPINGS or num_pages > MANY_PAGES:
        jax.clear_caches()
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of glibc
            trim(0)  # or the memory stays with this process, which would then forget its programs after every module


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)


@pytest.fixture
def optimized_code() -> Iterator[None]:
    """Compile to fast machine code: for tests that compute for long."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def compiled_once(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Compile every program once, in this process and in those that get the environment which is returned."""
    options = {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": str(tmp_path / "compiled"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # which is opened when something is compiled, and then stays as it is
    yield {name.upper(): str(value) for name, value in options.items()}
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def shared_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the runs of a module share compiled programs, which are its `programs`, a `SharedPrograms`."""
    with request.module.programs.shared():
        yield
