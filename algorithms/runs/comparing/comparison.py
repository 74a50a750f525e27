"""Runs side by side: their returns while training, the scores of their seeds, and estimates from these scores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from algorithms.runs.comparing import labels
from algorithms.runs.comparing.estimates import Estimate, interquartile_mean, mean, probability_of_improvement
from algorithms.runs.run_folder import RunFolder


class Scores(NamedTuple):
    """The mean return of each seed, by which a run is judged."""

    of_seeds: np.ndarray  # float64[S]
    steps: int  # of each seed before the evaluation; updates if the axis counts these
    episodes: int  # of each seed in the evaluation


class ComparedRun(NamedTuple):
    """One of the runs that are compared."""

    label: str  # a name that no other run has
    folder: RunFolder
    steps: np.ndarray  # int64[X], of the evaluations while training, along the axis of the comparison
    returns: np.ndarray  # float64[X, S], means over episodes; NaN where one is not finite
    scores: Scores
    mean: Estimate
    interquartile_mean: Estimate
    improvement: Estimate | None  # the probability of being better than the first run; None for the first run itself


class Comparison(NamedTuple):
    """Runs of one environment, side by side."""

    environment: str
    axis: str  # "steps", or "updates" if all runs have made updates before their first step
    algorithms: tuple[str, ...]  # each once
    runs: tuple[ComparedRun, ...]
    differences: dict[str, list[str | None]]  # settings that are not the same in all runs, with the value of each

    @property
    def title(self) -> str:
        """What was trained."""
        return f"{', '.join(self.algorithms)} on {self.environment}"

    @property
    def basis(self) -> str:
        """Which episodes the scores come from."""
        steps = sorted({run.scores.steps for run in self.runs})
        after = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
        episodes = " or ".join(map(str, sorted({run.scores.episodes for run in self.runs})))
        return f"deterministic evaluation after {after} {self.axis}, {episodes} episodes a seed"


def compare(folders: Sequence[str | os.PathLike[str]]) -> Comparison:
    """Compare runs of the same environment.

    Each seed's score is its mean return in the last evaluation of the run, after all training. If the runs have made
    different numbers of steps, the score comes from the last evaluation within the steps that all runs have made.

    Args:
        folders: of the runs; all others are compared with the first one.

    Raises:
        ValueError: when the runs cannot be compared: one has not been evaluated yet, their environments differ ...
    """
    opened = [RunFolder(folder) for folder in folders]
    _require_different(opened)
    settings = [folder.settings() for folder in opened]
    environments = list(dict.fromkeys(one.environment for one in settings))
    if len(environments) > 1:
        others = next(
            folder.path for folder, one in zip(opened, settings, strict=True) if one.environment != environments[0]
        )
        raise ValueError(
            f"{opened[0].path} was trained on {environments[0]} and {others} on {environments[1]}; compare runs of the "
            "same environment."
        )
    metrics = [_metrics(folder) for folder in opened]
    axis = "updates" if all("updates" in line for lines in metrics for line in lines) else "steps"
    curves = [_curve(lines, axis) for lines in metrics]
    scores = _scores(opened, curves, axis)
    flat = [labels.named(one) for one in settings]
    names = labels.labels(flat, [str(folder.path) for folder in opened])
    runs = [
        ComparedRun(
            *(label, folder, *curve, score),
            mean(score.of_seeds),
            interquartile_mean(score.of_seeds),
            probability_of_improvement(score.of_seeds, scores[0].of_seeds) if index else None,
        )
        for index, (label, folder, curve, score) in enumerate(zip(names, opened, curves, scores, strict=True))
    ]
    algorithms = tuple(dict.fromkeys(one.algorithm for one in settings))
    return Comparison(environments[0], axis, algorithms, tuple(runs), labels.differences(flat))


def _require_different(folders: Sequence[RunFolder]) -> None:
    if not folders:
        raise ValueError("there is nothing to compare; name the folders of runs.")
    seen: dict[str, RunFolder] = {}
    for folder in folders:
        place = os.path.realpath(folder.path)
        if place in seen:
            raise ValueError(f"{folder.path} is given twice; name every run once.")
        seen[place] = folder


def _metrics(folder: RunFolder) -> list[dict[str, Any]]:
    metrics = folder.metrics()
    if not metrics:
        raise ValueError(f"{folder.path} has no evaluation yet; wait for its first one, or leave it out.")
    return metrics


def _curve(metrics: Sequence[Mapping[str, Any]], axis: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps `[X]` of a run's evaluations, and the mean returns `[X, S]` of its seeds."""
    steps = np.array([line[axis] for line in metrics])
    return steps, np.array([np.mean(np.array(line["returns"], np.float64), axis=1) for line in metrics])


def _scores(folders: Sequence[RunFolder], curves: Sequence[tuple[np.ndarray, np.ndarray]], axis: str) -> list[Scores]:
    common = min(int(steps[-1]) for steps, _ in curves)
    results = [result for folder in folders if (result := folder.result()) is not None and axis in result]
    if len(results) == len(folders) and all(common <= one[axis] == results[0][axis] for one in results):
        scores = [Scores(np.array(one["return_of_seeds"], float), one[axis], one["episodes"]) for one in results]
    else:
        scores = [_scores_within(common, folder, *curve) for folder, curve in zip(folders, curves, strict=True)]
    for folder, one in zip(folders, scores, strict=True):
        if not np.all(np.isfinite(one.of_seeds)):
            raise ValueError(f"{folder.path} has returns that are not finite after {one.steps:,} {axis}; leave it out.")
    return scores


def _scores_within(common: int, folder: RunFolder, steps: np.ndarray, returns: np.ndarray) -> Scores:
    within = np.flatnonzero(steps <= common)
    if not within.size:
        raise ValueError(
            f"{folder.path} has its first evaluation after {steps[0]:,} steps, and another run ends at {common:,}; "
            "let that one go on, or leave it out."
        )
    last = within[-1]
    return Scores(returns[last], int(steps[last]), len(folder.metrics()[last]["returns"][0]))
