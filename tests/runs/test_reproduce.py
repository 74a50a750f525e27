"""The tables of results: their rows, their files, and the script that runs rows and writes what they reached."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from support.terminal import Terminal

from algorithms.runs.presets import PRESETS
from algorithms.runs.reproducing import Results, Row, jobs, read_rows, tables, writing
from algorithms.runs.reproducing.display import Display
from algorithms.runs.reproducing.results import Times, summary
from algorithms.runs.reproducing.rows import file_name
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
GROUPS = read_rows(ROOT / "results" / "rows.yaml")
ALL = [row for group in GROUPS for row in group.rows]
DONE = [row for row in ALL if (ROOT / "results" / f"{row.file_name}.json").exists()]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("reproduce_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def options(tmp_path):
    """Return the options that keep the script off the real files."""
    (tmp_path / "README.md").write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
    (tmp_path / "rows.yaml").write_text(ROWS)
    names = {"rows": "rows.yaml", "results": "results", "runs": "runs", "readme": "README.md"}
    return [word for name, value in names.items() for word in (f"--{name}", str(tmp_path / value))]


def keep(row, scores, folder, steps=20_000, **changes):
    """Write a result as a run would have left it."""
    values = {
        **{"command": row.command, "date": "2026-01-02", "versions": {"jax": "1"}, "machine": "x, 2 cores"},
        **{"steps": steps, "episodes": 100, **summary(scores), "times": Times(3.0, 5.0, 0.5)._asdict()},
        **{"curve": {"steps": [10, 20], "returns": [[1.0] * len(scores), scores]}, "settings": row.settings()},
    }
    folder.mkdir(exist_ok=True)
    (folder / f"{row.file_name}.json").write_text(json.dumps(values | changes))


def test_every_command_is_understood_and_every_preset_has_a_row():
    assert len(ALL) > 50
    for row in ALL:
        settings = row.parsed().settings
        assert settings.num_seeds >= 3, row.command
    assert {*PRESETS} <= {tuple(row.words[:2]) for row in ALL}


def test_seeds_are_as_promised():
    for group in GROUPS:
        for row in group.rows:
            settings = row.parsed().settings
            if group.title == "Classic control":
                assert (settings.seed, settings.num_seeds) == (0, 10), row.command
            if group.title == "Held-out seeds":
                assert (settings.seed, settings.num_seeds) == (1000, 32), row.command


def test_the_readme_shows_about_ten_rows():
    assert 8 <= sum(row.is_best_known for row in ALL) <= 12


@pytest.mark.parametrize("row", DONE, ids=[row.command for row in DONE])
def test_every_result_belongs_to_its_row(row):
    result = Results(ROOT / "results").read(row)
    assert result is not None, "its settings have changed: run it again, or remove the file"
    settings = row.settings()
    assert len(result.scores) == settings["num_seeds"]
    assert result.steps == settings["plan"]["total_steps"]
    assert result.episodes == 100
    assert {name: getattr(result, name) for name in summary(result.scores)} == summary(result.scores)
    assert np.shape(result.curve["returns"]) == (len(result.curve["steps"]), len(result.scores))
    assert {"jax", "jaxlib", "jaxrl-buffers"} <= {*result.versions}


def test_no_file_is_without_a_row():
    names = {path.stem for path in (ROOT / "results").glob("*.json")}
    assert names == {row.file_name for row in DONE}


def test_tables_pictures_and_page_are_those_of_the_files():
    """`python scripts/reproduce.py --write` brings them up to date."""
    results = Results(ROOT / "results")
    assert tables.short(GROUPS, results) in (ROOT / "README.md").read_text("utf-8")
    assert (ROOT / "results" / "README.md").read_text("utf-8") == writing.long_page(GROUPS, results)
    drawn = {file_name(name) for name in writing.comparisons(GROUPS, results)}
    assert {path.stem for path in (ROOT / "results" / "pictures").glob("*")} == drawn
    page = (ROOT / "results" / "index.html").read_text("utf-8")
    assert page == writing.html(GROUPS, results)
    assert page.count("<tr><td><code>") == len(DONE)
    assert all(f"<code>{row.command}</code>" in page for row in ALL)


def test_cells_tell_what_was_met(tmp_path):
    rows = [
        Row("sac Pendulum-v1", goal=-180, floor=-150.5),
        Row("ddqn CartPole-v1", goal=475),
        Row("ddqn CartPole-v1 --n-step 3", goal=200, is_ceiling=True),
        Row("ddqn BitFlip15-v0", goal=99, floor=99, of_success=True),
        Row("sac Reacher-misc"),
        Row("ppo CartPole-v1", goal=475, known="nobody"),
    ]
    found = [[-151, -149, -150], [470.0], [120.0], [100.0, 99.0], [3.0]]
    for row, scores in zip(rows[:-1], found, strict=True):
        keep(row, scores, tmp_path, steps=1_234)
    cells = [tables.cells(row, Results(tmp_path)) for row in rows]
    assert [cell[""] for cell in cells] == ["**not met**", "**not met**", "met", "met", "", "not run"]
    assert [cell["goal"] for cell in cells][:4] == [
        "-180, no seed below -150.5",
        "475",
        "below 200",
        "99 %, no seed below 99 %",
    ]
    assert cells[0]["mean (worst to best)"] == "-150.0 (-151.0 to -149.0)"
    assert cells[3]["mean"] == "99.5 %"
    assert cells[0]["interquartile mean"].startswith("-150.0 [")
    assert (cells[0]["steps"], cells[0]["CPU time"], cells[0]["date"]) == ("1,234", "5 s", "2026-01-02")
    assert cells[5]["mean"] == ""
    assert cells[5]["known elsewhere"] == "nobody"


def test_sbx_is_trained_seed_by_seed(tmp_path, monkeypatch, capsys):
    """Here by a stand-in, because SBX is not needed to use this library."""
    spec = importlib.util.spec_from_file_location("train_sbx_script", ROOT / "scripts" / "train_sbx.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
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


def test_sbx_is_told_beside_a_row(tmp_path):
    row = Row("sac gymnasium:Hopper-v5", known="2000 (Zoo)", sbx="sac Hopper-v5 --num-seeds 2")
    assert tables.cells(row, Results(tmp_path))["known elsewhere"] == "2000 (Zoo)"
    (tmp_path / "sbx").mkdir()
    found = {"scores": [3.0, 1.0], "versions": {"sbx-rl": "0.28"}}
    (tmp_path / "sbx" / "sac_Hopper-v5_num-seeds_2.json").write_text(json.dumps(found))
    told = tables.cells(row, Results(tmp_path))["known elsewhere"]
    assert told == "2000 (Zoo); SBX 0.28 here: 2.0 (1.0 to 3.0), 2 seeds"


def test_a_result_of_other_settings_does_not_count(tmp_path):
    row = Row("ddqn CartPole-v1 --num-seeds 2")
    results = Results(tmp_path)
    keep(row, [1.0, 2.0], tmp_path)
    assert results.read(row) is not None
    settings = row.settings()
    old = {**settings, "plan": {name: value for name, value in settings["plan"].items() if name != "on_nan"}}
    keep(row, [1.0, 2.0], tmp_path, settings=old)  # of a version that did not have this setting
    assert results.read(row) is not None
    for changed in ({**settings, "gamma": 0.5}, {**settings, "gone": 1}, {**settings, "agent": {"learning_rate": 9.0}}):
        keep(row, [1.0, 2.0], tmp_path, settings=changed)
        assert results.read(row) is None


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
    ("text", "message"),
    [
        ("a: 1", "expected a list of groups"),
        ("- {title: a, rows: []}", "expected a title, a text and a list of rows"),
        ("- {title: a, text: b, rows: [{command: ddqn CartPole-v1 --n-stp 3}]}", "did you mean --n-step?"),
        ("- {title: a, text: b, rows: [{command: ddqn CartPole-v1, gaol: 3}]}", "gaol"),
        ("- {title: a, text: b, rows: [{command: ddqn CartPole-v1}, {command: ddqn  CartPole-v1}]}", "two rows"),
    ],
)
def test_rows_that_are_wrong(tmp_path, text, message):
    path = tmp_path / "rows.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_rows(path)


def test_only_what_lies_between_the_marks_changes(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
    for text in ("one", "two\nlines"):
        tables.write_between_marks(path, text)
        assert path.read_text() == f"before\n{tables.BEGIN}\n{text}\n{tables.END}\nafter\n"


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
