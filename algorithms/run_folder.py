"""The folder of a training run: settings, metrics, checkpoint, result and learning curve.

config.json     the resolved settings
options.json    what does not change the outcome, and a resumed run keeps
metrics.jsonl   one line an evaluation
checkpoint/     the whole state, restored bit for bit; the agent in it is finite
checkpoint_nonfinite/  the same, once the agent is not finite any more: a run goes on from there, and from checkpoint/
                if this one is removed
result.json     the last evaluation
curve.png       returns over steps, mean and confidence band over seeds
priorities.png  how likely the stored starts are drawn, and
ages.png        how old what is drawn is; both by scripts/plot.py
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from algorithms.files import parse_json, read_text
from algorithms.settings import Settings, require_keys
from jaxrl_buffers import checkpoint
from jaxrl_buffers.checks import shown
from jaxrl_buffers.types import PyTree

MAX_METRICS = 2**30  # bytes


class RunFolder:
    """Reads and writes the files of one run.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    def create(self, settings: Settings, options: Mapping[str, Any] | None = None) -> None:
        """Make the folder, which must not exist, with the settings and options in it: all at once or not at all."""
        self.require_new()
        aside = self.path.with_name(f".{self.path.name}.new")
        try:
            aside.mkdir(parents=True, exist_ok=True)
            (aside / self._config.name).write_text(json.dumps(settings.to_dict(), indent=2) + "\n")
            (aside / self._options.name).write_text(json.dumps(dict(options or {}), indent=2) + "\n")
            aside.rename(self.path)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise ValueError(f"{self.path} cannot be written ({error.strerror}); choose another folder.") from None

    def require_new(self) -> None:
        """Refuse a folder that exists, or that can surely not be made."""
        if self.path.exists():
            raise ValueError(
                f"{self.path} exists already; choose another folder, or continue that run with --resume {self.path}."
            )
        above = next(parent for parent in self.path.absolute().parents if parent.exists())
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            raise ValueError(f"{self.path} cannot be written below {above}; choose another folder.")

    def settings(self) -> Settings:
        """Return the settings of the run."""
        if not self._config.is_file():
            raise ValueError(f"{self.path} is no run folder: there is no {self._config.name} in it.")
        text = read_text(self._config)
        try:
            return Settings.from_dict(parse_json(text))
        except ValueError as error:
            raise ValueError(f"{self._config} does not hold the settings of a run: {error}") from None

    def options(self) -> dict[str, Any]:
        """Return the options with which the run was started."""
        text = read_text(self._options) if self._options.exists() else "{}"
        try:
            return dict(require_keys("options", parse_json(text)))
        except ValueError as error:
            raise ValueError(f"{self._options} does not hold the options of a run: {error}") from None

    def save(self, state: PyTree, settings: Settings, progress: Mapping[str, Any], is_finite: bool = True) -> None:
        """Write a checkpoint of the state, with what the host must know to go on.

        A state whose agent is not finite goes elsewhere, so that the last one that was finite stays.
        """
        where = self._checkpoint if is_finite else self._nonfinite_checkpoint
        checkpoint.save(where, state, metadata={**progress, "settings": settings.to_dict()})

    @property
    def has_checkpoint(self) -> bool:
        """Whether the run was saved at least once."""
        return any(_is_saved(path) for path in (self._checkpoint, self._nonfinite_checkpoint))

    def restore(self, like: PyTree, furthest: bool = False) -> tuple[PyTree, dict[str, Any]]:
        """Return the state and the progress of the checkpoint, which must be one of the settings in the folder.

        Args:
            like: shapes and dtypes of the state.
            furthest: take the last state even if its agent is not finite, else only if there is no other.
        """
        if not self.has_checkpoint:
            raise ValueError(f"{self.path} holds no checkpoint; --resume {self.path} begins the run.")
        try:
            path = self._chosen_checkpoint(furthest)
            progress = checkpoint.read_metadata(path)["metadata"]
            self._check_same(progress.pop("settings", {}))
            return checkpoint.restore(path, like), progress
        except FileNotFoundError as error:
            raise ValueError(f"{error}") from None

    def finite_iteration(self) -> int | None:
        """Return the iteration of the last checkpoint whose agent is finite, if there is one."""
        return _iteration(self._checkpoint) if _is_saved(self._checkpoint) else None

    def _chosen_checkpoint(self, furthest: bool) -> Path:
        saved = [path for path in (self._checkpoint, self._nonfinite_checkpoint) if _is_saved(path)]
        return max(saved, key=_iteration) if furthest else saved[0]

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Add a line of metrics; numbers that are not finite become null."""
        with self._metrics.open("a") as file:
            file.write(json.dumps(_plain(metrics)) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics, but for a last one that a killed run left without its end."""
        text = read_text(self._metrics, MAX_METRICS) if self._metrics.exists() else ""
        try:
            return _checked([parse_json(line) for line in text.splitlines(keepends=True) if line.endswith("\n")])
        except ValueError as error:
            raise ValueError(f"{self._metrics} does not hold the metrics of a run: {error}") from None

    def keep_metrics(self, num_lines: int) -> None:
        """Drop lines which a run that was killed wrote after its last checkpoint."""
        lines = self._metrics.read_text().splitlines(keepends=True) if self._metrics.exists() else []
        if len(lines) > num_lines:
            _write(self._metrics, "".join(lines[:num_lines]))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result."""
        _write(self.path / "result.json", json.dumps(_plain(result), indent=2) + "\n")

    @property
    def curve(self) -> Path:
        """Where the learning curve is drawn."""
        return self.path / "curve.png"

    @property
    def priorities(self) -> Path:
        """Where the histogram of priorities is drawn."""
        return self.path / "priorities.png"

    @property
    def ages(self) -> Path:
        """Where the distribution of the samples' ages is drawn."""
        return self.path / "ages.png"

    def _check_same(self, saved: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of other settings, but for the length of the run: that may be changed."""
        saved, present = _flat(saved), _flat(json.loads(json.dumps(self.settings().to_dict())))
        names = [name for name in saved | present if saved.get(name) != present.get(name)]
        names = [name for name in names if saved and name != "plan.total_steps"]
        if names:
            raise ValueError(
                f"the checkpoint in {self.path} was saved with other settings: {', '.join(names)}; "
                f"set {self._config.name} back, or start a new run."
            )

    @property
    def _config(self) -> Path:
        return self.path / "config.json"

    @property
    def _options(self) -> Path:
        return self.path / "options.json"

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def _nonfinite_checkpoint(self) -> Path:
        return self.path / "checkpoint_nonfinite"

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"


def _checked(lines: list[Any]) -> list[dict[str, Any]]:
    """Refuse lines without steps, or without returns `[S, E]`."""
    for line in lines:
        steps, returns = require_keys("line", line).get("steps"), line.get("returns")
        is_of_seeds = isinstance(returns, list) and bool(returns) and all(map(_are_numbers, returns))
        if not _are_numbers([steps]) or steps is None or not is_of_seeds or len(returns) != len(lines[0]["returns"]):
            raise ValueError(f"got the line {shown(line)}, expected steps, and returns of the episodes of every seed.")
    return lines


def _are_numbers(values: Any) -> bool:
    """Whether these are numbers, or null in the place of what is not finite, and at least one."""
    kinds = {type(value) for value in values} if isinstance(values, list) else {str}
    return bool(kinds) and kinds <= {int, float, type(None)}


def _is_saved(path: Path) -> bool:
    return any(path.glob("step_*"))


def _iteration(path: Path) -> int:
    return checkpoint.read_metadata(path)["metadata"]["iteration"]


def _write(path: Path, text: str) -> None:
    """Write a file all at once, so that a kill leaves the old one or the new one."""
    aside = path.with_name(f"{path.name}.new")
    aside.write_text(text)
    aside.replace(path)


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted names."""
    flat = {}
    for name, value in settings.items():
        nested = isinstance(value, Mapping)
        flat |= {f"{name}.{key}": one for key, one in _flat(value).items()} if nested else {name: value}
    return flat


def _plain(value: Any) -> Any:
    """Return what JSON can express."""
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, (np.ndarray, jax.Array)):
        value = np.asarray(value).tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
