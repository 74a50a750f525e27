"""One evaluation of a run, in the form that logs write."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

OF_THE_RUN = ("updates", "seconds", "steps_per_second")  # one number, whatever the number of seeds


class Point(NamedTuple):
    """The metrics of one evaluation, by series: `mean` is the mean over all seeds, `seed3` belongs to seed 3."""

    steps: int  # environment steps of each seed
    position: int  # on the horizontal axis: steps, or updates in a run with offline updates
    seconds: float  # of training, without compilation and evaluation
    series: dict[str, dict[str, float]]  # values that are not finite are left out

    @classmethod
    def of_line(cls, line: Mapping[str, Any], first_seed: int = 0) -> Point:
        """Return the point of a line of metrics.jsonl. Seeds have series only if there are several.

        Example:
            >>> line = {"steps": 100, "seconds": 2.0, "loss": [0.5, 0.7], "returns": [[1.0, 3.0], [5.0, None]]}
            >>> point = Point.of_line(line)
            >>> point.series["seed0"], point.series["seed1"]
            ({'return': 2.0, 'loss': 0.5}, {'loss': 0.7})
            >>> point.series["mean"]
            {'seconds': 2.0, 'loss': 0.6}
        """
        of_seeds = {"return": [_mean(episodes) for episodes in line["returns"]]}
        of_seeds |= {name: values for name, values in line.items() if name != "returns" and isinstance(values, list)}
        of_run = {name: line[name] for name in OF_THE_RUN if line.get(name) is not None}
        series = {"mean": of_run | _known({name: _mean(values) for name, values in of_seeds.items()})}
        num_seeds = len(line["returns"])
        for seed in range(num_seeds if num_seeds > 1 else 0):
            series[f"seed{first_seed + seed}"] = _known({name: values[seed] for name, values in of_seeds.items()})
        return cls(line["steps"], line.get("updates", line["steps"]), line.get("seconds") or 0.0, series)


Writer = Callable[[Point], None]  # adds a point to a log


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    # Rounded to as many digits as in metrics.jsonl.
    return float(f"{statistics.fmean(numbers):.6g}") if len(numbers) == len(values) else None


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if value is not None}
