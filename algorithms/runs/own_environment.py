"""The location of the module of a user's own environment, saved with a run so that it is found from anywhere."""

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
    """Return an option of a run that says where its environment was found; empty for environments of libraries.

    The folder is given both relative to the run and absolute, because users may move a project with its runs, or only
    a run.
    """
    home = custom.home(environment) if custom.is_own(environment) else None
    if home is None:
        return {}
    folders = [str(home)]
    with contextlib.suppress(ValueError):  # on Windows, from one drive to another
        folders.insert(0, os.path.relpath(home, run.absolute()))
    return {OPTION: folders}


def find(environment: str, run: Path, options: Mapping[str, Any]) -> None:
    """Make the module of a run's environment importable from its saved location.

    Raises:
        NotFound: if the module is neither there nor anywhere else.
    """
    folders = options.get(OPTION)
    if isinstance(folders, list) and folders and custom.is_own(environment):
        custom.find_at(environment, [Path(os.path.normpath(run.absolute() / str(folder))) for folder in folders])
