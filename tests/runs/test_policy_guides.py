"""The guides on policies and on environments of one's own do what they say."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from support.guides import Reader, call_script
from support.only_jax import python  # noqa: F401, a fixture
from support.scripts import finish, start_script

pytest.importorskip("pygame")
pytest.importorskip("PIL")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    forget(tmp_path)


def forget(folder):
    """Forget the modules of a folder, as a new process would."""
    sys.path[:] = [path for path in sys.path if path != str(folder)]
    for name in [name for name in sys.modules if name.startswith("parking")]:
        del sys.modules[name]


def test_policies(here, python, compiled_once):  # noqa: F811
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    reader = Reader("policies", {**os.environ, "PATH": path, "PYTHONPATH": ""})
    reader.follow()
    used = f"('cpu', 'cuda', 'tpu') {np.asarray(reader.names['expected'])}\n"
    assert [*reader.printed.items()][-2:] == [("python use_policy.py", used), ("python use_memory.py", "(1,)\n")]
    script = next(text for _, mark, text in reader.blocks if mark == "use_policy.py")
    assert len(script.splitlines()) <= 10


def test_environments_of_ones_own(here, compiled_once):
    reader = Reader("own_environment")
    reader.follow()
    parking = next(text for _, mark, text in reader.blocks if mark == "parking.py")
    assert len([line for line in parking.splitlines() if line.strip()]) <= 42
    assert "20 episodes" in [*reader.printed.values()][-1]
    assert (here / "episode.gif").stat().st_size > 100
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    evaluation = start_script("evaluate", "../runs/parking", "--episodes", 2, cwd=elsewhere, environment=compiled_once)
    assert "2 episodes" in finish(evaluation)[1]
    os.chdir(elsewhere)
    for command in ("plot.py ../runs/parking", "train.py --resume ../runs/parking --total-steps 5_000"):
        forget(here)
        reader.call(f"python scripts/{command}")
    (here / "parking.py").unlink()
    for script, *arguments in (("evaluate", "../runs/parking"), ("train", "--resume", "../runs/parking")):
        forget(here)
        code, _, errors = call_script(script, *arguments)
        assert code == 2
        assert f"there is no module 'parking' any more; it was in {here} when the run began" in errors
        assert len(errors.splitlines()) == 1
