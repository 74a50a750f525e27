"""Scripts as a user runs them."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.scripts import load_script

ROOT = Path(__file__).parents[2]


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, timeout=300, **options
    )


def test_the_buffer_benchmark_reports_and_writes_json(tmp_path):
    path = tmp_path / "results.json"
    arguments = ("--capacities", "1024", "--kinds", "uniform", "--cells", "add", "--repeats", "2", "--json", path)
    done = run("scripts/benchmark_buffers.py", *arguments)
    assert done.returncode == 0, done.stderr
    assert "uniform" in done.stdout
    assert json.loads(path.read_text())


def test_two_checkouts_are_timed_by_turns(monkeypatch, capsys):
    benchmark = load_script("benchmark_commits")
    what = ("--kinds", "uniform", "--capacities", "256", "--agents", "ddqn", "--hidden", "8")
    arguments = ["benchmark_commits.py", str(ROOT), str(ROOT), *what, "--seconds", "0.01", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    rows = benchmark.rows_of(benchmark.parse_arguments())
    assert rows == [
        *(["buffers", "uniform", cell, 256] for cell in ("sample", "add", "loop")),
        ["training", "ddqn", 1, 8, 10_000],
    ]
    monkeypatch.setattr(benchmark, "rows_of", lambda options: rows[2:])
    benchmark.main()
    printed = capsys.readouterr().out
    for row in ("buffers uniform loop 256", "training ddqn 1 8"):
        # Of one round, the time is the median, the least and the largest.
        assert re.search(rf"^{row} .*?([\d.]+) \[\1, \1\]", printed, re.MULTILINE), printed


def test_of_several_rounds_the_middle_and_the_range_are_shown():
    assert load_script("benchmark_commits").show([3.0, 1.0, 1.5], 1) == "1.5 [1.0, 3.0]"


def test_what_is_no_checkout_is_refused(tmp_path):
    done = run("scripts/benchmark_commits.py", ROOT, tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"benchmark_commits.py: {tmp_path} is not a checkout of this project\n"


@pytest.mark.parametrize("arguments", [("--capacities", "many"), ("--kinds", "none"), ("--repeats", "0"), ("--typo",)])
def test_bad_options_of_the_benchmark(arguments):
    done = run("scripts/benchmark_buffers.py", *arguments)
    assert done.returncode == 2
    assert arguments[0] in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_is_enough():
    done = run("scripts/benchmark_buffers.py", "--help")
    assert done.returncode == 0
    for option in ("--capacities", "--kinds", "--cells", "--repeats", "--json", "--quick"):
        assert option in done.stdout


def test_the_benchmark_of_accelerators_tells_what_it_needs(tmp_path):
    assert "--quick" in run("scripts/benchmark_accelerators.py", "--help").stdout
    done = run("scripts/benchmark_accelerators.py", "--json", tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "--json" in done.stderr


def test_compilers_that_cannot_be_had_are_told_in_one_line(tmp_path):
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    command = "source scripts/setup.sh; install_accelerators && echo installed; echo went on"
    offline = os.environ | {"PIP_NO_INDEX": "1"}
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=offline, capture_output=True, text=True)
    begun, left_out, went_on = done.stdout.splitlines()
    assert begun.startswith("Installing")
    assert left_out.startswith("The tests for TPU and GPU are left out")
    assert "libtpu" in left_out
    assert went_on == "went on"


def folder_of_commands(folder, real, **own):
    """Make a folder with the scripts, and with commands: some real ones, and some that are made of a line of bash."""
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    for name in real:
        (folder / name).symlink_to(shutil.which(name))
    for name, text in own.items():
        (folder / name.replace("_", "-")).write_text(f"#!{shutil.which('bash')}\n{text}\n")
        (folder / name.replace("_", "-")).chmod(0o755)


BEGUN, LEFT_OUT = (
    "Installing chromium (once) ...",
    "Tests that need chromium are left out, because it is not installed.",
)


@pytest.mark.parametrize(
    ("user", "install", "printed"),
    [
        (0, 'if [ "$1" = install ]; then touch chromium; chmod +x chromium; fi', [BEGUN]),
        (0, '[ "$1" = update ]', [BEGUN, LEFT_OUT]),
        (1_000, "exit 1", [LEFT_OUT]),
        (None, "exit 1", [LEFT_OUT]),
    ],
    ids=["installed", "cannot be had", "not root", "no CI"],
)
def test_packages_of_debian_are_installed_where_they_may_be(tmp_path, user, install, printed):
    folder_of_commands(
        tmp_path, ["bash", "chmod", "dirname", "timeout", "touch"], id=f"echo {user or 0}", apt_get=install
    )
    call = "install_debian chromium chromium google-chrome"
    command = [
        "bash",
        "-c",
        f"source scripts/setup.sh; {call}; echo went on; touch google-chrome; chmod +x google-chrome; {call}",
    ]
    variables = {"PATH": str(tmp_path)} | ({} if user is None else {"CI": "true"})
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [*printed, "went on"]


def test_a_python_of_pyenv_is_found(tmp_path):
    """Its shim fails unless the version is switched on."""
    folder_of_commands(tmp_path, ["bash", "cat", "cksum", "dirname"], **{"python3.99": "exit 127"})
    own = tmp_path / ".pyenv" / "versions" / "3.99.1" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.write_text(f"#!{shutil.which('bash')}\necho 3.99.1\n")
    own.chmod(0o755)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / ".venv-3.99").mkdir()
    call = 'source scripts/setup.sh; echo "3.99.1 $(cksum <pyproject.toml)" >.venv-3.99/installed; install_python 3.99'
    variables = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", call], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, ".venv-3.99\n", "")


@pytest.mark.parametrize("given", [(), ("3.99",), ("/nowhere/python",)])
def test_a_python_that_there_is_not(tmp_path, given):
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    command = ["bash", tmp_path / "scripts" / "test", "--python", *given]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"--python {''.join(given)}: there is no such Python")
    assert len(done.stderr.splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"scripts"}


@pytest.fixture(scope="module")
def training_names():
    return runpy.run_path(str(ROOT / "scripts" / "benchmark_training.py"))


@pytest.fixture(scope="module")
def training_benchmark(training_names):
    return training_names["main"]


@pytest.mark.usefixtures("compiled_once")
def test_the_training_benchmark_reports_and_writes_json(training_benchmark, tmp_path, capsys):
    path = tmp_path / "results.json"
    assert training_benchmark(["--quick", "--agents", "ddqn", "--json", str(path)]) == 0
    assert "64x64  1 seed" in capsys.readouterr().out
    results = json.loads(path.read_text())
    assert results["speed"][0]["steps_per_second"] > 0
    assert set(results["shares"][0]["microseconds"]) == {"whole", "collect", "buffer", "gradients", "optimizer"}


@pytest.mark.parametrize("arguments", [("--agents", "none"), ("--hidden", "wide"), ("--repeats", "0")])
def test_bad_options_of_the_training_benchmark(training_benchmark, arguments, capsys):
    with pytest.raises(SystemExit) as end:
        training_benchmark(list(arguments))
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert arguments[0] in error
    assert len(error.splitlines()) == 1


def test_the_training_benchmark_can_build_every_agent(training_names):
    assert {"ddqn", "sac", "td3", "ddpg", "mpo", "sac_discrete", "mpo_discrete", "ppo"} <= set(training_names["TASKS"])
    for agent in training_names["TASKS"]:
        cell = training_names["Cell"](agent, num_seeds=1, hidden=8, capacity=1_000)
        experiment = training_names["Experiment"].of(cell)
        experiment.plan.check_buffer(experiment.buffer)


def test_the_benchmark_of_seeds_reports_and_writes_json(tmp_path, capsys):
    path, benchmark = tmp_path / "seeds.json", load_script("benchmark_seeds").main
    size = ("--hidden", "4", "--seeds", "2", "--steps", "4", "--repeats", "1")
    assert benchmark(["--agents", "ppo", *size, "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["on cores"] > 0
    assert row["in one program"] > 0
    assert len(row["ratio"]) == 3
    assert "on cores" in capsys.readouterr().out
    for arguments in (["--agents", "dqn"], ["--seeds", "two"]):
        with pytest.raises(SystemExit) as stop:
            benchmark(arguments)
        assert stop.value.code == 2
