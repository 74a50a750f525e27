"""The folder of a training run: settings, metrics, checkpoint, result and learning curve.

config.json     the resolved settings
metrics.jsonl   one line an evaluation
checkpoint/     the whole state, restored bit for bit
result.json     the last evaluation
curve.png       returns over steps, mean and confidence band over seeds
priorities.png  how likely the stored starts are drawn, and
ages.png        how old what is drawn is; both by scripts/plot.py
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from algorithms.settings import Settings
from jaxrl_buffers import checkpoint
from jaxrl_buffers.types import PyTree


class RunFolder:
    """Reads and writes the files of one run.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    def create(self, settings: Settings) -> None:
        """Make the folder, which must not exist, and write the settings to it."""
        try:
            self.path.mkdir(parents=True)
            self._config.write_text(json.dumps(settings.to_dict(), indent=2) + "\n")
        except FileExistsError:
            raise ValueError(
                f"{self.path} exists already; choose another folder, or continue that run with --resume {self.path}."
            ) from None
        except OSError as error:
            raise ValueError(f"{self.path} cannot be written ({error.strerror}); choose another folder.") from None

    def settings(self) -> Settings:
        """Return the settings of the run."""
        if not self._config.is_file():
            raise ValueError(f"{self.path} is no run folder: there is no {self._config.name} in it.")
        try:
            return Settings.from_dict(json.loads(self._config.read_text()))
        except (TypeError, KeyError, json.JSONDecodeError) as error:
            raise ValueError(f"{self._config} does not hold the settings of a run: {error!r}.") from None

    def save(self, state: PyTree, progress: Mapping[str, Any]) -> None:
        """Write a checkpoint of the state, with what the host must know to go on."""
        checkpoint.save(self._checkpoint, state, metadata=progress)

    def restore(self, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """Return the state and the progress of the checkpoint."""
        try:
            progress = checkpoint.read_metadata(self._checkpoint)["metadata"]
            return checkpoint.restore(self._checkpoint, like), progress
        except FileNotFoundError:
            raise ValueError(f"{self.path} holds no checkpoint to go on from; start the run anew.") from None

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Add a line of metrics; numbers that are not finite become null."""
        with self._metrics.open("a") as file:
            file.write(json.dumps(_plain(metrics)) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics."""
        return [json.loads(line) for line in self._metrics.read_text().splitlines()] if self._metrics.exists() else []

    def keep_metrics(self, num_lines: int) -> None:
        """Drop lines which a run that was killed wrote after its last checkpoint."""
        lines = self._metrics.read_text().splitlines(keepends=True) if self._metrics.exists() else []
        self._metrics.write_text("".join(lines[:num_lines]))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result."""
        (self.path / "result.json").write_text(json.dumps(_plain(result), indent=2) + "\n")

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

    @property
    def _config(self) -> Path:
        return self.path / "config.json"

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"


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
