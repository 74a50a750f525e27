"""Results of runs in words."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def line(result: Mapping[str, Any]) -> str:
    """Return what a run has reached, and how fast it was."""
    stop = f", stopped by --{result['stopped_by'].replace('_', '-')}" if "stopped_by" in result else ""
    speed = "" if "updates" in result else f" at {result['steps_per_second']:,.0f} steps/s"
    return f"{_reached(result)} ({_episodes(result)}) after {_steps(result)}{speed}{stop}"


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what the points of a sweep have reached, a line for each.

    Example:
        >>> results = {"gamma=0.9": {"return_of_seeds": [3.0, 5.0]}, "gamma=0.99": {"return_of_seeds": [8.0, 9.0]}}
        >>> print(table({name: result | {"episodes": 10, "steps": 2000} for name, result in results.items()}))
        mean and range of 2 seeds, 10 episodes each, after 2,000 steps
          gamma=0.9   return 4.0 [3.0, 5.0]
          gamma=0.99  return 8.5 [8.0, 9.0]
    """
    first = next(iter(results.values()))
    width = max(map(len, results))
    lines = [f"  {name:{width}}  {_reached(result)}" for name, result in results.items()]
    return "\n".join([f"{_episodes(first)}, after {_steps(first)}", *lines])


def _steps(result: Mapping[str, Any]) -> str:
    updates = f"{result['updates']:,} updates and " if "updates" in result else ""
    return f"{updates}{result['steps']:,} steps"


def _reached(result: Mapping[str, Any]) -> str:
    rates = [100 * rate for rate in result.get("success_of_seeds", [])]
    success = f"success {spread(rates)} %, " if rates else ""
    return f"{success}return {spread(result['return_of_seeds'])}"


def _episodes(result: Mapping[str, Any]) -> str:
    num_seeds = len(result["return_of_seeds"])
    episodes = f"{result['episodes']} episode{'s' * (result['episodes'] > 1)}"
    return f"mean and range of {num_seeds} seeds, {episodes} each" if num_seeds > 1 else episodes


def spread(of_seeds: Sequence[float]) -> str:
    """Return the mean, and the range if there are several seeds."""
    ends = f" [{min(of_seeds):.1f}, {max(of_seeds):.1f}]" if len(of_seeds) > 1 else ""
    return f"{statistics.mean(of_seeds):.1f}{ends}"
