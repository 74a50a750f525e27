"""The rows of a table of results, read from a YAML file: what is run, and what it should reach.

- title: Classic control
  text: Every seed is judged.
  rows:
    - {command: ddqn CartPole-v1 --num-seeds 10, goal: 475, floor: 400}
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from algorithms.runs import command_line
from algorithms.runs.build import complete
from algorithms.runs.command import Command
from algorithms.runs.files import read_text
from algorithms.runs.settings import require_keys
from jaxrl_buffers import _yaml as yaml_text
from jaxrl_buffers import config
from jaxrl_buffers._checks import shown


class Row(NamedTuple):
    """A line of the table: what is run, and what it should reach.

    Args:
        command: what follows `python scripts/train.py`.
        goal: what the mean over seeds should reach; None if nobody knows a figure yet.
        floor: no seed should be below this.
        is_ceiling: whether the mean should stay below the goal, as in tasks that cannot be learned.
        of_success: whether the score is the share of goals that were reached, in percent, and not the return.
        known: the best figure that is known from elsewhere.
        sbx: what follows `python scripts/train_sbx.py` to run SBX beside it, with the same budget and network.
        label: the name in pictures; None for the command without its seeds.
        picture: the picture in which the curve is drawn; None for that of the environment.
        is_best_known: whether the row is among those that the README shows.
    """

    command: str
    goal: float | None = None
    floor: float | None = None
    is_ceiling: bool = False
    of_success: bool = False
    known: str = ""
    sbx: str = ""
    label: str | None = None
    picture: str | None = None
    is_best_known: bool = False

    @property
    def words(self) -> list[str]:
        """The arguments of `train.py`."""
        return shlex.split(self.command)

    @property
    def file_name(self) -> str:
        """The name of its files, without an ending."""
        return file_name(self.command)

    @property
    def environment(self) -> str:
        """The name of the environment."""
        return self.words[1]

    @property
    def aim(self) -> str:
        """The goal, in words."""
        if self.goal is None:
            return ""
        unit = " %" if self.of_success else ""
        floor = "" if self.floor is None else f", no seed below {self.floor:g}{unit}"
        return f"{'below ' if self.is_ceiling else ''}{self.goal:g}{unit}{floor}"

    @property
    def curve(self) -> tuple[str, str]:
        """The picture in which the curve is drawn, and its name there."""
        short = re.sub(r" --(num-seeds|seed) \d+", "", self.command)
        return self.picture or self.environment, self.label or short

    def parsed(self) -> Command:
        """Return what the command asks for.

        Raises:
            ValueError: when `train.py` would refuse it.
        """
        return command_line.parse(self.words)

    def settings(self) -> dict[str, Any]:
        """Return all settings of the run, as values of JSON."""
        return _settings(self.command)

    def scores(self, returns: Sequence[float], success: Sequence[float] | None) -> list[float]:
        """Return the score of every seed, given the returns and the shares of goals that were reached."""
        if not self.of_success:
            return [*map(float, returns)]
        if success is None:
            raise ValueError(f"{self.command}: the environment has no goals, so there is no share of successes.")
        return [100 * share for share in success]

    def is_met(self, scores: Sequence[float]) -> bool | None:
        """Return whether the scores of the seeds reach the goal; None if there is no goal."""
        if self.goal is None:
            return None
        mean = float(np.mean(scores))
        if self.is_ceiling:
            return mean < self.goal
        return mean >= self.goal and (self.floor is None or min(scores) >= self.floor)


class Group(NamedTuple):
    """Rows that belong together."""

    title: str
    text: str
    rows: tuple[Row, ...]


def file_name(command: str) -> str:
    """Return a name for the files of a command, without an ending.

    Example:
        >>> file_name("sac gymnasium:Hopper-v5 --num-seeds 3")
        'sac_gymnasium_Hopper-v5_num-seeds_3'
    """
    return re.sub(r"[^\w.-]+", "_", command.replace("--", ""))


def read_rows(path: str | os.PathLike[str]) -> tuple[Group, ...]:
    """Return the rows in a YAML file.

    Raises:
        ValueError: when the file does not hold rows, or holds a row twice.
    """
    found = yaml_text.parse(read_text(path))
    if not isinstance(found, list):
        raise ValueError(f"{path}: got {shown(found)}, expected a list of groups, each with a title, a text and rows.")
    groups = tuple(_group(f"{path}, group {number}", values) for number, values in enumerate(found, 1))
    names = [row.file_name for group in groups for row in group.rows]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{path}: there are two rows of the name {min(twice)}; leave one out.")
    return groups


def _group(where: str, values: object) -> Group:
    given = require_keys(where, values)
    if {*given} != {*Group._fields} or not isinstance(given["rows"], list):
        raise ValueError(f"{where}: got {', '.join(map(str, given))}, expected a title, a text and a list of rows.")
    rows = tuple(_row(f"{where}, row {number}", one) for number, one in enumerate(given["rows"], 1))
    return Group(str(given["title"]), " ".join(str(given["text"]).split()), rows)


def _row(where: str, values: object) -> Row:
    given: Mapping[str, Any] = require_keys(where, values)
    try:
        row = Row(**config.check(Row, given, Row._fields))
        row.parsed()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None
    return row


@functools.cache
def _settings(command: str) -> dict[str, Any]:
    settings = complete(command_line.parse(shlex.split(command)).settings)
    return json.loads(json.dumps(settings.to_dict()))
