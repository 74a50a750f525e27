"""Slow, obvious reference models of the replay buffers: the oracle the JAX implementation is tested against.

A *start* is (env, position), where a sample may begin. A *position* counts the rows written to that environment before
this one since the ring was made; it never goes back. row = position % T; *head* is the next position to be written; the
newest `size` positions below it are live; age = head - 1 - position. All numbers are Python ints and float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Start = tuple[int, int]  # (environment, position)

SMALLEST_LEAF = float(np.finfo(np.float32).tiny)  # smallest positive normal float32


class ReferenceRing:
    """A ring of `length` rows for each of `num_envs` environments, kept as unbounded histories.

    Nothing is ever overwritten here: a record is "gone" only because its position is not among the newest `size`.
    """

    def __init__(self, length: int, num_envs: int) -> None:
        self.length, self.num_envs = length, num_envs
        self._history: list[list[Any]] = [[] for _ in range(num_envs)]
        self._sizes = [0] * num_envs

    def _environments(self, env_ids: Sequence[int] | None) -> list[int]:
        """Returns the listed environments as ints, all of them for None."""
        envs = list(range(self.num_envs)) if env_ids is None else [int(env) for env in env_ids]
        assert len(set(envs)) == len(envs), f"env_ids {envs} names an environment twice"
        assert set(envs) <= set(range(self.num_envs)), f"env_ids {envs} are not all environments"
        return envs

    def add(self, chunk: Sequence[Sequence[Any]], env_ids: Sequence[int] | None = None, mask: Any = None) -> None:
        """Writes chunk[k][j] to environment env_ids[j], in order of k, wherever mask[k][j] is true."""
        envs = self._environments(env_ids)
        for k, step in enumerate(chunk):
            assert len(step) == len(envs), f"step {k} has {len(step)} records for {len(envs)} environments"
            for j, env in enumerate(envs):
                if mask is None or mask[k][j]:
                    self._history[env].append(step[j])
                    self._sizes[env] = min(self._sizes[env] + 1, self.length)

    def clear(self, env_ids: Sequence[int] | None = None) -> None:
        """Forgets all rows; heads stay where they are."""
        self.drop_oldest(self.length, env_ids)

    def drop_oldest(self, n: int, env_ids: Sequence[int] | None = None) -> None:
        """Forgets the n oldest rows, or all of them where there are fewer."""
        for env in self._environments(env_ids):
            self._sizes[env] -= min(n, self._sizes[env])

    def dequeue(self, n: int, env_ids: Sequence[int] | None = None) -> list[list[Any]]:
        """Returns up to n oldest records of each listed environment, oldest first, and forgets them."""
        records = [[record for _, record in self.in_order(env)][:n] for env in self._environments(env_ids)]
        self.drop_oldest(n, env_ids)
        return records

    def heads(self) -> list[int]:
        """Returns the next position to be written, per environment."""
        return [len(history) for history in self._history]

    def sizes(self) -> list[int]:
        """Returns the number of stored rows, per environment."""
        return list(self._sizes)

    def is_live(self, env: int, position: int) -> bool:
        """Tells whether the position is written and not yet overwritten or forgotten."""
        head = len(self._history[env])
        return head - self._sizes[env] <= position < head

    def record(self, env: int, position: int) -> Any:
        """Returns the record at a position, or None when it is not live."""
        return self._history[env][position] if self.is_live(env, position) else None

    def was_end(self, env: int, position: int) -> bool:
        """Tells whether the record at a position, live or not, ended its episode."""
        return bool(self._history[env][position]["terminated"] or self._history[env][position]["truncated"])

    def in_order(self, env: int) -> list[tuple[int, Any]]:
        """Returns the live (position, record) pairs, oldest first."""
        head = len(self._history[env])
        return [(position, self._history[env][position]) for position in range(head - self._sizes[env], head)]

    def physical(self, env: int) -> list[Any]:
        """Returns the records as they lie in the ring, None in rows that hold nothing live."""
        rows: list[Any] = [None] * self.length
        for position, record in self.in_order(env):
            rows[position % self.length] = record
        return rows


def legal_starts(
    ring: ReferenceRing, lookahead: int = 0, lookback: int = 0, period: int = 1, within_episode: bool = False
) -> list[Start]:
    """Returns the sorted starts with `lookahead` newer and `lookback` older live rows, at multiples of `period`.

    With `within_episode`, all those newer rows are of the episode of the start.
    """
    starts = []
    for env in range(ring.num_envs):
        head, size = ring.heads()[env], ring.sizes()[env]
        for position, _ in ring.in_order(env):
            age = head - 1 - position
            if age >= lookahead and age + lookback < size and position % period == 0:
                if within_episode and any(ring.was_end(env, position + j) for j in range(lookahead)):
                    continue
                starts.append((env, position))
    return starts


def n_step(
    ring: ReferenceRing,
    env: int,
    position: int,
    n: int,
    gamma: float,
    change: Callable[[Any], Any] = lambda record: record,
) -> dict[str, Any]:
    """Returns the n-step transition from a live position; it ends early at episode ends and at the write head.

    Its rows are changed first.
    """
    assert n >= 1, f"no window has {n} steps"
    assert ring.is_live(env, position), f"position {position} of env {env} is not stored"
    gamma = float(gamma)  # a float32 scalar would pull the powers down to float32
    used = []
    for offset in range(n):
        if not ring.is_live(env, position + offset):
            break  # the write head: the row behind it is the oldest one, or none at all
        used.append(change(ring.record(env, position + offset)))
        if used[-1]["terminated"] or used[-1]["truncated"]:
            break
    batch = {name: used[0][name] for name in ("obs", "action", "extras")}
    batch["reward"] = sum(gamma**i * np.asarray(row["reward"], np.float64) for i, row in enumerate(used))
    batch["discount"] = gamma ** len(used) * (1.0 - float(used[-1]["terminated"]))
    batch["next_obs"] = used[-1]["next_obs"]
    batch["num_steps"] = len(used)
    return batch


def sequence(
    ring: ReferenceRing, env: int, position: int, length: int, burn_in: int, gamma: float, n: int = 1
) -> dict[str, Any]:
    """Returns `length` consecutive steps; the mask leaves out burn-in and all after the first episode end.

    The target of a step is that of `n_step` from it, which also stops at the end of the sequence.
    """
    rows = [ring.record(env, position + j) for j in range(length) if ring.is_live(env, position + j)]
    assert len(rows) == length, f"no {length} live rows from position {position} of env {env}"
    batch = {name: _stack([row[name] for row in rows]) for name in ("obs", "action", "extras")}
    if isinstance(batch["extras"], dict) and "carry" in batch["extras"]:
        batch["extras"]["carry"] = rows[0]["extras"]["carry"]
    targets = [n_step(ring, env, position + j, min(n, length - j), gamma) for j in range(length)]
    batch |= {name: _stack([target[name] for target in targets]) for name in ("reward", "discount", "next_obs")}
    batch["num_steps"] = np.asarray([target["num_steps"] for target in targets])
    ended = [bool(row["terminated"] or row["truncated"]) for row in rows]
    batch["mask"] = np.asarray([j >= burn_in and not any(ended[:j]) for j in range(length)], bool)
    return batch


def _stack(values: list[Any]) -> Any:
    """Stacks equal structures of dicts, tuples and arrays along a new first axis; dtypes are kept."""
    first = values[0]
    if first is None:
        return None
    if isinstance(first, dict):
        return {name: _stack([value[name] for value in values]) for name in first}
    if isinstance(first, tuple):
        return tuple(_stack([value[i] for value in values]) for i in range(len(first)))
    return np.stack([np.asarray(value) for value in values])


class ReferencePriorities:
    """One raw priority and one leaf, (raw + epsilon)**alpha, for every legal start of a ring."""

    def __init__(self, ring: ReferenceRing, alpha: float, epsilon: float, initial: float, *reach: int) -> None:
        self.ring = ring
        self.alpha, self.epsilon, self.initial = float(alpha), float(epsilon), float(initial)
        self._reach = reach  # as `legal_starts` takes it
        self.raw: dict[Start, float] = {}
        self.leaves: dict[Start, float] = {}

    def _leaf(self, raw: float) -> float:
        """Returns the leaf of a raw priority; never zero, so that a legal start can always be drawn."""
        return max((raw + self.epsilon) ** self.alpha, SMALLEST_LEAF)

    def legal(self) -> list[Start]:
        """Returns the starts that are legal now."""
        return legal_starts(self.ring, *self._reach)

    def after_add(self, given: Mapping[Start, float] | None = None) -> None:
        """Follows an add to the ring; `given` counts for rows of its chunk that are legal starts right after it."""
        # Read before anything is removed: the maximum includes the leaves that this add overwrote.
        default_leaf = max([self._leaf(self.initial), *self.leaves.values()])
        default_raw = self.initial if self.alpha == 0 else default_leaf ** (1 / self.alpha) - self.epsilon
        self.after_forget()
        for start in self.legal():
            if start not in self.leaves:
                self.raw[start], self.leaves[start] = default_raw, default_leaf
                if given is not None and start in given:
                    self.update([start], [given[start]])  # keeps the default when the value is not a priority

    def after_forget(self) -> None:
        """Follows clear, drop_oldest or dequeue: starts that are no longer legal lose their leaves."""
        for start in set(self.leaves) - set(self.legal()):
            del self.raw[start], self.leaves[start]

    def update(self, handles: Sequence[Start], priorities: Sequence[float]) -> None:
        """Sets priorities one after the other; stale handles and NaN, infinite or negative values change nothing."""
        legal = self.legal()
        for (env, position), priority in zip(handles, priorities, strict=True):
            start = (int(env), int(position))
            if start in legal and math.isfinite(priority) and priority >= 0:
                self.raw[start] = float(priority)
                self.leaves[start] = self._leaf(self.raw[start])

    def reprioritize(self, alpha: float) -> None:
        """Changes alpha and rebuilds every leaf from its raw priority."""
        self.alpha = float(alpha)
        self.leaves = {start: self._leaf(raw) for start, raw in self.raw.items()}

    def probabilities(self) -> dict[Start, float]:
        """Returns the probability of every start."""
        total = sum(self.leaves.values())
        return {start: leaf / total for start, leaf in self.leaves.items()}

    def weights(self, beta: float, convention: str, drawn: Sequence[Start] | None = None) -> dict[Start, float]:
        """Returns importance weights: of the drawn starts for "batch" (None: all), of every start otherwise.

        "buffer" and "batch" are (N * P)**-beta over its maximum; "alf" is leaf / mean leaf, without beta.
        """
        assert convention in ("buffer", "batch", "alf"), f"unknown convention {convention!r}"
        relative = {start: len(self.leaves) * p for start, p in self.probabilities().items()}  # leaf / mean leaf
        if convention == "alf":
            return relative
        if convention == "batch" and drawn is not None:
            relative = {start: relative[start] for start in drawn}
        corrections = {start: value ** -float(beta) for start, value in relative.items()}
        largest = max(corrections.values(), default=1.0)
        return {start: correction / largest for start, correction in corrections.items()}


class ReferenceSegmentTree:
    """A plain list of non-negative leaves with the queries of a sum, min and max tree."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.leaves = [0.0] * capacity

    def _indices(self, start: int, stop: int | None) -> range:
        """Returns the leaf indices of start..stop-1, clipped to the tree."""
        return range(max(start, 0), self.capacity if stop is None else min(stop, self.capacity))

    def write(self, indices: Sequence[int], values: Sequence[float]) -> None:
        """Sets leaves one after the other; indices outside the tree are ignored."""
        for index, value in zip(indices, values, strict=True):
            if 0 <= index < self.capacity:
                self.leaves[int(index)] = float(value)

    def sum(self, start: int = 0, stop: int | None = None) -> float:
        """Returns the sum of the leaves in a range, added from left to right as in `find_between`."""
        return float(np.cumsum([0.0, *(self.leaves[i] for i in self._indices(start, stop))])[-1])

    def minimum(self, start: int = 0, stop: int | None = None) -> float:
        """Returns the smallest non-zero leaf of a range, inf when there is none."""
        return min((self.leaves[i] for i in self._indices(start, stop) if self.leaves[i] != 0), default=math.inf)

    def maximum(self, start: int = 0, stop: int | None = None) -> float:
        """Returns the largest leaf of a range, 0 when it is empty."""
        return max((self.leaves[i] for i in self._indices(start, stop)), default=0.0)

    def count_nonzero(self) -> int:
        """Returns the number of non-zero leaves."""
        return sum(leaf != 0 for leaf in self.leaves)

    def find(self, threshold: float) -> int:
        """Returns the leaf in which a threshold falls; see `find_between`."""
        return self.find_between(0, None, threshold)

    def find_between(self, start: int, stop: int | None, threshold: float) -> int:
        """Returns the first non-zero leaf of a range whose inclusive prefix sum, from `start`, exceeds the threshold.

        A threshold at or above the total gives the last non-zero leaf; a range of zeros gives -1.
        """
        prefix, found = 0.0, -1
        for index in [i for i in self._indices(start, stop) if self.leaves[i] != 0]:
            found = index
            prefix += self.leaves[index]
            if prefix > threshold:
                break
        return found
