"""Estimates from the scores of a few seeds, by the definitions of rliable.

Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice, https://arxiv.org/abs/2108.13264.
Confidence intervals come from the paper's stratified bootstrap, by percentiles. Its strata are tasks. Runs of one
environment have one stratum, in which seeds are drawn with replacement. Seeds of two runs are drawn independently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
NUM_RESAMPLES = 10_000


class Estimate(NamedTuple):
    """A number with its confidence interval; a single seed gives no interval."""

    value: float
    low: float | None = None
    high: float | None = None

    def spelled(self, digits: int) -> str:
        """Return the number and its interval as text.

        Example:
            >>> Estimate(0.51, 0.4, 0.625).spelled(2), Estimate(3.0).spelled(1)
            ('0.51 [0.40, 0.62]', '3.0')
        """
        interval = "" if self.low is None else f" [{self.low:,.{digits}f}, {self.high:,.{digits}f}]"
        return f"{self.value:,.{digits}f}{interval}"


def mean(scores: np.ndarray) -> Estimate:
    """Estimate the mean of scores `[S]`."""
    return _estimate([scores], np.mean)


def interquartile_mean(scores: np.ndarray) -> Estimate:
    """Estimate the mean of the middle half of scores `[S]`, which outliers change less than the mean.

    Example:
        >>> interquartile_mean(np.array([0.0, 1.0, 3.0, 100.0])).value
        2.0
    """
    return _estimate([scores], lambda scores, axis: stats.trim_mean(scores, 0.25, axis=axis))


def probability_of_improvement(scores: np.ndarray, others: np.ndarray) -> Estimate:
    """Estimate how likely a seed of one run has a higher score than a seed of another run; equal scores count half.

    Args:
        scores: `[S]` of the run.
        others: `[S']` of the run that it is compared with.

    Example:
        >>> probability_of_improvement(np.array([1.0, 3.0]), np.array([0.0, 2.0])).value
        0.75
    """

    def probability(scores: np.ndarray, others: np.ndarray, axis: int) -> np.ndarray:
        # `method` affects only the p-value, which is not used.
        found = stats.mannwhitneyu(scores, others, axis=axis, method="asymptotic")
        return found.statistic / (scores.shape[axis] * others.shape[axis])

    return _estimate([scores, others], probability)


def _estimate(samples: Sequence[np.ndarray], statistic: Callable[..., Any]) -> Estimate:
    with np.errstate(invalid="ignore", divide="ignore"):  # p-values are invalid where all scores are the same
        value = float(statistic(*samples, axis=-1))
        if min(map(len, samples)) < 2:
            return Estimate(value)
        found = stats.bootstrap(
            samples,
            statistic,
            n_resamples=NUM_RESAMPLES,
            confidence_level=CONFIDENCE,
            method="percentile",
            rng=np.random.default_rng(0),
        )
    return Estimate(value, float(found.confidence_interval.low), float(found.confidence_interval.high))
