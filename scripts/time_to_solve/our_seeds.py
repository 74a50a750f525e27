"""Trains ten seeds of this library, and prints the returns of every evaluation; for benchmark_time_to_solve.py."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.runs import command_line, run


def main(arguments: list[str]) -> None:
    """Train with the options of scripts/train.py."""
    command = command_line.parse(arguments)
    print(json.dumps({"ready": True}), flush=True)

    def tell(metrics: Mapping[str, Any]) -> None:
        returns = np.mean(metrics["returns"], axis=1).tolist()
        print(json.dumps({"steps": metrics["steps"], "returns": returns}), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        run.start(command.settings, Path(folder) / "run", run.Options(on_evaluation=tell, final_episodes=1))


if __name__ == "__main__":
    main(sys.argv[1:])
