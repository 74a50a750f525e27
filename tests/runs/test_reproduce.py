"""The script that runs the rows of the tables of results, and the one that runs SBX beside them."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.kept_results import keep
from support.scripts import load_script
from support.terminal import Terminal

from algorithms.runs.reproducing import Results, Row, jobs, read_rows, tables, writing
from algorithms.runs.reproducing.display import Display
from algorithms.runs.reproducing.results import Times
from algorithms.runs.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "reproduce.py"
TINY = (
    "--num-envs 4 --start-steps 40 --update-every 20 --num-updates 1 --total-steps 100 --mini-batch-size 4 "
    "--test-every 0 --num-test-episodes 1 --hidden-sizes 4 --capacity 100 --final-episodes 2 --sampler uniform"
)
ROWS = f"""
- title: Small
  text: Some words.
  rows:
    - {{command: ddqn CartPole-v1 --num-seeds 2 {TINY}, goal: 5, floor: 1, is_best_known: true, known: "500 (Zoo)"}}
    - {{command: ddqn CartPole-v1 --gamma 0.9 --num-seeds 2 {TINY}, goal: 900}}
"""


@pytest.fixture(scope="module")
def script():
    return load_script("reproduce")


@pytest.fixture
def options(tmp_path):
    """Return the options that keep the script off the real files."""
    (tmp_path / "README.md").write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
    (tmp_path / "rows.yaml").write_text(ROWS)
    names = {"rows": "rows.yaml", "results": "results", "runs": "runs", "readme": "README.md"}
    return [word for name, value in names.items() for word in (f"--{name}", str(tmp_path / value))]


def test_sbx_is_trained_seed_by_seed(tmp_path, monkeypatch, capsys):
    """Here by a stand-in, because SBX is not needed to use this library."""
    module = load_script("train_sbx")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "_score", lambda options, seed: 10.0 * seed)
    monkeypatch.setattr(module.importlib.metadata, "version", lambda name: "1.2")
    row = Row("sac gymnasium:Hopper-v5", sbx="sac Hopper-v5 --total-steps 100_000 --num-seeds 3")
    assert module.main(row.sbx.split()) == 0
    told = tables.cells(row, Results(tmp_path / "results"))["known elsewhere"]
    assert told == "SBX 1.2 here: 10.0 (0.0 to 20.0), 3 seeds"
    monkeypatch.setattr(module, "_score", lambda *_: pytest.fail("trained twice"))
    assert module.main(row.sbx.split()) == 0
    assert capsys.readouterr().out.count("seed") == 6  # a line each, whose command has the word, too


def test_rows_with_the_same_settings_share_their_result(script, tmp_path):
    one, same = Row("ddqn CartPole-v1 --num-seeds 2"), Row("ddqn CartPole-v1 --num-seeds 2 --sampler prioritized")
    other = Row("ddqn CartPole-v1 --num-seeds 2 --sampler uniform")
    groups = [writing.Group("All", "", (one, same, other))]
    results = Results(tmp_path)
    assert script.select(groups, [], [], results) == [one, other]
    keep(one, [1.0, 2.0], tmp_path)
    results.share([one, same, other])
    assert results.read(same)._replace(command=one.command) == results.read(one)
    assert results.read(other) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "sac Pendulm-v1"), "did you mean 'ddqn CartPole-v1"),
        (("--group", "small"), "did you mean 'Small'?"),
        (("--readme", __file__), "reproduce:begin"),
        (("--rows", "/nowhere.yaml"), "cannot be read"),
    ],
)
def test_errors_come_before_any_run(script, options, arguments, message, capsys):
    assert script.main([*options, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_dry_run_shows_commands_and_does_nothing(script, options, tmp_path, capsys):
    assert script.main([*options, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"python scripts/train.py ddqn CartPole-v1 --num-seeds 2 {TINY}"
    assert len(lines) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "rows.yaml"}


def test_rows_are_run_kept_and_written(script, options, tmp_path, capsys):
    """By real processes, two at a time."""
    assert script.main([*options, "--jobs", "2"]) == 0
    out = capsys.readouterr().out
    assert "2/2" in out
    assert "NOT MET" in out
    files = sorted((tmp_path / "results").glob("*.json"))
    assert len(files) == 2
    kept = json.loads(files[1].read_text())
    assert len(kept["scores"]) == 2
    assert kept["times"]["cpu_seconds"] > 0.5
    assert kept["times"]["wall_seconds"] > 0.1
    readme = (tmp_path / "README.md").read_text()
    assert readme.startswith("before")
    assert "| 100 | 2 |" in readme
    assert "| met |" in readme
    long = (tmp_path / "results" / "README.md").read_text()
    assert "**not met**" in long
    assert "500 (Zoo)" in long
    (picture,) = (tmp_path / "results" / "pictures").glob("*.svg")
    text = "".join(ElementTree.fromstring(picture.read_text()).itertext())
    assert "ddqn CartPole-v1 --gamma 0.9" in text
    assert [*(tmp_path / "runs").iterdir()] == []
    before = files[0].stat().st_mtime_ns
    assert script.main([*options]) == 0  # nothing is left to do
    assert files[0].stat().st_mtime_ns == before


def test_a_run_that_fails_is_told_and_others_go_on(script, options, tmp_path, capsys, monkeypatch):
    failing = tmp_path / "scripts" / "train.py"
    failing.parent.mkdir()
    failing.write_text("import sys\nprint('train.py: no disk', file=sys.stderr)\nsys.exit(2)\n")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    assert script.main([*options, "--jobs", "1"]) == 1
    assert capsys.readouterr().err.count("ended with 2: train.py: no disk") == 2
    assert not [*(tmp_path / "results").glob("*.json")]


def test_a_stopped_run_goes_on_where_it_was(options, tmp_path):
    """By Ctrl-C at a terminal, which shows the row; then the run itself is asked to go on."""
    text = ROWS.replace("--total-steps 100", "--total-steps 4_000_000").replace("--test-every 0", "--test-every 2_000")
    (tmp_path / "rows.yaml").write_text(text)
    row = read_rows(tmp_path / "rows.yaml")[0].rows[0]
    command = [sys.executable, str(SCRIPT), *options, "--only", row.command]
    terminal = Terminal(command, {"PYTHONPATH": str(ROOT)}, str(tmp_path))
    terminal.wait_for(r"0/1 rows done")
    terminal.wait_for(r"ddqn CartPole-v1 --num-seeds 2")
    folder = RunFolder(tmp_path / "runs" / row.file_name)
    terminal.wait_for(lambda: folder.path.exists() and bool(folder.metrics()))
    terminal.press(b"\x03")
    assert terminal.finish() == 130
    assert "the same command continues" in terminal.screen
    assert "Traceback" not in terminal.text
    assert not terminal.is_cursor_hidden
    assert 0 < folder.metrics()[-1]["steps"] < 4_000_000
    first = json.loads((tmp_path / "runs" / f"{row.file_name}.times").read_text())
    assert first["cpu_seconds"] > 0.5
    noting = tmp_path / "noting.py"
    noting.write_text("import sys\nprint(sys.argv[1:])\nsys.exit(5)\n")
    again = jobs.Jobs(Results(tmp_path / "results"), tmp_path / "runs", 1, noting)
    again.run([row], lambda *_: None, lambda: None)
    (failed,) = again.failed
    assert failed.exit_code == 5
    assert failed.message.startswith(f"['--resume', '{folder.path}'")
    assert folder.metrics()[-1]["steps"] > 0


def test_times_add_up_and_a_lost_part_is_admitted(tmp_path):
    path = tmp_path / "times"
    clock = jobs._Clock(path)
    clock.begin(is_continued=False)
    assert clock.end(2.0).cpu_seconds == 2.0
    again = jobs._Clock(path)
    again.begin(is_continued=True)
    assert again.end(3.0).cpu_seconds == 5.0
    killed = jobs._Clock(path)
    killed.begin(is_continued=True)
    last = jobs._Clock(path)
    last.begin(is_continued=True)
    assert last.end(1.0) == Times(None, None)
    assert tables.shown_time(last.end(1.0).cpu_seconds) == "not known"


def test_times_on_the_wall_need_a_quiet_machine(script, options, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 1.0, 1.0))
    assert script.main([*options, "--quiet"]) == 2
    assert "the load is 3.0" in capsys.readouterr().err
    rows = [Row("ddqn CartPole-v1 --num-seeds 1"), Row("ddqn CartPole-v1 --num-seeds 2")]
    keep(rows[0], [1.0], tmp_path)
    keep(rows[1], [1.0, 2.0], tmp_path, times=Times(100.0, 150.0, 1.9, is_quiet=True)._asdict())
    results = Results(tmp_path)
    assert [tables.cells(row, results)["time"] for row in rows] == ["", "1.7 min"]
    groups = [writing.Group("All", "", tuple(rows))]
    assert script.select(groups, [], [], results) == []
    assert script.select(groups, [], [], results, quiet=True) == rows[:1]


def test_the_time_left_follows_the_work(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rows = [Row(f"ddqn CartPole-v1 --total-steps {steps}") for steps in (10_000, 30_000)]
    display = Display(rows)
    now[0] = 60.0
    display.tick({rows[1]: 0.5})
    task = display._bar.tasks[0]
    assert task.description == "0/2 rows done, about 1:40 left"
    assert [task.description for task in display._bar.tasks[1:]] == [rows[1].command]
    display.tick({})
    assert len(display._bar.tasks) == 1
