"""Slow, obvious models of episodes: their bounds, their returns, and the goals that hindsight may choose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from models.ring import ReferenceRing

Record = dict[str, Any]


class History:
    """Everything ever written to one environment, and which of it is stored."""

    def __init__(self, length: int) -> None:
        self.length, self.size = length, 0
        self.ended: list[bool] = []
        self.zero: list[bool] = []
        self.reward: list[float] = []
        self.discount: list[float] = []
        self.value: list[float] = []

    def add(self, reward: float, terminated: bool, truncated: bool, discount: float = 1.0, value: float = 0.0) -> None:
        self.ended.append(terminated or truncated)
        self.zero.append(terminated or discount == 0)
        self.reward.append(reward)
        self.discount.append(discount)
        self.value.append(value)
        self.size = min(self.size + 1, self.length)

    def forget(self, num_rows: int) -> None:
        self.size = max(self.size - num_rows, 0)

    def mark_break(self) -> None:
        if self.ended:
            self.ended[-1] = True

    def stored(self) -> range:
        return range(len(self.ended) - self.size, len(self.ended))

    def begin(self, position: int) -> int:
        while position > 0 and not self.ended[position - 1]:
            position -= 1
        return position

    def end(self, position: int) -> int:
        while position < len(self.ended) - 1 and not self.ended[position]:
            position += 1
        return position

    def last_zero(self, position: int) -> int:
        rows = range(max(self.begin(position), self.stored().start), self.end(position) + 1)
        return max((row for row in rows if self.zero[row]), default=-1)

    def discounted_return(self, position: int, gamma: float, default: float, bootstrap: bool) -> float:
        """Add up rewards until the discount is zero, or the end of the episode with what is thought to follow it."""
        total, factor = 0.0, 1.0
        for row in range(position, self.end(position) + 1):
            total += factor * self.reward[row]
            if self.zero[row]:
                return total
            factor *= gamma * self.discount[row]
            if self.ended[row]:
                return total + factor * self.value[row] if bootstrap else default
        return default


class Bounds(NamedTuple):
    """The stored positions of an episode."""

    first: int
    last: int
    is_whole: bool
    is_ended: bool


def episode_bounds(ring: ReferenceRing, env: int, position: int) -> Bounds:
    """Walk from a stored row to both ends of the stored part of its episode."""
    rows = dict(ring.in_order(env))

    def ends(position: int) -> bool:
        return bool(rows[position]["terminated"] or rows[position]["truncated"])

    first = last = position
    while first - 1 in rows and not ends(first - 1):
        first -= 1
    while last + 1 in rows and not ends(last):
        last += 1
    begins = first == 0 or ring.was_end(env, first - 1)
    return Bounds(first, last, begins, ends(last))


def goal_candidates(ring: ReferenceRing, env: int, position: int, strategy: str) -> list[tuple[int, int]]:
    """Return the stored rows whose achieved goal a sample may get."""
    bounds = episode_bounds(ring, env, position)
    if strategy == "random":
        return [(other, row) for other in range(ring.num_envs) for row, _ in ring.in_order(other)]
    if strategy == "final":
        return [(env, bounds.last)] if bounds.is_ended else []
    first = position if strategy == "future" else bounds.first
    return [(env, row) for row in range(first, bounds.last + 1)]


def relabeled(record: Record, goal: np.ndarray, relabel: Callable[[Record, np.ndarray], Record]) -> Record:
    """Relabel a row; an end of its episode stays one."""
    new = relabel(record, goal)
    was_end = bool(record["terminated"] or record["truncated"])
    return new | {"truncated": bool(new["truncated"]) or (was_end and not new["terminated"])}


def episode_probabilities(ring: ReferenceRing, whole: bool) -> dict[tuple[int, int], float]:
    """Return how likely each stored row is when episodes, then their stored steps, are drawn uniformly."""
    episodes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for env in range(ring.num_envs):
        for position, _ in ring.in_order(env):
            bounds = episode_bounds(ring, env, position)
            if not whole or (bounds.is_whole and bounds.is_ended):
                episodes.setdefault((env, bounds.first), []).append((env, position))
    return {row: 1 / len(episodes) / len(rows) for rows in episodes.values() for row in rows}
