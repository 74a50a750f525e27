"""Compiled programs kept in the user's cache folder, so that a run like an earlier one starts sooner.

JAX's own cache has two problems. It writes entries in place, so a process that is killed while it writes leaves half an
entry, which is never repaired. And it loads machine code that was compiled for other processors. Here each process gets
its own folder, which begins with links to all entries that are kept. A new entry joins them once it is complete, under
a name that says for which processor it is. When there are too many bytes, the least recently used entries are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import jax

MAX_BYTES = 2**29
_OF_PROCESS = "process_"


def user_folder() -> Path:
    """Return the cache folder of this user."""
    if sys.platform == "win32":
        default = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        default = Path.home() / "Library" / "Caches"
    else:
        default = Path.home() / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or default) / "jaxrl-buffers"


@contextlib.contextmanager
def kept(folder: Path | None = None, max_bytes: int = MAX_BYTES) -> Generator[None]:
    """Within the block, reuse programs that an earlier process with the same folder compiled.

    This does nothing if `JAX_ENABLE_COMPILATION_CACHE=false` switches caches off, if `JAX_COMPILATION_CACHE_DIR` names
    another folder, or if nothing can be written.

    Args:
        folder: where programs are kept; in the user's cache folder by default.
        max_bytes: how much is kept.
    """
    is_enabled, chosen = map(_option, ("jax_enable_compilation_cache", "jax_compilation_cache_dir"))
    if not is_enabled or chosen:
        yield
        return
    folder = (user_folder() if folder is None else folder) / f"compiled_{_machine()}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # whoever can write there can run code as this user
        _forget_dead(folder)
        own = Path(tempfile.mkdtemp(prefix=f"{_OF_PROCESS}{os.getpid()}_", dir=folder))
        _join(folder, own)
    except OSError:  # such as a full disk, or a home folder that cannot be written to
        yield
        return
    options = {
        "jax_compilation_cache_dir": str(own),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        # XLA would keep its autotuning caches in that folder too, and the key of every entry would depend on its name.
        "jax_persistent_cache_enable_xla_caches": "none",
    }
    before = {name: _option(name) for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        with contextlib.suppress(OSError):
            _join(own, folder)
            _forget_oldest(folder, max_bytes)
        shutil.rmtree(own, ignore_errors=True)


def _option(name: str) -> Any:
    return getattr(jax.config, name)


def _machine() -> str:
    """Return a name for the processor, on which machine code depends."""
    parts = [jax.__version__, platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):  # elsewhere than on Linux
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        parts += sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _join(source: Path, target: Path) -> None:
    """Add the entries of one folder to another, each in one operation."""
    for entry in source.iterdir():
        if entry.is_file() and not (target / entry.name).exists():
            try:
                os.link(entry, target / entry.name)
            except FileExistsError:  # another process was faster
                pass
            except OSError:  # a file system without links
                aside = target / f".{os.getpid()}_{entry.name}"
                shutil.copy2(entry, aside)
                aside.replace(target / entry.name)


def _forget_dead(folder: Path) -> None:
    """Remove the folders of processes that were killed."""
    for own in folder.glob(f"{_OF_PROCESS}*"):
        number = own.name.removeprefix(_OF_PROCESS).split("_")[0]
        if not (number.isdecimal() and _is_alive(int(number))):
            shutil.rmtree(own, ignore_errors=True)


def _is_alive(process: int) -> bool:
    if sys.platform == "win32":
        return True  # on Windows signal 0 would end the process
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _forget_oldest(folder: Path, max_bytes: int) -> None:
    entries = [(max(stat.st_atime, stat.st_mtime), stat.st_size, path) for path, stat in _entries(folder)]
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= max_bytes:
            return
        path.unlink(missing_ok=True)
        total -= size


def _entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process may be removing entries
            if path.is_file():
                yield path, path.stat()
