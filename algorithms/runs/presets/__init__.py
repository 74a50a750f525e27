"""Tuned settings, as data: the files `ALGORITHM/ENVIRONMENT.yaml` beside this one, written like any settings file.

A colon in a name becomes a folder: the file for `gymnasium:ALE/Pong-v5` would be
`ALGORITHM/gymnasium/ALE/Pong-v5.yaml`. A pair without its own file gets the first `untuned.yaml` in these folders:
`ALGORITHM/gymnasium/ALE`, `gymnasium/ALE`, `ALGORITHM/gymnasium`, `gymnasium`, `ALGORITHM`, and the one of this file.
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
    """Return a preset as a dict. The numbers of its plan are suggestions, adapted to the numbers of the user."""
    parts = environment.replace(":", "/").split("/")
    folders = ["/".join([*parts[:depth], "untuned"]) for depth in reversed(range(len(parts)))]
    untuned = [name for folder in folders for name in (f"{algorithm}/{folder}", folder)]
    names = ["/".join([algorithm, *parts]), *untuned]
    known = {path.relative_to(FOLDER).as_posix().removesuffix(".yaml"): path for path in FOLDER.rglob("*.yaml")}
    path = next(known[name] for name in names if name in known)
    values = yaml_text.parse(path.read_text("utf-8"))
    return {"algorithm": algorithm, "environment": environment, **values, "plan": suggested(values["plan"])}
