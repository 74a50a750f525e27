"""The data set of a run: where it is, and a check that it has not changed.

Settings hold it as `{"path": ..., "rows": ..., "hash": ...}`. The user gives only the path. The number of rows says how
long the buffer is, and the hash shows whether the data have changed. So the settings of a run are complete without the
data. Checkpoints hold the rows themselves: a run with a checkpoint can be resumed when the data set is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from algorithms.environments import Described
from algorithms.environments.gymnasium import HostEnvironment
from algorithms.environments.spaces import Discrete
from algorithms.training import structure
from algorithms.training.learning import Buffer
from algorithms.types import Agent
from jaxrl_buffers import Mixture, MixtureState, datasets
from jaxrl_buffers import _data_files as data_files
from jaxrl_buffers._checks import shown

KEYS: dict[str, type] = {"path": str, "rows": int, "hash": str}


def checked(value: object) -> dict[str, Any]:
    """Return the data set of settings as a dict; the settings may give only its path."""
    given = {"path": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or "path" not in given:
        raise ValueError(f"dataset: got {shown(value)}, expected the path of a data set.")
    for name, entry in given.items():
        if name not in KEYS or not isinstance(entry, KEYS[name]):
            raise ValueError(f"dataset.{shown(name, str)}: got {shown(entry)}, expected path, rows and hash.")
    return dict(given)


def described(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data set with its number of rows and its hash; rows are counted if their number is not yet known."""
    if "rows" in value:
        return dict(value)
    path = Path(value["path"])
    with _named():
        known = {"path": str(path.absolute()) if path.exists() else value["path"]}
        known["rows"] = datasets.describe(known["path"]).num_rows
        return known | ({"hash": data_files.fingerprint(path)} if path.exists() else {})


def check(value: Mapping[str, Any], env: Described) -> None:
    """Refuse a data set whose rows are not like those of the environment, or have numbers that are not finite."""
    with _named(f" ({env.name})"):
        datasets.check(value["path"], like=env.transition(), **_terms(env))


def load(value: Mapping[str, Any], buffer: Buffer, env: Described, agent: Agent) -> MixtureState:
    """Return the state of the mixture before the first step: an empty buffer, and one with the data set.

    A data set has no states of a memory, so sequences from it begin with an empty memory. Numbers of `info` are NaN.
    """
    assert isinstance(buffer, Mixture)
    online, stored = buffer.buffers
    path, row = Path(value["path"]), structure.empty_row(agent, env)
    if "hash" in value and not path.exists():
        raise ValueError(f"dataset: {path} is gone; put it back, or start another run.")
    if "hash" in value and data_files.fingerprint(path) != value["hash"]:
        raise ValueError(f"dataset: {path} has changed since the run was begun; put it back, or start another run.")
    with _named(f" ({env.name})"):
        options: Any = {"like": row, "extras": row.extras, **_terms(env)}
        return MixtureState((online.init(row), datasets.from_file(stored, value["path"], **options)))


def _terms(env: Described) -> dict[str, Any]:
    """Return which actions a data set may have, and how its rows become those of the environment."""
    if isinstance(env, HostEnvironment):
        low, high = env.action_bounds
        return {"low": low, "high": high, "encode": env.encode_rows}
    if isinstance(env.action_space, Discrete):
        return {"num_actions": env.action_space.num_actions}
    return env.action_space._asdict()


@contextlib.contextmanager
def _named(end: str = "") -> Generator[None]:
    """Begin errors with the name of the setting, and end them with `end`."""
    try:
        yield
    except (ValueError, ImportError) as error:
        raise ValueError(f"dataset: {error}{end}") from None
