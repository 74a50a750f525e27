"""Reads files that people may have written or changed; errors name the file."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl_buffers._checks import shown

MAX_BYTES = 2**20  # of a file that people write
MAX_DEPTH = 64  # of values inside values


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file that people write; see `read_bytes`."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read: {error}.") from None


def read_bytes(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file, or of a pipe that the shell has opened, as in `<(command)`.

    Raises:
        ValueError: one line that names the file.
    """
    try:
        mode = os.stat(path).st_mode
        is_open_pipe = stat.S_ISFIFO(mode) and str(path).startswith(("/dev/", "/proc/"))
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode) and not is_open_pipe:  # reading might never end
            raise ValueError(f"{path} cannot be read: it is not a file; write its contents to a file first.")
        with Path(path).open("rb") as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise ValueError(f"{path} cannot be read: it has more than {max_bytes} bytes.")
        return content
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from None


def parse_json(text: str) -> Any:
    """Return the value of a JSON text; refuse repeated keys, and values that are nested too deeply.

    Example:
        >>> parse_json('{"steps": 3}')
        {'steps': 3}
    """
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)
        _require_shallow(value)
    except RecursionError:
        raise ValueError(f"values are nested more than {MAX_DEPTH} levels deep") from None
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"the key {shown(name)} is given twice")
        values[name] = value
    return values


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _require_shallow(value: object, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise RecursionError
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for part in inside:
        _require_shallow(part, depth + 1)


def explain_missing(file: Path) -> str:
    """Say that a file of a run is missing, and name runs in the folders below, such as those of a sweep."""
    runs = ", ".join(sorted(str(one.parent) for one in file.parent.glob(f"*/{file.name}"))[:3])
    return f"there is no {file.name} in it" + (f"; it holds runs, such as {runs}." if runs else ".")
