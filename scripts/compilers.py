"""Compile for accelerators with their real compilers, without the hardware.

    .venv-accelerators/bin/python scripts/compilers.py      # tells whether both compilers work on this machine

    import compilers                                        # before anything starts JAX
    compiled = compilers.compile_for("tpu", function, *shapes, donate_argnums=0)      # or "gpu"

Programs are compiled for one TPU v5e chip or one H100, and cannot be run. For TPUs this takes the package `libtpu`. For
GPUs it takes `jax-cuda12-plugin`, `jax-cuda12-pjrt`, `nvidia-cuda-nvcc-cu12` and `nvidia-cuda-runtime-cu12`, but not
the other packages that the first two ask for. `scripts/setup.sh` installs them into an environment of their own.
`compiled_programs.py` reads what comes out.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

# Programs run on the CPU only, and the compilers start without their devices.
jax.config.update("jax_platforms", "cpu")
# Flags for other compilers, such as the CPU's, would end the process when the TPU compiler is loaded.
os.environ.pop("XLA_FLAGS", None)
os.environ |= {
    # Without a TPU, its library would look for one on the network. These variables name the machine to compile for.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    # Only programs that run on a TPU need its lock, which a process holds until it ends.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # Only programs that run on a GPU need cuDNN and other libraries.
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
}

NAMES = {"tpu": "TPU v5e", "gpu": "H100"}
PACKAGES = {"tpu": "libtpu", "gpu": "jax_cuda12_plugin"}
# How devices are connected, by their number. GPUs: slices, hosts of each slice, and GPUs of each host.
TOPOLOGIES = {
    "tpu": {1: "2x2", 8: "2x4", 64: "8x8", 256: "16x16"},
    "gpu": {1: "1x1x1", 8: "1x1x8", 32: "1x4x8"},
}
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84942979072
  shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def installed() -> list[str]:
    """Return the kinds of accelerators whose compilers are in this environment."""
    return [kind for kind, package in PACKAGES.items() if importlib.util.find_spec(package)]


@functools.cache
def devices(kind: str, count: int) -> tuple[Any, ...]:
    """Return so many devices, `"tpu"` or `"gpu"`, to compile for; `TOPOLOGIES` lists the possible numbers."""
    topology = TOPOLOGIES[kind][count]
    if kind == "tpu":
        found = topologies.get_topology_desc(f"v5e:{topology}", "tpu")
    else:
        found = topologies.get_topology_desc("", "cuda", target_config=H100, topology=topology)
    return tuple(found.devices[:count])


def device(kind: str) -> Any:
    """Return the device, `"tpu"` or `"gpu"`, to compile for."""
    return devices(kind, 1)[0]


def compile_for(kind: str, function: Callable[..., Any], *shapes: Any, **options: Any) -> jax.stages.Compiled:
    """Compile a function for one device of a kind; `options` go to `jax.jit`."""
    sharding = jax.sharding.SingleDeviceSharding(device(kind))
    return jax.jit(function, in_shardings=sharding, out_shardings=sharding, **options).lower(*shapes).compile()


def main() -> int:
    """Print a line for each compiler that does not work; return 0 if all work."""
    failures = 0
    for kind, name in NAMES.items():
        try:
            compile_for(kind, lambda x: x + 1, jax.ShapeDtypeStruct((8,), jnp.float32))
        except Exception as error:
            failures += 1
            reason = next(iter(str(error).splitlines()), "")[:200]
            print(f"the compiler for {name} does not work: {type(error).__name__}: {reason}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
