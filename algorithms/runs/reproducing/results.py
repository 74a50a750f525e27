"""The results of rows, as small JSON files in a folder: one for each row."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from algorithms.runs import old_settings
from algorithms.runs.comparing.estimates import Estimate, interquartile_mean
from algorithms.runs.files import parse_json, read_text
from algorithms.runs.reproducing.rows import Row, file_name
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import differing
from algorithms.runs.side_by_side import num_cores
from jaxrl_buffers import _durable as durable

PACKAGES = ("jaxrl-buffers", "jax", "jaxlib", "numpy")  # whose versions every result holds
OF_LIBRARY = {"gymnasium": ("gymnasium", "mujoco"), "brax": ("brax", "mujoco")}  # others are made by gymnax


class Times(NamedTuple):
    """What a run took, compilation and evaluations included. Numbers are None if a part of the run was not measured.

    Args:
        wall_seconds: how long it took.
        cpu_seconds: how long cores worked for it, all of them added up.
        load: the mean number of programs that wanted a core, this one included, when it ended.
        is_quiet: whether the machine did nothing else. Otherwise `wall_seconds` says little.
    """

    wall_seconds: float | None = 0.0
    cpu_seconds: float | None = 0.0
    load: float | None = None
    is_quiet: bool = False

    def plus(self, other: Times) -> Times:
        """Return the times of a run that was continued."""
        if None in (self.wall_seconds, self.cpu_seconds, other.wall_seconds, other.cpu_seconds):
            return UNKNOWN
        wall, cpu = (one or 0 for one in self[:2])
        return other._replace(wall_seconds=wall + (other.wall_seconds or 0), cpu_seconds=cpu + (other.cpu_seconds or 0))

    def rounded(self) -> Times:
        """Return the same times to a tenth of a second."""
        wall, cpu, load = (None if value is None else round(value, 1) for value in self[:3])
        return Times(wall, cpu, load, self.is_quiet)


UNKNOWN = Times(None, None)


class Result(NamedTuple):
    """What a row has reached.

    Args:
        command: of the row.
        date: when the run ended.
        versions: of the packages that matter.
        machine: the processor, and how many cores the run could use.
        steps: environment steps of every seed.
        episodes: of the last, deterministic evaluation of every seed.
        scores: of every seed: the mean return of these episodes, or the share of goals reached, in percent.
        mean: of the scores.
        interquartile_mean: of the scores, with the ends of its 95 % confidence interval; they are None for one seed.
        worst: the lowest score of a seed.
        best: the highest score of a seed.
        times: what the run took.
        curve: `steps` of the evaluations `[X]`, and the mean `returns` of every seed in them `[X][S]`.
        settings: all settings of the run.
    """

    command: str
    date: str
    versions: Mapping[str, str]
    machine: str
    steps: int
    episodes: int
    scores: list[float]
    mean: float
    interquartile_mean: list[float | None]
    worst: float
    best: float
    times: Times
    curve: Mapping[str, Any]
    settings: Mapping[str, Any]

    @property
    def estimate(self) -> Estimate:
        """The interquartile mean, with its confidence interval."""
        value, low, high = self.interquartile_mean
        return Estimate(float(value or 0.0), low, high)

    def changed_settings(self, row: Row) -> list[str]:
        """Return the names of settings that have other values now. Settings that did not exist then do not count."""
        settings = old_settings.current(self.settings)
        return differing(settings, _within(row.settings(), settings))

    @classmethod
    def of_run(cls, row: Row, folder: RunFolder, times: Times) -> Result:
        """Return the result of a run that has ended."""
        found, metrics = folder.result(), folder.metrics()
        if found is None:
            raise ValueError(f"{folder.path} has no result; resume it.")
        scores = row.scores(found["return_of_seeds"], found.get("success_of_seeds"))
        returns = [np.mean(np.array(line["returns"], np.float64), axis=1).tolist() for line in metrics]
        return cls(
            command=row.command,
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            versions=versions(row.environment),
            machine=f"{_processor()}, {num_cores()} cores",
            steps=found["steps"],
            episodes=found["episodes"],
            **summary(scores),
            times=times.rounded(),
            curve={"steps": [line["steps"] for line in metrics], "returns": _rounded(returns, 5)},
            settings=row.settings(),
        )


def summary(scores: list[float]) -> dict[str, Any]:
    """Return what a result says about the scores of its seeds."""
    scores = _rounded(scores)
    middle = interquartile_mean(np.array(scores))
    return {
        "scores": scores,
        "mean": _rounded(float(np.mean(scores))),
        "interquartile_mean": _rounded([*middle]),
        "worst": min(scores),
        "best": max(scores),
    }


class Results:
    """The results in a folder.

    Args:
        folder: made when the first result is written.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder: Path = Path(folder)

    def path(self, row: Row) -> Path:
        """Return the file of a row's result."""
        return self.folder / f"{row.file_name}.json"

    def read(self, row: Row) -> Result | None:
        """Return the result of a row; None if it has none, or one of settings that have changed since.

        Raises:
            ValueError: when the file does not hold a result of this row.
        """
        path = self.path(row)
        if not path.exists():
            return None
        try:
            found = Result(**parse_json(read_text(path)))
            found = found._replace(times=Times(**cast(Any, found.times)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} does not hold a result: {error}") from None
        if found.command != row.command:
            raise ValueError(f"{path} holds the result of {found.command!r}, expected that of {row.command!r}.")
        return None if found.changed_settings(row) else found

    def read_sbx(self, row: Row) -> dict[str, Any] | None:
        """Return what SBX has reached beside a row, as scripts/train_sbx.py wrote it; None if it was not run."""
        path = self.folder / "sbx" / f"{file_name(row.sbx)}.json"
        if not row.sbx or not path.exists():
            return None
        found = parse_json(read_text(path))
        return {**found, **summary(found["scores"])}

    def write(self, row: Row, result: Result) -> None:
        """Write the result of a row."""
        self.folder.mkdir(parents=True, exist_ok=True)
        durable.write_text(self.path(row), _spelled({**result._asdict(), "times": result.times._asdict()}))

    def share(self, rows: Sequence[Row]) -> None:
        """Give rows without a result the result of a row with the same settings: they would end with the same bits."""
        found = [(row, result) for row in rows if (result := self.read(row)) is not None]
        for row in rows:
            if self.read(row) is None:
                same = (
                    result
                    for other, result in found
                    if other.settings() == row.settings() and other.of_success == row.of_success
                )
                if (result := next(same, None)) is not None:
                    self.write(row, result._replace(command=row.command))


def versions(environment: str) -> dict[str, str]:
    """Return the versions of the packages that a run in this environment uses."""
    library = environment.partition(":")[0] if ":" in environment else ""
    names = (*PACKAGES, *OF_LIBRARY.get(library, ("gymnax",)))
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}


def _spelled(values: Mapping[str, Any]) -> str:
    """Return JSON with one line for each value of the result, so that changes are easy to see."""
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _rounded(value: Any, digits: int = 6) -> Any:
    """Return numbers with so many digits; those that are not finite become None."""
    if isinstance(value, list):
        return [_rounded(entry, digits) for entry in value]
    return None if value is None or not np.isfinite(value) else float(f"{value:.{digits}g}")


def _within(values: object, like: object) -> Any:
    """Return values without the names that `like` does not have."""
    if not isinstance(values, Mapping) or not isinstance(like, Mapping):
        return values
    return {name: _within(value, like[name]) for name, value in values.items() if name in like}


def _processor() -> str:
    """Return the name of the processor, as far as the system tells it."""
    information = Path("/proc/cpuinfo")
    text = information.read_text() if information.exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
