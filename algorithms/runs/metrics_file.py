"""The metrics of a run, a file with one line of JSON for each evaluation, and the result at its end."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from algorithms.runs.files import parse_json, read_bytes, read_text
from algorithms.runs.settings import require_keys
from jaxrl_buffers import _durable as durable
from jaxrl_buffers._checks import shown

MAX_BYTES = 2**30


class MetricsFile:
    """Reads and writes the metrics of one run. If the file does not exist, there are no metrics yet.

    Args:
        path: the file.
    """

    def __init__(self, path: Path):
        self._path = path

    def append(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Add a line, and return it as it will be read; numbers that are not finite become null."""
        line = plain(metrics)
        durable.append_text(self._path, json.dumps(line) + "\n")
        return line

    def lines(self) -> list[dict[str, Any]]:
        """Return all lines, except those at the end that a killed run or a power cut left unreadable."""
        return [line for _, line in self._read()]

    def keep(self, steps: int, updates: float) -> None:
        """Drop lines of evaluations after so many steps and updates."""
        if not self._path.exists():
            return
        lines = self._read()
        kept = b"".join(text for text, line in lines if line["steps"] <= steps and line.get("updates", 0) <= updates)
        if kept != self._path.read_bytes():
            durable.write_text(self._path, kept.decode())

    def sync(self) -> None:
        """Make sure that all lines are on the disk, so that they survive a power cut."""
        if self._path.exists():
            durable.sync(self._path)
            durable.sync(self._path.parent)

    def _read(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Return the lines, each as the bytes in the file and as the parsed value."""
        texts = read_bytes(self._path, MAX_BYTES).splitlines(keepends=True) if self._path.exists() else []
        lines: list[tuple[bytes, dict[str, Any]]] = []
        try:
            for text, line in _readable(texts):
                lines.append((text, _checked(line, lines[0][1] if lines else None)))
        except ValueError as error:
            raise ValueError(f"{self._path} does not hold the metrics of a run: {error}") from None
        return lines


def plain(value: object) -> Any:
    """Return what JSON can express."""
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, (np.ndarray, jax.Array)):
        value = np.asarray(value).tolist()
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _readable(texts: list[bytes]) -> Iterator[tuple[bytes, Any]]:
    """Yield lines as bytes and as JSON, except what a killed run or a power cut left unreadable at the end."""
    while texts and _is_cut(texts[-1]):
        texts = texts[:-1]
    for text in texts:
        yield text, parse_json(text.decode())


def _is_cut(text: bytes) -> bool:
    """Return whether this may be a damaged line: only its beginning, or with zeros instead of some bytes."""
    is_begin = text.startswith(b"{") and not text.endswith(b"\n")
    return is_begin or (b"\0" in text and text.strip(b"\0").isascii())


def _checked(line: object, first: Mapping[str, Any] | None) -> dict[str, Any]:
    """Refuse a line without steps, or without returns `[S, E]` of as many seeds as the first one has."""
    values = dict(require_keys("line", line))
    steps, returns = values.get("steps"), values.get("returns")
    num_seeds = len(returns) if isinstance(returns, list) and all(map(are_numbers, returns)) else 0
    is_of_seeds = num_seeds > 0 and (first is None or num_seeds == len(first["returns"]))
    if type(steps) is not int or not is_of_seeds:
        raise ValueError(f"got the line {shown(line)}, expected steps, and returns of the episodes of every seed.")
    return values


def read_result(path: Path) -> dict[str, Any]:
    """Return the result of a run from its file; refuse a file that holds something else."""
    try:
        result = dict(require_keys("result", parse_json(read_text(path))))
        if type(result.get("steps")) is not int or type(result.get("episodes")) is not int:
            raise ValueError("it has no steps or no episodes")
        if not are_numbers(result.get("return_of_seeds")):
            raise ValueError("it has no returns of seeds")
    except ValueError as error:
        raise ValueError(f"{path} does not hold the result of a run: {error}.") from None
    return result


def are_numbers(values: object) -> bool:
    """Return whether this is a non-empty list of numbers, with null for numbers that are not finite."""
    kinds = {type(value) for value in values} if isinstance(values, list) else {str}
    return bool(kinds) and kinds <= {int, float, type(None)}
