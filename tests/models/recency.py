"""Slow, obvious models of windows of recent rows, of mixtures of samplers, and of adaptive recency."""

from __future__ import annotations

import itertools
import math

import numpy as np
from models.ring import ReferenceRing, Start

import jaxrl_buffers as jb

Limits = tuple[int, int, int, bool]  # lookahead, lookback, period, within one episode


def recent_rows(num_rows: int, num_envs: int, eta: float, c_min: float, progress: float) -> int:
    """Returns how many rows of an environment make up c_k slots, rounded up; at most what there is."""
    c_k = math.floor(max(num_rows * num_envs * eta ** (1000 * progress), c_min))
    return min(max(math.ceil(c_k / num_envs), 1), num_rows)


def ages(ring: ReferenceRing, starts: list[Start], env: int) -> list[int]:
    """Returns the ages of an environment's starts."""
    return [ring.heads()[env] - 1 - position for other, position in starts if other == env]


def window(sampler, ring: ReferenceRing, starts: list[Start], limits: Limits, progress: float) -> list[Start]:
    """Returns the starts that `Recent` or `LastN` leaves of given ones."""
    kept = []
    for env in range(ring.num_envs):
        of_env = ages(ring, starts, env)
        if not of_env:
            continue
        oldest = ring.sizes()[env] - limits[1]
        # The newest age at which the stride allows a start, whether or not that fits into its episode.
        newest = next(age for age in itertools.count(limits[0]) if (ring.heads()[env] - 1 - age) % limits[2] == 0)
        if isinstance(sampler, jb.Recent):
            rows = recent_rows(oldest - newest, ring.num_envs, sampler.eta, sampler.c_min, progress)
        else:
            rows = math.ceil(sampler.num_starts) * limits[2]
            if not math.ceil(sampler.num_starts) < sampler.max_share * len(starts) / ring.num_envs:
                rows = 0
        kept += [(env, ring.heads()[env] - 1 - age) for age in of_env if age < newest + rows]
    return kept


def probabilities(
    sampler, ring: ReferenceRing, leaves: dict[Start, float], starts: list[Start], limits: Limits, progress: float,
    batch_size: int,
) -> tuple[dict[Start, float], float]:  # fmt: skip
    """Returns the probability of every start that can be drawn, and the least one that weights are measured by."""
    if isinstance(sampler, (jb.Recent, jb.LastN)):
        starts = window(sampler, ring, starts, limits, progress)
        return probabilities(sampler.sampler, ring, leaves, starts, limits, progress, batch_size)
    if isinstance(sampler, jb.Combined):
        return mixture(sampler, ring, leaves, starts, limits, progress, batch_size)
    mass = {start: leaves[start] if isinstance(sampler, jb.Prioritized) else 1.0 for start in starts}
    total = sum(mass.values())
    found = {start: one / total for start, one in mass.items()}
    return found, min(found.values(), default=math.inf)


def mixture(sampler, ring, leaves, starts, limits, progress, batch_size) -> tuple[dict[Start, float], float]:
    """Returns the probabilities under `Combined`, and the sum of the least ones of all that draw from everything."""
    parts = [
        probabilities(part, ring, leaves, starts, limits, progress, batch_size)
        for part in (*sampler.others, sampler.sampler)
    ]
    ends = [0, *(math.ceil(batch_size * end) for end in np.cumsum(sampler.ratios)), batch_size]
    share = np.diff(ends) / batch_size
    for i, (found, _) in enumerate(parts):
        if not found:
            share[-1], share[i] = share[-1] + share[i], 0
    drawing = [(part, one) for part, one in zip(parts, share, strict=True) if one > 0 and part[0]]
    mixed = dict.fromkeys({start for (found, _), _ in drawing for start in found}, 0.0)
    for (found, _), one in drawing:
        for start, probability in found.items():
            mixed[start] += one * probability
    most = max((len(found) for (found, _), _ in drawing), default=0)
    return mixed, sum(one * least for (found, least), one in drawing if len(found) == most)


def main_sampler(sampler):
    """Returns the sampler that forms the weights."""
    while hasattr(sampler, "sampler"):
        sampler = sampler.sampler
    return sampler


def weights(sampler, found: dict[Start, float], least: float) -> dict[Start, float]:
    """Returns the weights of all starts that can be drawn."""
    main = main_sampler(sampler)
    if not isinstance(main, jb.Prioritized):
        return dict.fromkeys(found, 1.0)
    if main.weighting == "alf":
        return {start: len(found) * probability for start, probability in found.items()}
    return {start: (least / probability) ** main.beta for start, probability in found.items()}


class ReferenceTrend:
    """Adaptive recency, one step for every return."""

    def __init__(self, eta: float) -> None:
        self.initial, self.eta = eta, eta
        self.returns: list[float] = []
        self.rise, self.fall = -math.inf, 0.0

    def report_return(self, mean_return: float) -> float:
        """Follows one more return and gives the eta that counts from now on."""
        if math.isfinite(mean_return):
            self.returns = [*self.returns, mean_return][-20:]
            if len(self.returns) == 20:
                slope = float(np.mean(np.gradient(self.returns)))
                self.rise = slope if slope > self.rise else self.rise * 0.9999
                self.fall = -slope if slope < -self.fall else self.fall * 0.9999
                relative = 0.0 if slope == 0 else slope / (self.rise if slope > 0 else self.fall)
                place = (np.clip(relative, -1, 1) + 1) / 2
                self.eta = 1 + place * (self.initial - 1)
        return self.eta
