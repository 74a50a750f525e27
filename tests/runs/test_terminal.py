"""Scripts at a terminal, as people use them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.terminal import Terminal

from algorithms.runs import plotting
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.signals import StopSignals

ROOT = Path(__file__).parents[2]
TRAIN = [sys.executable, str(ROOT / "scripts" / "train.py")]
SIZE = (
    *("ddqn", "CartPole-v1", "--num-envs", "4", "--start-steps", "200", "--update-every", "20", "--num-updates", "1"),
    *("--mini-batch-size", "16", "--test-every", "400", "--num-test-episodes", "2", "--hidden-sizes", "8"),
    *("--capacity", "1_000", "--final-episodes", "2", "--seed", "3"),
)
SHORT = (*SIZE, "--total-steps", "4_200")
LONG = (*SIZE, "--total-steps", "40_000_200", "--checkpoint-seconds", "10_000")
CTRL_C = b"\x03"
COLOR = r"\x1b\[(3|4|9)\d[;m]"
FIGURES = r"[\d,]+/4,200 steps  [\d,]+ steps/s  return [\d.]+  \d+:\d\d left"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """One cache of compiled programs for all of these processes."""
    return {
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
        "MPLCONFIGDIR": str(tmp_path_factory.mktemp("matplotlib")),
        "JAX_ENABLE_COMPILATION_CACHE": "true",
    }


@pytest.fixture
def at_terminal(environment, tmp_path):
    def start(*command, columns=120, **others):
        return Terminal([*command], {**environment, **others}, str(tmp_path), columns)

    return start


def saved_steps(folder):
    return [path.name for path in (folder / "checkpoint").glob("step_*")]


def assert_tidy(terminal):
    assert "Traceback" not in terminal.text
    assert not terminal.is_cursor_hidden


def test_training_plotting_and_resuming(at_terminal, tmp_path):
    terminal = at_terminal(*TRAIN, *SHORT, "--out", "run")
    terminal.wait_for(r"ddqn on CartPole-v1 .*compiling \.\.\.", 60)
    assert terminal.finish() == 0
    assert_tidy(terminal)
    assert any(re.search(rf"ddqn on CartPole-v1 ━.* {FIGURES}", frame) for frame in terminal.frames)
    assert any("testing the last policy ..." in frame for frame in terminal.frames)
    assert re.fullmatch(
        r"ddqn on CartPole-v1: return [\d.]+ \(.*\) after 4,200 steps at .* steps/s; run",
        terminal.screen.replace("\n", ""),
    )
    assert (tmp_path / "run" / "curve.png").exists()

    plotting_it = at_terminal(sys.executable, str(ROOT / "scripts" / "plot.py"), "run")
    assert plotting_it.finish() == 0
    assert_tidy(plotting_it)
    assert plotting_it.screen.split() == [f"run/{name}.png" for name in ("curve", "priorities", "ages")]

    again = at_terminal(*TRAIN, "--resume", "run")
    assert again.finish() == 0
    assert_tidy(again)
    assert again.screen == terminal.screen


@pytest.mark.parametrize(("columns", "others"), [(40, {}), (120, {"TERM": "dumb"})], ids=["narrow", "dumb"])
def test_other_terminals(at_terminal, columns, others):
    terminal = at_terminal(*TRAIN, *SHORT, "--out", "run", columns=columns, **others)
    assert terminal.finish() == 0
    assert_tidy(terminal)
    if others.get("TERM") == "dumb":
        assert "\x1b" not in terminal.text
        assert re.search(r"^ *600 steps +[\d,]+ steps/s  return [\d.]+$", terminal.screen, re.MULTILINE)
        assert terminal.screen.startswith("ddqn on CartPole-v1: compiling ...")
        return
    assert re.search(COLOR, terminal.text)
    frames = [frame for frame in terminal.frames if "compiling" in frame or "/4,200" in frame]
    assert any(re.fullmatch(r". [\d,]+/4,200  [\d,]+/s  return [\d.]+  \d:\d\d", frame) for frame in frames)
    assert all(len(frame.splitlines()) == 1 for frame in frames)  # never more than one line of its own
    assert re.sub(r"\s", "", terminal.screen).startswith("ddqnonCartPole-v1:return")


@pytest.mark.parametrize("end", ["| cat", "> log"])
def test_output_that_goes_elsewhere(at_terminal, tmp_path, end):
    """What comes through a pipe may end in the same terminal, where a bar would be in its way; a file is not.

    Nothing has colors, which are not wanted here.
    """
    command = " ".join([*TRAIN, *SHORT, "--out", "run", end])
    terminal = at_terminal("bash", "-c", command, NO_COLOR="1")
    assert terminal.finish() == 0
    assert_tidy(terminal)
    assert not re.search(COLOR, terminal.text)
    lines = terminal.screen if end == "| cat" else (tmp_path / "log").read_text()
    assert lines.startswith("ddqn on CartPole-v1: compiling ...")
    assert re.search(r"^ *600 steps +[\d,]+ steps/s  return [\d.]+$", lines, re.MULTILINE)
    assert any(re.search(FIGURES, frame) for frame in terminal.frames) == (end == "> log")


def test_the_demo(at_terminal, environment, tmp_path):
    """As in a clone in which everything is installed."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    wanted = subprocess.run("cksum <pyproject.toml", shell=True, cwd=tmp_path, capture_output=True, text=True).stdout
    (tmp_path / ".venv" / "installed[train]").write_text(wanted)
    terminal = at_terminal("bash", "scripts/demo", *SHORT[2:])
    assert terminal.finish() == 0
    assert_tidy(terminal)
    assert any(re.search(FIGURES, frame) for frame in terminal.frames)
    assert "mean and range of 5 seeds" in terminal.screen
    assert len(list(tmp_path.glob("runs/demo_*/curve.png"))) == 1


def test_ctrl_c_saves_and_tells_how_to_go_on(at_terminal, tmp_path):
    terminal = at_terminal(*TRAIN, *LONG, "--out", "run")
    terminal.wait_for(r"return [\d.]+")
    terminal.press(CTRL_C)
    assert terminal.finish() == 128 + signal.SIGINT
    assert_tidy(terminal)
    assert any("stopping as soon as the present chunk is done and saved" in frame for frame in terminal.frames)
    told = re.search(r"stopped by SIGINT after [\d,]+ steps; continue with: (.*)", terminal.screen.replace("\n", ""))
    command = told[1].replace("train.py--resume", "train.py --resume")
    assert command.endswith("train.py --resume run")
    assert (tmp_path / "run" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert saved_steps(tmp_path / "run")


@pytest.mark.parametrize("moment", ["compiling", "return"])
def test_ctrl_c_twice_ends_at_once_without_a_traceback(at_terminal, moment):
    terminal = at_terminal(
        *TRAIN, *LONG, "--hidden-sizes", "8", "7", "--out", "run"
    )  # a program of its own, to compile
    terminal.wait_for(moment)
    terminal.press(CTRL_C)
    terminal.wait_for(lambda: "stopping as soon as" in terminal.screen)
    terminal.press(CTRL_C)
    code = terminal.finish(30)
    assert code in (-signal.SIGINT, 128 + signal.SIGINT)
    assert_tidy(terminal)


def test_a_terminal_that_is_closed(at_terminal, tmp_path, environment):
    terminal = at_terminal(*TRAIN, *LONG, "--out", "run")
    terminal.wait_for(r"return [\d.]+")
    before = saved_steps(tmp_path / "run")
    assert terminal.hang_up() == 128 + signal.SIGHUP
    assert saved_steps(tmp_path / "run") != before
    assert (tmp_path / "run" / "curve.png").exists()


def test_a_reader_that_has_enough(environment, tmp_path):
    """As with `| head -1`."""
    command = f'"{TRAIN[0]}" "{TRAIN[1]}" {" ".join(LONG)} --out run | head -1; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["ddqn on CartPole-v1: compiling ...", str(128 + signal.SIGPIPE)]
    assert saved_steps(tmp_path / "run")
    assert RunFolder(tmp_path / "run").metrics()


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert signals.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_are_told_at_once_while_the_main_thread_is_busy():
    told = threading.Event()
    numbers = []

    def on_signal(number):
        numbers.append(number)
        told.set()

    before = signal.getsignal(signal.SIGTERM)
    with StopSignals(on_signal) as signals:
        signal.raise_signal(signal.SIGTERM)
        assert told.wait(10)
        assert signals.received == signal.SIGTERM
    assert numbers == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.set_wakeup_fd(-1) == -1


def test_one_seed_has_no_band(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: drawn.append(figure))
    for num_seeds in (1, 2):
        lines = [{"steps": steps, "returns": [[float(steps)]] * num_seeds} for steps in (1, 2)]
        plotting.draw_curve(lines, "title", tmp_path / "curve.png")
    legends = [[text.get_text() for text in figure.axes[0].get_legend().get_texts()] for figure in drawn]
    assert legends == [["one seed"], ["95 % confidence of the mean", "mean of 2 seeds"]]


def test_no_library_for_drawing_is_loaded_before_something_is_drawn():
    program = (
        "import sys, algorithms, gymnax, jax\n"
        "print([name for name in ('matplotlib', 'seaborn', 'pandas') if name in sys.modules])\n"
        "env, params = gymnax.make('Catch-bsuite')\n"
        "print(env.render(env.reset(jax.random.key(0), params)[1], params)[0].axes != [])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[]", "True"], done.stderr
