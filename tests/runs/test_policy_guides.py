"""The guides on policies and on environments of one's own do what they say."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from runs.test_export import python  # noqa: F401, an interpreter that has only JAX

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytest.importorskip("pygame")
pytest.importorskip("PIL")


class Guide:
    """Follows a guide, block by block, as a reader would."""

    def __init__(self, name: str, environment: dict[str, str], alone: Path | None = None):
        self.blocks = BLOCK.findall((ROOT / "docs" / "guides" / f"{name}.md").read_text())
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._environment, self._alone = {**os.environ, **environment, "PYTHONPATH": path}, alone
        self.names: dict = {}
        self.output = ""  # of the last block
        self.commands: list[str] = []

    def follow(self) -> None:
        for language, mark, text in self.blocks:
            if mark:
                Path(mark).write_text(text)
            elif language == "python":
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile(text, "guide", "exec"), self.names)
                self.output = printed.getvalue()
            elif language == "text":
                assert self.output == text
            else:
                self.output = "".join(map(self._run, text.splitlines()))

    def _run(self, line: str) -> str:
        interpreter, script, *arguments = shlex.split(line)
        assert interpreter == "python"
        self.commands.append(line)
        if not script.startswith("scripts/"):
            done = subprocess.run([self._alone, "-I", script, *arguments], capture_output=True, text=True, timeout=120)
        else:
            command = [sys.executable, ROOT / script, *arguments]
            done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("parking")]:
        del sys.modules[name]


def test_policies(here, python, compiled_once):  # noqa: F811
    guide = Guide("policies", compiled_once, python)
    guide.follow()
    assert guide.commands[-2:] == ["python use_policy.py", "python use_memory.py"]
    assert guide.output == "(1,)\n"
    used = subprocess.run([python, "-I", "use_policy.py"], capture_output=True, text=True, timeout=120).stdout
    assert used == f"('cpu', 'cuda', 'tpu') {np.asarray(guide.names['expected'])}\n"
    script = next(text for _, mark, text in guide.blocks if mark == "use_policy.py")
    assert len(script.splitlines()) <= 10


def test_environments_of_ones_own(here, compiled_once):
    guide = Guide("own_environment", compiled_once)
    guide.follow()
    parking = next(text for _, mark, text in guide.blocks if mark == "parking.py")
    assert len([line for line in parking.splitlines() if line.strip()]) <= 42
    assert "20 episodes" in guide.output
    assert (here / "episode.gif").stat().st_size > 100
    (here / "elsewhere").mkdir()
    os.chdir(here / "elsewhere")
    assert "2 episodes" in guide._run("python scripts/evaluate.py ../runs/parking --episodes 2")
    guide._run("python scripts/plot.py ../runs/parking")
    guide._run("python scripts/train.py --resume ../runs/parking --total-steps 5_000")
    (here / "parking.py").unlink()
    for command in ("evaluate.py ../runs/parking", "train.py --resume ../runs/parking"):
        script, *arguments = command.split()
        done = subprocess.run(
            [sys.executable, ROOT / "scripts" / script, *arguments],
            env=guide._environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert f"there is no module 'parking' any more; it was in {here} when the run began" in done.stderr
        assert len(done.stderr.splitlines()) == 1
