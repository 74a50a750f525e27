"""Environments into which the wheel is installed, while its dependencies are those of the environment that tests."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
from collections.abc import Collection
from pathlib import Path

from packaging.requirements import Requirement


class Installed:
    """A new environment with the wheel.

    Args:
        folder: where it is made.
        wheel: the file to install.
        packages: the folder of its dependencies.
    """

    def __init__(self, folder: Path, wheel: Path, packages: Path):
        self.folder = folder
        self._work = folder / "work"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self._work.mkdir()
        site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
        self._others = site / "others.pth"
        self.use(packages)
        pip = [sys.executable, "-m", "pip", "--python", self._python, "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*pip, "--disable-pip-version-check", wheel], check=True)

    def use(self, packages: Path) -> None:
        """Take the dependencies from another folder from now on."""
        self._others.write_text(f"{packages}\n")

    @property
    def _python(self) -> str:
        return str(self.folder / ("Scripts" if os.name == "nt" else "bin") / "python")

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run Python in a folder outside of the checkout; return its exit code and what it printed."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [self._python, *arguments]
        done = subprocess.run(command, cwd=self._work, env=environment, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout, done.stderr


def link_needed(folder: Path, requirements: Collection[str], without: Collection[str] = ()) -> Path:
    """Fill a folder with links to packages and all that they need, but for some of them; return it."""
    names = {
        file.parts[0]
        for name in _needed(requirements) - {*without}
        for file in importlib.metadata.files(name) or ()
        if file.parts[0] not in ("..", "__pycache__")
    }
    return _link(folder, [_site() / name for name in sorted(names)])


def _site() -> Path:
    """Return the folder of packages, also where this environment sees those of another one."""
    return Path(str(importlib.metadata.distribution("jax").locate_file("")))


def _link(folder: Path, paths: Collection[Path]) -> Path:
    folder.mkdir()
    for path in paths:
        (folder / path.name).symlink_to(path)
    return folder


def _needed(requirements: Collection[str]) -> set[str]:
    """Return the names of the distributions that requirements ask for, and of all that these ask for."""
    found: set[tuple[str, str]] = set()  # names of distributions, with each of their extras that is asked for
    waiting = [Requirement(one) for one in requirements]
    while waiting:
        one = waiting.pop()
        for extra in {"", *one.extras} - {extra for name, extra in found if name == one.name}:
            found.add((one.name, extra))
            asked = map(Requirement, importlib.metadata.requires(one.name) or ())
            waiting += [each for each in asked if not each.marker or each.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}
