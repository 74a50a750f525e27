"""Scripts as modules, so that tests can call them without a new process, and in processes of their own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"


def load_script(name: str) -> Any:
    """Return a new module of a script, such as `train`."""
    spec = importlib.util.spec_from_file_location(f"{name}_script", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their module there
    sys.path.insert(0, str(SCRIPTS))  # scripts import each other
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPTS))
    return module


def start_script(name: str, *arguments: Any, cwd: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a script in a new process, with these variables of the environment besides the present ones."""
    return subprocess.Popen(
        [sys.executable, str(SCRIPTS / f"{name}.py"), *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a process; return its exit code and what it printed to either stream."""
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err
