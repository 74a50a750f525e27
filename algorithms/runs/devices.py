"""How many devices a run uses, and how a CPU counts as several."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any

import jax

from algorithms.runs.settings import Settings
from algorithms.runs.side_by_side import num_cores
from algorithms.training.plan import Plan, Suggested

NUM_CPU_DEVICES = "JAX_NUM_CPU_DEVICES"  # JAX reads it when it starts, which is when gymnax is imported


def devices_for(plan: Plan, num_seeds: int) -> int:
    """Return how many devices share each seed by default: all of an accelerator, as far as they divide the plan.

    Seeds are split over devices first, because seeds need nothing from each other.
    """
    if jax.default_backend() == "cpu" and jax.process_count() == 1:
        return 1
    most = jax.device_count() // math.gcd(num_seeds, jax.device_count())
    return math.gcd(plan.num_envs, plan.mini_batch_size, most)


def variables_for(settings: Settings) -> dict[str, str]:
    """Return the environment variables with which a CPU counts as enough devices for a run.

    Empty if there are enough devices, or if the user has set their number. Several processes also get none: each of
    them has set its own before connecting.
    """
    devices = settings.plan.devices
    num_groups = math.gcd(settings.num_seeds, max(num_cores() // devices, 1))
    is_enough = devices == 1 or jax.default_backend() != "cpu" or jax.device_count() >= devices * num_groups
    is_set = (
        jax.process_count() > 1
        or NUM_CPU_DEVICES in os.environ
        or "host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    )
    return {} if is_enough or is_set else {NUM_CPU_DEVICES: str(devices * num_groups)}


def without_batch_weights(settings: Settings) -> tuple[Settings, str | None]:
    """Return settings that can be split over devices, and a line that says what was changed; None if nothing was.

    This is for presets, whose weights nobody has asked for. `weighting="batch"` cannot be computed on several devices;
    see `Sharded`. `"buffer"` differs from it by one factor for the whole batch.
    """
    number = settings.plan.devices
    if isinstance(number, Suggested):
        number = devices_for(settings.plan, settings.num_seeds)
    sampler = _with_weights_of_buffer(settings.sampler)
    if number == 1 or sampler == settings.sampler:
        return settings, None
    line = (
        'the preset has weighting="batch", which several devices cannot have; this run has weighting="buffer". '
        "--sampler.weighting chooses another one."
    )
    return dataclasses.replace(settings, sampler=sampler), line


def _with_weights_of_buffer(sampler: object) -> Any:
    if not isinstance(sampler, Mapping):
        return sampler
    changed = {name: _with_weights_of_buffer(value) for name, value in sampler.items()}
    return changed | ({"weighting": "buffer"} if sampler.get("weighting") == "batch" else {})


def check(settings: Settings) -> None:
    """Refuse numbers of devices and seeds that would leave a process without anything to do."""
    num_processes, there = jax.process_count(), jax.device_count()
    if num_processes > 1 and _num_used(settings) != there:
        raise ValueError(
            f"plan.devices: got {settings.plan.devices}, but {num_processes} processes have {there} devices in all, "
            f"and must use all of them; give --devices {there}, and as many --num-envs or a multiple."
        )


def on_resume(settings: Settings) -> int:
    """Return how many devices share each seed of a run that is resumed and not told how many.

    As many as before. If this would leave devices of several processes without work, all of them.
    """
    there = jax.device_count()
    if jax.process_count() == 1 or _num_used(settings) == there:
        return settings.plan.devices
    return there // math.gcd(settings.num_seeds, there)


def _num_used(settings: Settings) -> int:
    """Return how many devices a run uses: those that share a seed, for as many seeds at a time as possible."""
    devices = settings.plan.devices
    return devices * math.gcd(settings.num_seeds, max(jax.device_count() // devices, 1))


def for_sweep(settings: Settings) -> Settings:
    """Return the settings of a sweep. Its runs may be on different devices, but none of them is split."""
    is_suggested = isinstance(settings.plan.devices, Suggested)
    if (settings.plan.devices > 1 and not is_suggested) or jax.process_count() > 1:
        raise ValueError("--sweep: runs side by side have one device each, in one process; start separate runs.")
    return dataclasses.replace(settings, plan=dataclasses.replace(settings.plan, devices=1))
