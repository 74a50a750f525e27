"""Tuned settings, as data: the files `ALGORITHM/ENVIRONMENT.yaml` beside this one, written like any settings file.

A pair without a file of its own gets `ALGORITHM/untuned.yaml`, or `untuned.yaml` where the algorithm has none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from algorithms.runs.settings import Settings
from algorithms.training.plan import suggested
from jaxrl_buffers import _yaml as yaml_text

FOLDER = Path(__file__).parent
PRESETS = sorted((path.parent.name, path.stem) for path in FOLDER.glob("*/*.yaml") if path.stem != "untuned")


def preset(algorithm: str, environment: str) -> Settings:
    """Return the tuned settings of an algorithm for an environment, or sensible ones if there are none.

    Example:
        >>> preset("ddqn", "CartPole-v1").plan.total_steps
        50000
    """
    return Settings.from_dict(read(algorithm, environment))


def read(algorithm: str, environment: str) -> dict[str, Any]:
    """Return a preset as a dict. The numbers of its plan are suggestions: they change where others need it."""
    names = [f"{algorithm}/{environment}", f"{algorithm}/untuned"]
    known = {path.relative_to(FOLDER).with_suffix("").as_posix(): path for path in FOLDER.rglob("*.yaml")}
    path = next((known[name] for name in names if name in known), known["untuned"])
    values = yaml_text.parse(path.read_text("utf-8"))
    return {"algorithm": algorithm, "environment": environment, **values, "plan": suggested(values["plan"])}
