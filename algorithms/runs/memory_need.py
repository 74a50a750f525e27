"""How much memory a run needs and how much is free, checked before any is allocated."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import jax
import numpy as np

from jaxrl_buffers import _shards as shards
from jaxrl_buffers.types import PyTree

_OVERHEAD = 1.1  # the largest measured memory of a run, relative to its state if that is large
_WHAT_TO_DO = "use a smaller --capacity, or fewer of --num-seeds"
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_MEMORY = Path("/proc/meminfo")


def num_bytes(state: PyTree) -> int:
    """Return the size in bytes of a state, or of its shapes, on each device. The CPU of a process counts as one."""
    return sum(_num_elements(leaf) * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def _num_elements(leaf: jax.Array | np.ndarray | jax.ShapeDtypeStruct) -> int:
    sharding = shards.sharding_of(leaf)
    if sharding is None:
        return leaf.size
    on_device = math.prod(sharding.shard_shape(leaf.shape))
    return on_device if jax.default_backend() != "cpu" else len(sharding.addressable_devices) * on_device


def check(state: PyTree) -> None:
    """Refuse a state that does not fit into the free memory; otherwise Linux would kill the process later.

    The state is held once: programs change it in place, and checkpoints are written and read in blocks.
    """
    needed, there = int(_OVERHEAD * num_bytes(state)), available()
    if there is not None and needed > there:
        raise ValueError(
            f"the run needs about {_spell(needed)} of memory, and {_spell(there)} are free; {_WHAT_TO_DO}."
        )


@contextlib.contextmanager
def explained() -> Generator[None]:
    """Turn an allocation that failed into one line that says what to do."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        text = str(error)
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text or "ut of memory" in text:
            cause = f" ({text.splitlines()[0]})" if text else ""
            raise ValueError(f"there is not enough memory for the run{cause}; {_WHAT_TO_DO}.") from None
        raise


def available() -> int | None:
    """Return how many bytes are free on the default device; None if this is not known."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    known = [free for free in (_free_of_machine(), *_free_of_cgroups()) if free is not None]
    return min(known, default=None)


def _free_of_machine() -> int | None:
    """Return the free memory of the machine, or its total memory if the system does not report what is free."""
    if _MEMORY.exists():
        fields = dict(line.split(":") for line in _MEMORY.read_text().splitlines() if ":" in line)
        if "MemAvailable" in fields:
            # Swap counts as free memory: a run that uses it is slow, but works.
            return sum(int(fields[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree") if name in fields)
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _free_of_cgroups() -> Iterator[int]:
    """Yield the memory that is left under each limit of the process's cgroups, as containers and clusters set them."""
    if not _OWN_CGROUPS.exists():
        return
    for line in _OWN_CGROUPS.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, limit, usage, cached = _CGROUPS, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root = _CGROUPS / "memory"
            limit, usage, cached = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        group = root / path.strip("/")
        # The limits of parent groups count too. Inside a container, the path may begin outside of the container.
        for folder in {group, *group.parents, root}:
            if folder.is_relative_to(root):
                yield from _free_of_cgroup(folder / limit, folder / usage, folder / "memory.stat", cached)


def _free_of_cgroup(limit: Path, usage: Path, stat: Path, cached: str) -> Iterator[int]:
    try:
        most, used = limit.read_text().strip(), int(usage.read_text())
        fields = dict(line.split() for line in stat.read_text().splitlines())
    except (OSError, ValueError):
        return
    if most.isdecimal():
        yield int(most) - used + int(fields.get(cached, 0))  # cached files can be dropped to make room


def _spell(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
