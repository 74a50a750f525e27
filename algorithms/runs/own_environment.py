"""Where the module of an environment of one's own is, kept with a run so that it is found from anywhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from algorithms.environments import custom
from algorithms.environments.custom import NotFound

__all__ = ["NotFound", "find", "keep"]

OPTION = "environment_folders"


def keep(environment: str, run: Path) -> dict[str, list[str]]:
    """Return an option of a run that says where its environment was found; nothing for those of libraries.

    The folder is named relative to the run and absolute: a project may be moved with its runs, or a run alone.
    """
    home = custom.home(environment) if custom.is_own(environment) else None
    if home is None:
        return {}
    folders = [str(home)]
    with contextlib.suppress(ValueError):  # on Windows, from one drive to another
        folders.insert(0, os.path.relpath(home, run.absolute()))
    return {OPTION: folders}


def find(environment: str, run: Path, options: Mapping[str, Any]) -> None:
    """Let the environment of a run be imported from where it was.

    Raises:
        NotFound: if it is there no more, nor anywhere else.
    """
    folders = options.get(OPTION)
    if isinstance(folders, list) and folders and custom.is_own(environment):
        custom.find_at(environment, [Path(os.path.normpath(run.absolute() / str(folder))) for folder in folders])
