"""The script that writes the README's table of results."""

from __future__ import annotations

import importlib.util
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from algorithms.runs.presets import PRESETS

SCRIPT = Path(__file__).parents[2] / "scripts" / "reproduce.py"
TINY = (
    *("--num-envs", "4", "--start-steps", "40", "--update-every", "20", "--num-updates", "1", "--total-steps", "100"),
    *("--mini-batch-size", "4", "--test-every", "0", "--num-test-episodes", "1", "--hidden-sizes", "4"),
    *("--capacity", "100", "--final-episodes", "1", "--sampler", "uniform"),
)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("reproduce_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def files(script, tmp_path):
    """Return the options that keep the script off the real files, and the README."""
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n")
    return ("--results", str(tmp_path / "results"), "--readme", str(readme)), readme


def result(command, mean, steps=20_000):
    return {"command": command, "steps": steps, "mean_return": mean, "return_of_seeds": [mean - 1, mean, mean + 1]}


def keep(tmp_path, *results):
    folder = tmp_path / "results"
    folder.mkdir(exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in results))


def test_the_table_tells_what_was_met(script):
    rows = (
        script.Row("sac", "Pendulum-v1", -180),
        script.Row("ddqn", "CartPole-v1", 475),
        script.Row("ddqn", "CartPole-v1", 200, flags=("--n-step", "3"), is_ceiling=True),
        script.Row("ppo", "CartPole-v1", 475),
        script.Row("ddqn", "BitFlip15-v0", 99, of_success=True, floor=99.9),
    )
    results = {
        "ddqn BitFlip15-v0": {"steps": 5_000, "success_of_seeds": [0.99, 1.0], "return_of_seeds": [-9, -9]},
        "sac Pendulum-v1": result("", -150.04),
        "ddqn CartPole-v1": result("", 470.0, steps=1_234),
        "ddqn CartPole-v1 --n-step 3": result("", 120.0),
    }
    assert script.table(rows, results).splitlines()[2:] == [
        "| `sac Pendulum-v1` | 20k | -150.0 (-151.0 to -149.0) | -180 | met |",
        "| `ddqn CartPole-v1` | 1,234 | 470.0 (469.0 to 471.0) | 475 | **not met** |",
        "| `ddqn CartPole-v1 --n-step 3` | 20k | 120.0 (119.0 to 121.0) | below 200 | met |",
        "| `ppo CartPole-v1` |  |  | 475 | not run |",
        "| `ddqn BitFlip15-v0` | 5k | 99.5 % (99.0 to 100.0) | 99 %, no seed below 99.9 % | **not met** |",
    ]


def test_only_what_lies_between_the_marks_changes(script, files):
    _, readme = files
    for text in ("one", "two\nlines"):
        script.write(readme, text)
        assert readme.read_text() == f"before\n{script.BEGIN}\n{text}\n{script.END}\nafter\n"


def test_rows_are_chosen_by_name_or_by_what_is_missing(script):
    names = [row.name for row in script.ROWS]
    assert len({*names}) == len(names)
    assert [row.name for row in script.select(script.ROWS, [], dict.fromkeys(names[:-2]))] == names[-2:]
    assert [row.name for row in script.select(script.ROWS, [names[1]], dict.fromkeys(names))] == [names[1]]


def test_every_preset_has_a_row(script):
    assert {(row.algorithm, row.environment) for row in script.ROWS} == {*PRESETS}


def test_rows_that_should_be_reached_judge_their_worst_seed(script):
    for row in script.ROWS:
        is_judged = row.floor is not None or row.is_ceiling or (row.of_success and row.goal == 100)
        assert is_judged, row.name
        assert row.floor is None or row.floor < row.goal


def test_a_dry_run_shows_commands_and_does_nothing(script, files, tmp_path, capsys):
    options, readme = files
    before = readme.read_text()
    keep(tmp_path, *(result(row.name, 0.0) for row in script.ROWS[1:]))
    assert script.main([*options, "--dry-run"]) == 0
    assert capsys.readouterr().out == "python scripts/train.py ddqn CartPole-v1 --num-seeds 5\n"
    assert readme.read_text() == before


def test_the_list_shows_the_last_result_of_a_row(script, files, tmp_path, capsys):
    options, _ = files
    keep(tmp_path, result("sac Pendulum-v1", -500.0), result("sac Pendulum-v1", -100.0))
    assert script.main([*options, "--list"]) == 0
    out = capsys.readouterr().out
    assert "| `sac Pendulum-v1` | 20k | -100.0 (-101.0 to -99.0) | -180, no seed below -250 | met |" in out
    assert out.count("not run") == len(script.ROWS) - 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--only", "sac Pendulm-v1"), "did you mean 'sac Pendulum-v1'?"), (("--readme", __file__), "reproduce:begin")],
)
def test_errors_come_before_any_run(script, files, arguments, message, capsys):
    assert script.main([*files[0], *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_row_is_run_kept_and_written(script, files, tmp_path, capfd, monkeypatch):
    options, readme = files
    monkeypatch.setattr(script, "NUM_SEEDS", 1)

    def train(command, check):
        """Do in this process, which has imported everything, what is asked of another."""
        assert command[0] == sys.executable
        assert check
        monkeypatch.setattr(sys, "argv", command[1:])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(command[1], run_name="__main__")
        assert end.value.code == 0

    monkeypatch.setattr(script.subprocess, "run", train)
    row = script.Row("ddqn", "CartPole-v1", 5, flags=TINY)
    assert script.main([*options], rows=(row,)) == 0
    (kept,) = (tmp_path / "results" / "results.jsonl").read_text().splitlines()
    assert len(json.loads(kept)["return_of_seeds"]) == 1
    assert "| 100 |" in readme.read_text()
    assert "| met |" in readme.read_text()

    def fail(command, check):
        assert "ppo" in command  # the first row is not run again
        raise subprocess.CalledProcessError(3, command)

    monkeypatch.setattr(script.subprocess, "run", fail)
    assert script.main([*options], rows=(row, script.Row("ppo", "CartPole-v1", 475))) == 1
    assert "the run ended with 3" in capfd.readouterr().err
