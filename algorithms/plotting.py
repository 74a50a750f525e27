"""Learning curves as pictures; needs matplotlib."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def mean_and_band(values: np.ndarray, confidence: float = 0.95, num_resamples: int = 2_000) -> tuple[np.ndarray, ...]:
    """Return the mean over seeds of `[X, S]`, and the bounds of its bootstrap confidence interval, each `[X]`."""
    choice = np.random.default_rng(0).integers(values.shape[1], size=(num_resamples, values.shape[1]))
    means = values[:, choice].mean(axis=2)
    outside = (1 - confidence) / 2
    return values.mean(axis=1), *np.quantile(means, [outside, 1 - outside], axis=1)


def draw_curve(metrics: Sequence[Mapping[str, Any]], title: str, path: str | os.PathLike[str]) -> None:
    """Draw the returns of the evaluations in a run's metrics, mean and 95 % confidence band over seeds, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    steps = np.array([line["steps"] for line in metrics])
    returns = np.array([np.mean(line["returns"], axis=1) for line in metrics])
    mean, low, high = mean_and_band(returns)
    figure = Figure(figsize=(7, 4.3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(steps, returns, color="tab:blue", alpha=0.25, linewidth=0.8)
    axes.fill_between(steps, low, high, color="tab:blue", alpha=0.25, linewidth=0, label="95 % confidence of the mean")
    num_seeds = returns.shape[1]
    axes.plot(
        steps, mean, color="tab:blue", marker=".", label=f"mean of {num_seeds} seed{'s' if num_seeds > 1 else ''}"
    )
    axes.set(title=title, xlabel="environment steps", ylabel="return of deterministic episodes")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)
