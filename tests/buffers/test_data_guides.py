"""The guides on data and parts do what they say: their code runs, and prints what is written below it."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import os
import re
import subprocess
import sys
import textwrap

import pytest
from support.guides import ROOT, blocks

import algorithms
import jaxrl_buffers as jb
from algorithms.runs import command_line


@pytest.mark.parametrize("guide", ["offline_data", "actors_and_learner", "own_parts"])
def test_guides_run(guide, tmp_path):
    """Blocks marked `minari` are left out where it is missing; those marked by a file's name are written there."""
    has_minari = all(importlib.util.find_spec(name) for name in ("minari", "h5py"))
    code, printed, is_left_out = [], [], False
    for language, mark, text in blocks(guide):
        if mark.endswith(".py"):
            (tmp_path / mark).write_text(text)
        elif language == "python":
            is_left_out = mark == "minari" and not has_minari
            code += [] if is_left_out else [text]
        elif language == "text" and not is_left_out:
            printed.append(text)
    # Processes that are spawned load this file again.
    (tmp_path / "guide.py").write_text('if __name__ == "__main__":\n' + textwrap.indent("".join(code), "    "))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "guide.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(printed)


def test_defaults_in_the_guide_are_those_of_the_code():
    """Rows such as `| ... | 0.0 | `Prioritized.epsilon` | 1e-6 |` name a class, a field and its default."""
    text = (ROOT / "docs" / "guides" / "from_pytorchrl.md").read_text()
    rows = re.findall(r"\| `(\w+)\.(\w+)` \| (\S+) \|$", text, re.MULTILINE)
    assert len(rows) >= 15
    for name, field, value in rows:
        owner = vars(algorithms).get(name) or vars(jb)[name]
        default = {one.name: one.default for one in dataclasses.fields(owner)}[field]
        assert default == ast.literal_eval(value), f"{name}.{field}"


def test_commands_of_the_guide_are_understood():
    commands = [text.replace("\\\n", "") for language, _, text in blocks("offline_data") if language == "bash"]
    lines = [line for text in commands for line in text.splitlines()]
    offline, mixed, *_, with_memory = [line.removeprefix("python scripts/train.py ").split() for line in lines]
    plan = command_line.parse(offline).settings.plan
    assert (plan.offline_updates, plan.total_steps, plan.start_steps) == (10_000, 0, 0)
    settings = command_line.parse(mixed).settings
    assert (settings.dataset, settings.dataset_share) == ({"path": "data.npz"}, 0.25)
    settings = command_line.parse(with_memory).settings
    assert (settings.memory, settings.burn_in, settings.plan.offline_updates) == ("gru", 10, 10_000)
