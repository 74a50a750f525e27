"""Commands, shell code and YAML of the documentation are understood by the programs that they are for."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess

import pytest
import yaml
from support.guides import ROOT
from support.pages import BLOCK, PAGES

from algorithms.commands.parsing import parse
from algorithms.commands.program import Program
from algorithms.runs import command_line
from algorithms.runs.build import build

TEXTS = PAGES | {name: (ROOT / name).read_text("utf-8") for name in ("README.md", "CONTRIBUTING.md")}
OF_SHELL = [(name, code) for name, text in TEXTS.items() for kind, *_, code in BLOCK.findall(text) if kind == "bash"]
OF_YAML = [code for text in TEXTS.values() for kind, *_, code in BLOCK.findall(text) if kind == "yaml"]
IN_LINES = [line for text in TEXTS.values() for line in re.findall(r"`(python (?:scripts/|-m )[^`\n]+)`", text)]
GO_ON = {"--resume", "--fork", "--start-from", "--config", "--help"}  # options that need files; see test_readme.py
CALL = re.compile(r"python (scripts/(\w+)(?:\.py)?|-m algorithms (\w+))(?: ([^'>|)\n]*))?")
ASSIGNED = re.compile(r'\b(run|what)=(?:"([^"]*)"|([\w/]+))')


class Understood(Exception):
    """A command has read its arguments, and would begin."""


def calls(code: str) -> list[tuple[str, list[str]]]:
    """Return the calls of programs of this project in shell code, also inside of other commands: name, arguments.

    Variables that the code sets last have this value. All others, such as the number of a process, are 1.
    """
    code = code.replace("\\\n", " ")
    values = {name: quoted or plain for name, quoted, plain in ASSIGNED.findall(code)}
    found = []
    for _, script, command, words in CALL.findall(code):
        if "$what" in words and "what" not in values:
            continue  # an earlier block sets it; test_launcher_guide.py runs both
        while "$" in words:
            words = re.sub(r"\\?\$(\w+)", lambda name: values.get(name[1], "1"), words)
        if words.count('"') % 2:  # the end of a command in quotes
            words = words.rpartition('"')[0]
        found.append((script or command, shlex.split(words, comments=True)))
    return found


CALLS = {
    (name, *arguments)
    for code in [code for _, code in OF_SHELL] + OF_YAML + IN_LINES
    for name, arguments in calls(code)
    if "ROW" not in arguments  # this stands for what is in a table
}


def test_all_calls_are_found():
    assert {name for name, *_ in CALLS} >= {"train", "evaluate", "plot", "compare", "reproduce", "benchmark_buffers"}
    launched = [call for call in CALLS if {"--distributed", "--coordinator"} & {*call}]
    assert len(launched) >= 5
    assert ("train", "sac", "Pendulum-v1", "--num-envs", "64", "--out", "runs/big", "--distributed") in launched


def test_scripts_that_are_called_exist():
    for code in [code for _, code in OF_SHELL] + OF_YAML + IN_LINES:
        for script in re.findall(r"scripts/[\w.]+", code):
            assert (ROOT / script).exists(), code


def test_training_commands_are_understood():
    trainings = [arguments for name, *arguments in CALLS if name == "train" and not GO_ON & {*arguments}]
    assert len(trainings) >= 15
    for arguments in trainings:
        plan = command_line.parse(arguments).settings.plan
        assert plan.total_steps + plan.offline_updates > 0


@pytest.mark.parametrize("command", ["evaluate", "plot", "compare"])
def test_other_commands_are_understood(command, monkeypatch):
    def understand(parser, arguments):
        parse(parser, arguments)
        raise Understood

    module = importlib.import_module(f"algorithms.commands.{command}")
    monkeypatch.setattr(module, "parse", understand)
    lines = [arguments for name, *arguments in CALLS if name == command]
    assert lines
    for arguments in lines:
        with pytest.raises(Understood):
            module.main(arguments, Program.of_module(command))


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_shell_code_has_no_mistakes_of_form():
    for name, code in OF_SHELL:
        done = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), name


def test_yaml_can_be_read_and_settings_be_built(tmp_path):
    files = [code for code in OF_YAML if code.startswith("environment:")]
    assert files
    for code in files:
        path = tmp_path / "settings.yaml"
        path.write_text(code)
        assert build(command_line.parse(["--config", str(path)]).settings).agent
    others = [yaml.safe_load(code) for code in OF_YAML if code not in files]
    assert "JobSet" in [one.get("kind") for one in others]
    jobs = next(one for one in others if one.get("kind") == "JobSet")["spec"]["replicatedJobs"]
    (container,) = jobs[0]["template"]["spec"]["template"]["spec"]["containers"]
    done = subprocess.run(["bash", "-n"], input=container["args"][0], capture_output=True, text=True)
    assert (container["command"], done.stderr) == (["bash", "-c"], "")
