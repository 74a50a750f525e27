"""The folder of a training run: settings, metrics, checkpoint, result and learning curve.

config.json     the resolved settings
options.json    what does not change the outcome, and a resumed run keeps; from which run this one was forked
metrics.jsonl   one line an evaluation
checkpoint/     the whole state, restored bit for bit; the last two
saved           says that there was a checkpoint once
lock            held by the process that writes to the folder
result.json     the last evaluation
curve.png       returns over steps, mean and confidence band over seeds
priorities.png  how likely the stored starts are drawn, and
ages.png        how old what is drawn is; both by scripts/plot.py

Whatever a run needs to go on is on the disk before something relies on it: a power cut loses what was done since the
last checkpoint, and no more. Only one process may write to the folder; any number may read.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from algorithms import run_lock
from algorithms.settings import Settings
from jaxrl_buffers import checkpoint, durable
from jaxrl_buffers.types import PyTree


class RunFolder:
    """Reads and writes the files of one run.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    def create(
        self,
        settings: Settings,
        options: Mapping[str, Any] | None = None,
        begun: tuple[PyTree, Mapping[str, Any]] | None = None,
    ) -> None:
        """Make the folder, which must not exist: all at once or not at all.

        Args:
            settings: of the run.
            options: what does not change the outcome.
            begun: the state and the progress from which the run goes on, if it is not to begin from scratch.
        """
        if self.path.exists():
            raise ValueError(
                f"{self.path} exists already; choose another folder, or continue that run with --resume {self.path}."
            )
        aside = RunFolder(self.path.with_name(f".{self.path.name}.new"))
        try:
            durable.make_folder(aside.path.absolute())
            with run_lock.lock(aside.path):
                durable.remove_folder(aside._checkpoint)  # which a killed process may have left
                aside.change_settings(settings)
                durable.write_text(aside._options, json.dumps(dict(options or {}), indent=2) + "\n")
                if begun is not None:
                    aside.save(begun[0], settings, begun[1])
                durable.rename(aside.path, self.path)
        except OSError as error:
            durable.remove_folder(aside.path)
            raise ValueError(f"{self.path} cannot be written ({error.strerror}); choose another folder.") from None

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from writing to the folder; raise `ValueError` if one does."""
        self._require_settings()
        return run_lock.lock(self.path)

    def change_settings(self, settings: Settings) -> None:
        """Write the settings of the run."""
        durable.write_text(self._config, json.dumps(settings.to_dict(), indent=2) + "\n")

    def settings(self) -> Settings:
        """Return the settings of the run."""
        self._require_settings()
        try:
            return Settings.from_dict(json.loads(self._config.read_text()))
        except (TypeError, KeyError, json.JSONDecodeError) as error:
            raise ValueError(f"{self._config} does not hold the settings of a run: {error!r}.") from None

    def options(self) -> dict[str, Any]:
        """Return the options with which the run was started."""
        try:
            return dict(json.loads(self._options.read_text())) if self._options.exists() else {}
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self._options} does not hold the options of a run: {error!r}.") from None

    def save(self, state: PyTree, settings: Settings, progress: Mapping[str, Any]) -> None:
        """Write a checkpoint of the state, with what the host must know to go on."""
        if self._metrics.exists():  # what was written until now is not written again by a run that goes on from here
            durable.sync(self._metrics)
            durable.sync(self.path)
        checkpoint.save(self._checkpoint, state, metadata={**progress, "settings": settings.to_dict()})
        if not self._saved.exists():
            durable.write_text(self._saved, "")

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint; a run that was saved once must have one.

        Raises:
            ValueError: when it is gone.
        """
        if any(self._checkpoint.glob("step_*")):
            return True
        if self._saved.exists() or self._result.exists() or self.metrics():
            raise ValueError(
                f"the checkpoint of {self.path} is gone: the run was saved before, but there is none in "
                f"{self._checkpoint}; put it back, or start a new run in another folder."
            )
        return False

    def restore(self, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """Return the state and the progress of the checkpoint, which must be one of the settings in the folder."""
        if not self.has_checkpoint:
            raise ValueError(f"{self.path} holds no checkpoint; --resume {self.path} begins the run.")
        try:
            state, progress = checkpoint.restore_with_metadata(self._checkpoint, like, self._check_same)
        except FileNotFoundError as error:
            raise ValueError(f"{error}") from None
        return state, {name: value for name, value in progress.items() if name != "settings"}

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Add a line of metrics; numbers that are not finite become null."""
        durable.append_text(self._metrics, json.dumps(_plain(metrics)) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics, but for those at the end that a killed run or a power cut left unreadable."""
        return [line for _, line in self._metric_lines()]

    def keep_metrics(self, steps: int) -> None:
        """Drop lines which a run that was killed wrote after its last checkpoint, made after so many steps."""
        if not self._metrics.exists():
            return
        lines = self._metric_lines()
        for _, line in lines:
            if not isinstance(line.get("steps"), int):
                raise ValueError(f"{self._metrics} does not hold the metrics of a run: {line} has no number of steps.")
        kept = b"".join(text for text, line in lines if line["steps"] <= steps)
        if kept != self._metrics.read_bytes():
            durable.write_text(self._metrics, kept.decode())

    def _metric_lines(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Return the lines of metrics, each as it is written and as it is read."""
        texts = self._metrics.read_bytes().splitlines(keepends=True) if self._metrics.exists() else []
        lines = []
        for number, text in enumerate(texts):
            try:
                line = json.loads(text)
                if not isinstance(line, dict) or not text.endswith(b"\n"):
                    raise ValueError("this is no line of metrics")
                lines.append((number, text, line))
            except ValueError:
                continue
        if any(number != place for place, (number, _, _) in enumerate(lines)):  # one before the end
            raise ValueError(f"{self._metrics} does not hold the metrics of a run: not all lines can be read.")
        return [(text, line) for _, text, line in lines]

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result."""
        durable.write_text(self._result, json.dumps(_plain(result), indent=2) + "\n")

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

    def changed_settings(self, settings: Settings | Mapping[str, Any]) -> list[str]:
        """Return the names of settings that are other ones in this run."""
        given = settings.to_dict() if isinstance(settings, Settings) else settings
        here, there = (_flat(json.loads(json.dumps(one))) for one in (self.settings().to_dict(), given))
        return [name for name in there | here if there.get(name) != here.get(name)]

    def _check_same(self, metadata: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of other settings, but for the length of the run: that may be changed."""
        saved = metadata.get("settings", {})
        names = [name for name in self.changed_settings(saved) if saved and name != "plan.total_steps"]
        if names:
            raise ValueError(
                f"the checkpoint in {self.path} was saved with other settings: {', '.join(names)}; "
                f"set {self._config.name} back, or start a new run."
            )

    def _require_settings(self) -> None:
        if not self._config.is_file():
            raise ValueError(f"{self.path} is no run folder: there is no {self._config.name} in it.")

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
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def _saved(self) -> Path:
        return self.path / "saved"

    @property
    def _result(self) -> Path:
        return self.path / "result.json"


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
