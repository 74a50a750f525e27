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
from algorithms.training.suggestions import round_up

NUM_CPU_DEVICES = "JAX_NUM_CPU_DEVICES"  # JAX reads it when it starts, which is when gymnax is imported


def devices_for(plan: Plan, num_seeds: int) -> int:
    """Return how many devices share each seed by default: all of an accelerator, as far as they divide the plan.

    Seeds are split over devices first, because seeds need nothing from each other.
    """
    if jax.default_backend() == "cpu" and jax.process_count() == 1:
        return 1
    return math.gcd(plan.num_envs, plan.mini_batch_size, _most(num_seeds))


def idle(plan: Plan, num_seeds: int, number: int, refusal: str | None = None) -> str | None:
    """Return a line for a run that leaves devices of an accelerator idle: why, and what would use all of them.

    Args:
        plan: of the run.
        num_seeds: of the run.
        number: how many devices share each seed.
        refusal: why it cannot be more; None if the plan decides it.
    """
    there, most = jax.device_count(), _most(num_seeds)
    if jax.default_backend() == "cpu" or jax.process_count() > 1 or number == most:  # processes must use all of them
        return None
    used = f"uses {_used(number, num_seeds)} of {there} devices"
    if refusal is not None:
        return f"{used}; {refusal}"
    values = {name: getattr(plan, name) for name in ("num_envs", "mini_batch_size") if getattr(plan, name) % most}
    why = " and ".join(f"{name} is {value}" for name, value in values.items())
    flags = " ".join(f"--{name.replace('_', '-')} {round_up(value, most)}" for name, value in values.items())
    return f"{used}, because {why}; {flags} would use all."


def _most(num_seeds: int) -> int:
    """Return how many devices share each seed if all devices are used."""
    return jax.device_count() // math.gcd(num_seeds, jax.device_count())


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
    if num_processes > 1 and _used(settings.plan.devices, settings.num_seeds) != there:
        raise ValueError(
            f"plan.devices: got {settings.plan.devices}, but {num_processes} processes have {there} devices in all, "
            f"and must use all of them; give --devices {there}, and as many --num-envs or a multiple."
        )


def on_resume(settings: Settings) -> int:
    """Return how many devices share each seed of a run that is resumed and not told how many.

    As many as before. If this would leave devices of several processes without work, all of them.
    """
    if jax.process_count() == 1 or _used(settings.plan.devices, settings.num_seeds) == jax.device_count():
        return settings.plan.devices
    return _most(settings.num_seeds)


def _used(devices: int, num_seeds: int) -> int:
    """Return how many devices a run uses: those that share a seed, for as many seeds at a time as possible."""
    return devices * math.gcd(num_seeds, max(jax.device_count() // devices, 1))


def for_sweep(settings: Settings) -> Settings:
    """Return the settings of a sweep. Its runs may be on different devices, but none of them is split."""
    is_suggested = isinstance(settings.plan.devices, Suggested)
    if (settings.plan.devices > 1 and not is_suggested) or jax.process_count() > 1:
        raise ValueError("--sweep: runs side by side have one device each, in one process; start separate runs.")
    return dataclasses.replace(settings, plan=dataclasses.replace(settings.plan, devices=1))
