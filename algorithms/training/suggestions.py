"""Suggested numbers of a plan. They may change to fit the numbers that the user gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_buffers._checks import nearest_multiples


class Suggested(int):
    """A number from a default or a preset. It may change to fit the numbers that the user gave."""


def suggested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `Plan` marked as suggestions, which the plan may change.

    Example:
        >>> from algorithms import Plan
        >>> Plan(**{**suggested({"total_steps": 10_000, "update_every": 50}), "num_envs": 16}).update_every
        64
    """
    fixed = ("num_test_episodes", "on_nan", "offline_updates")  # these fit with any numbers
    return {name: value if name in fixed else Suggested(value) for name, value in values.items()}


def round_up(value: int, unit: int) -> int:
    """Return the smallest multiple of `unit` that is at least `value`."""
    return -(-value // unit) * unit


def require_multiple(name: str, value: int, of: str, unit: int) -> None:
    """Refuse a number of a plan that is not a multiple of `unit`. The error names the nearest multiples."""
    if value % unit:
        near = nearest_multiples(value, unit)
        raise ValueError(f"Plan({name}={value}): `{name}` must be a multiple of {of}={unit}; {near} would do.")
