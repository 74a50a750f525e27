"""How many devices a run uses, and how a CPU counts as several."""

from __future__ import annotations

import math
import os

import jax

from algorithms.runs.settings import Settings
from algorithms.runs.side_by_side import num_cores
from algorithms.training.plan import Plan

NUM_CPU_DEVICES = "JAX_NUM_CPU_DEVICES"  # JAX reads it when it starts, which is when gymnax is imported


def devices_for(plan: Plan, num_seeds: int) -> int:
    """Return how many devices share each seed by default: all of an accelerator, as far as they divide the plan.

    Seeds are split over devices first, because seeds need nothing from each other.
    """
    if jax.default_backend() == "cpu":
        return 1
    most = jax.device_count() // math.gcd(num_seeds, jax.device_count())
    return math.gcd(plan.num_envs, plan.mini_batch_size, most)


def variables_for(settings: Settings) -> dict[str, str]:
    """Return the environment variables with which a CPU counts as enough devices for a run.

    They are empty if there are enough devices, or if the user has set how many there are.
    """
    devices = settings.plan.devices
    num_groups = math.gcd(settings.num_seeds, max(num_cores() // devices, 1))
    is_enough = devices == 1 or jax.default_backend() != "cpu" or jax.device_count() >= devices * num_groups
    is_set = NUM_CPU_DEVICES in os.environ or "host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    return {} if is_enough or is_set else {NUM_CPU_DEVICES: str(devices * num_groups)}
