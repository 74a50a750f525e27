"""How many devices a run uses, and how a CPU is divided into several."""

from __future__ import annotations

import contextlib
import math
import os

import jax

from algorithms.training.plan import Plan

FLAG = "xla_force_host_platform_device_count"  # the older way to divide a CPU


def divide_cpu(count: int) -> None:
    """Let a CPU count as this many devices, if JAX has not started yet. Other platforms do not change."""
    if count <= 1 or FLAG in os.environ.get("XLA_FLAGS", ""):
        return
    with contextlib.suppress(RuntimeError):  # JAX has started: its devices are what they are
        jax.config.update("jax_num_cpu_devices", max(count, getattr(jax.config, "jax_num_cpu_devices")))  # noqa: B009


def devices_for(plan: Plan, num_seeds: int) -> int:
    """Return how many devices share each seed by default: all of an accelerator, as far as they divide the plan.

    Seeds are split over devices first, because seeds need nothing from each other.
    """
    if jax.default_backend() == "cpu":
        return 1
    most = jax.device_count() // math.gcd(num_seeds, jax.device_count())
    return math.gcd(plan.num_envs, plan.mini_batch_size, most)
