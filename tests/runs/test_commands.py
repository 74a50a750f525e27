"""`python -m algorithms`: which commands there are, and what is done before they are imported."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from algorithms import commands
from algorithms.commands import compare, evaluate, plot, train
from algorithms.commands.program import Program
from algorithms.runs import run

ROOT = Path(__file__).parents[2]


def python(*arguments, beside):
    """Run Python with the modules of a folder in front of all others."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(beside), str(ROOT)])}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=beside, env=environment, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout, done.stderr


def started(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        commands.start([*arguments])
    printed = capsys.readouterr()
    return end.value.code, printed.out, printed.err


def test_help_and_nothing_list_all_commands(capsys):
    code, text, errors = started(capsys, "--help")
    assert (code, errors) == (0, "")
    assert started(capsys) == (2, "", text)
    for command in commands.COMMANDS:
        assert f"\n  {command} " in text


@pytest.mark.parametrize(
    ("given", "hint"),
    [("trian", "did you mean train?"), ("Compare", "did you mean compare?"), ("x", "there are train, evaluate, plot")],
)
def test_a_command_that_there_is_not(capsys, given, hint):
    code, out, errors = started(capsys, given, "ddqn", "CartPole-v1")
    assert (code, out) == (2, "")
    assert errors.startswith(f"python -m algorithms: there is no command {given!r}; {hint}")
    assert len(errors.splitlines()) == 1


def test_all_that_is_missing_is_told(capsys, monkeypatch):
    monkeypatch.setattr(commands, "MODULES", ("os", "no_such_module", "nor_this"))
    told = "python -m algorithms plot: no_such_module and nor_this are not installed; use: pip install "
    assert started(capsys, "plot", "run") == (2, "", f"{told}'jaxrl-buffers[train]'\n")


@pytest.mark.parametrize("command", [train, evaluate, plot, compare], ids=lambda one: one.__name__.split(".")[-1])
def test_help_names_the_program_that_was_called(capsys, command):
    name = command.__name__.split(".")[-1]
    for program, other in ((Program.of_module(name), f"{name}.py"), (Program.of_script(name), "-m algorithms")):
        with contextlib.suppress(SystemExit):  # argparse ends the program
            command.main(["--help"], program)
        text = capsys.readouterr().out
        assert f"    {program.typed} " in text
        assert other not in text
        assert "{name}" not in text
        assert "{typed}" not in text


@pytest.mark.parametrize("command", [train, evaluate, plot, compare], ids=lambda one: one.__name__.split(".")[-1])
@pytest.mark.parametrize("columns", [80, 110])
def test_help_is_as_wide_as_the_terminal(capsys, monkeypatch, command, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    with contextlib.suppress(SystemExit):
        command.main(["--help"], Program.of_module(command.__name__.split(".")[-1]))
    widths = [len(line) for line in capsys.readouterr().out.splitlines() if not line.startswith("    python")]
    assert columns - 15 < max(widths) <= columns


def test_bad_input_names_the_program(capsys):
    program = Program.of_module("train")
    assert train.main(["ddqn"], program) == 2
    line = "the environment is missing; it comes before the options: python -m algorithms train ddqn CartPole-v1\n"
    assert capsys.readouterr().err == f"python -m algorithms train: {line}"
    assert train.main(["ddqn", "CartPole-v1", "--xyz", "1"], program) == 2
    assert capsys.readouterr().err.endswith("; see python -m algorithms train ALGORITHM ENVIRONMENT --help\n")


@pytest.mark.parametrize("command", [evaluate, plot, compare], ids=lambda one: one.__name__.split(".")[-1])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--halp"], "the following arguments are required: RUN"),
        (["run", "--halp"], "there is no option --halp; did you mean --help?"),
        (["run", "--xyz=3"], "there is no option --xyz; see python -m algorithms NAME --help"),
        (["run", "--help=1"], "argument -h/--help: ignored explicit argument '1'"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(capsys, command, given, message):
    program = Program.of_module(command.__name__.split(".")[-1])
    try:
        code = command.main(given, program)
    except SystemExit as end:
        code = end.code
    errors = capsys.readouterr().err
    assert code == 2
    assert errors.startswith(f"{program.name}: ")
    assert errors.endswith(f"{message.replace('NAME', program.words[-1])}\n")
    assert len(errors.splitlines()) == 1


def test_a_run_after_the_options(capsys):
    assert plot.main(["one", "--out", "picture.png", "two"], Program.of_module("plot")) == 2
    line = "got two where an option is expected; all RUNs come before the options."
    assert capsys.readouterr().err == f"python -m algorithms plot: {line}\n"


def test_the_command_to_continue():
    assert Program.of_module("train").command_line("--resume", "a b").endswith(" -m algorithms train --resume 'a b'")


def test_a_run_that_was_stopped_tells_how_it_is_continued(capsys, monkeypatch):
    def stop(*_):
        raise run.Interrupted(signal.SIGINT, 10)

    monkeypatch.setattr(run, "start", stop)
    code = train.main(["ddqn", "CartPole-v1", "--out", "stopped"], Program.of_module("train"))
    assert code == 128 + signal.SIGINT
    out = capsys.readouterr().out
    assert out.endswith(" -m algorithms train --resume stopped\n")


def test_a_signal_during_the_imports(tmp_path):
    (tmp_path / "gymnax.py").write_text(
        "import signal\n"
        "try:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "except BaseException:\n"
        "    raise SystemExit('caught')\n"
    )
    assert python("-m", "algorithms", "plot", beside=tmp_path) == (-signal.SIGINT, "", "")
    assert python("-c", "import algorithms", beside=tmp_path) == (1, "", "caught\n")  # the signals of others stay


@pytest.mark.parametrize("module", [("-m", "algorithms"), ("-malgorithms",)], ids=" ".join)
def test_processes_meet_before_devices_are_used(tmp_path, module):
    """gymnax uses devices when it is imported."""
    (tmp_path / "gymnax.py").write_text("raise SystemExit('gymnax came first')\n")
    code, out, errors = python(*module, "train", "--coordinator", "nowhere", beside=tmp_path)
    assert (code, out) == (2, "")
    assert errors.startswith("python -m algorithms train: --num-processes: is missing")
