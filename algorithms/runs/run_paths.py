"""Where the files of a run are."""

from __future__ import annotations

import os
from pathlib import Path

from algorithms.runs.metrics_file import MetricsFile


class RunPaths:
    """The paths of the files in the folder of a run; see `run_folder`.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path: Path = Path(path)

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
    def _options(self) -> Path:
        return self.path / "options.json"

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def _nonfinite_checkpoint(self) -> Path:
        return self.path / "checkpoint_nonfinite"

    @property
    def _metrics(self) -> MetricsFile:
        return MetricsFile(self.path / "metrics.jsonl")

    @property
    def _saved(self) -> Path:
        return self.path / "saved"

    @property
    def _result(self) -> Path:
        return self.path / "result.json"
