"""What the README shows works as shown, and so do commands of the documentation."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from algorithms.runs import presets, run, sweeps
from algorithms.runs.run_folder import RunFolder

README = Path(__file__).parents[2] / "README.md"
PAGES = [README.parent / "docs" / name for name in ("start.md", "guides/runs.md", "guides/checkpoints.md")]
RUNS = ("runs/ddqn_CartPole-v1_seed0", "runs/one")  # those that commands go on with


def test_the_code_blocks_run():
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 2
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert names["mean_weights"].shape == (10,)


def test_the_quickstart_is_short():
    first = re.search(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert len([line for line in first[1].splitlines() if line.strip()]) <= 12


def commands(page=README):
    """Return the command lines that are to be typed, without remarks, in order."""
    blocks = re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", "").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


def test_commands_are_typed_where_their_programs_are():
    """`python` is that of .venv only after its activation, which comes after the scripts that make it."""
    typed = commands()
    names = [command[0] for command in typed]
    activation = names.index("source")
    assert typed[activation] == ["source", ".venv/bin/activate"]
    assert activation >= 2
    assert {*names[:activation]} == {"bash"}
    assert {*names[activation + 1 :]} <= {"python", "pip", "bash", ".venv-accelerators/bin/python"}
    for command in typed:
        assert all((README.parent / part).exists() for part in command if part.startswith("scripts/"))


def training_commands():
    typed = {" ".join(command): command for page in (README, *PAGES) for command in commands(page)}
    return [command for command in typed.values() if "scripts/train.py" in command and "--help" not in command]


@pytest.mark.parametrize("command", training_commands(), ids=" ".join)
def test_training_commands_are_understood(command, monkeypatch, tmp_path):
    """Up to the point where they begin to train."""
    names = runpy.run_path(str(README.parent / "scripts" / "train.py"))
    monkeypatch.chdir(tmp_path)
    Path("settings.yaml").write_text("algorithm: ddqn\nenvironment: CartPole-v1\n")
    for name in RUNS:
        if name not in command or "--out" not in command or command[command.index("--out") + 1] != name:
            RunFolder(name).create(presets.preset("ddqn", "CartPole-v1"))
    begun = []
    for module, name in ((run, "start"), (run, "resume"), (run, "fork"), (sweeps, "start")):
        monkeypatch.setattr(module, name, lambda *_: begun.append(True) or sys.exit(0))
    with pytest.raises(SystemExit):
        names["main"](command[2:] + ([] if {"--resume", "--out"} & {*command} else ["--out", "another"]))
    assert begun


def test_the_readme_is_short_and_its_links_lead_somewhere():
    text = README.read_text()
    assert len(text.splitlines()) <= 150
    links = re.findall(r"\]\(([\w./]+)\)", text)
    assert len(links) > 30
    for link in links:
        assert (README.parent / link).exists(), link
