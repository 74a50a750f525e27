"""Refuses settings that are wrong by themselves. `build` checks the options of components when it makes them."""

from __future__ import annotations

import dataclasses

import jax

from algorithms import environments
from algorithms.networks import memories
from algorithms.runs import components
from algorithms.runs.components import ALGORITHMS, ON_POLICY
from algorithms.runs.settings import Settings, refuse_replaced, require_keys
from algorithms.training.plan import Plan
from jaxrl_buffers._checks import require_choice, require_flag, require_integer, require_number, shown
from jaxrl_buffers.views.hindsight import STRATEGIES

CHOICES: dict[str, tuple[str, ...]] = {
    "hindsight": ("none", *STRATEGIES),
    "memory": ("none", *memories.KINDS),
    "obs_dtype": ("none", *environments.OBS_DTYPES),
}
MAX_SEED = 2**32 - 1  # a larger seed would give the same random numbers as a smaller one
MAX_SEEDS = 1_000_000


def check(settings: Settings) -> None:
    """Refuse settings of wrong types or values, and settings that do not go together."""
    components.require_name("algorithm", settings.algorithm, ALGORITHMS)
    for name, kind, what in (("environment", str, "the name of an environment"), ("plan", Plan, "a Plan")):
        if not isinstance(getattr(settings, name), kind):
            raise ValueError(f"Settings({name}={shown(getattr(settings, name))}): `{name}` must be {what}.")
    for name in ("agent", "rollout", "buffer", "env"):
        require_keys(name, {} if getattr(settings, name) is None else getattr(settings, name))
    for name, choices in CHOICES.items():
        require_choice("Settings", name, getattr(settings, name), choices)
    for name in ("n_step", "sequence_length", "capacity", "frame_stack", "actors"):
        require_integer("Settings", name, getattr(settings, name), 1)
    require_integer("Settings", "burn_in", settings.burn_in, 0)
    require_integer("Settings", "num_seeds", settings.num_seeds, 1, MAX_SEEDS)
    require_integer("Settings", "seed", settings.seed, 0, MAX_SEED)
    for name in ("hindsight_ratio", "averaging", "gamma", "dataset_share"):
        require_number("Settings", name, getattr(settings, name), 0, 1)
    for name in ("anneal", "normalize", "processes", "collect_then_learn"):
        require_flag("Settings", name, getattr(settings, name))
    _check_on_policy(settings)
    _check_dataset(settings)
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    refuse_replaced({name: value for name, value in values.items() if value != defaults[name]})


def _check_on_policy(settings: Settings) -> None:
    """Refuse settings of replay buffers for on-policy algorithms, and of rollouts for the others."""
    algorithm = settings.algorithm
    if algorithm not in ON_POLICY:
        if settings.rollout is not None:
            raise ValueError(
                f"rollout: got {shown(settings.rollout)}, but {algorithm} learns from a replay buffer; leave it out."
            )
        return
    if settings.sampler is not None:
        raise ValueError(
            f"sampler: got {shown(settings.sampler)}, but {algorithm} learns from whole rollouts; leave it out."
        )
    if settings.n_step != 1:
        raise ValueError(f"Settings(n_step={settings.n_step}): {algorithm} learns from advantages; leave it at 1.")
    if settings.hindsight != "none":
        raise ValueError(
            f"Settings(hindsight={settings.hindsight!r}): {algorithm} learns only from new steps of its policy, which "
            "cannot be relabeled; use an off-policy algorithm, or leave `hindsight` out."
        )


def _check_dataset(settings: Settings) -> None:
    """Refuse a data set that nothing could learn from, and offline updates without one."""
    if settings.dataset is None:
        if number := settings.plan.offline_updates:
            raise ValueError(f"plan.offline_updates: got {number}, but there is no data set; give `dataset`.")
        return
    if settings.plan.devices > 1:
        raise ValueError("dataset: it is not split over devices; leave out one of --dataset and --devices.")
    if jax.process_count() > 1:
        raise ValueError("dataset: it is not split over processes; leave it out, or start one process.")
    if settings.algorithm in ON_POLICY:
        raise ValueError(f"dataset: {settings.algorithm} learns only from new steps of its policy; leave it out.")
