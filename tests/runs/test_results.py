"""The tables of results: their rows, their files, and what is written from them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from support.kept_results import keep

from algorithms.runs.presets import PRESETS
from algorithms.runs.reproducing import Results, Row, read_rows, tables, writing
from algorithms.runs.reproducing.results import summary
from algorithms.runs.reproducing.rows import file_name

ROOT = Path(__file__).parents[2]
GROUPS = read_rows(ROOT / "results" / "rows.yaml")
ALL = [row for group in GROUPS for row in group.rows]
DONE = [row for row in ALL if (ROOT / "results" / f"{row.file_name}.json").exists()]


@pytest.fixture(autouse=True)
def mixed_ranks():
    """Reacher-misc and Swimmer-misc of gymnax mix ranks."""
    with jax.numpy_rank_promotion("allow"):
        yield


def test_every_command_is_understood_and_every_preset_has_a_row():
    assert len(ALL) > 50
    for row in ALL:
        assert row.parsed().settings.num_seeds >= 3, row.command
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
    assert "`" not in page


def test_columns_without_an_entry_are_left_out():
    results = Results(ROOT / "results")
    group = next(
        group for group in GROUPS if not any(row.aim for row in group.rows) and tables.apart(group, results)[0]
    )
    text = writing.long_page([group], results)
    assert "| mean | interquartile mean | worst | best |" in text
    assert "| goal |" not in text
    page = writing.html([group], results)
    assert "<th>mean</th>" in page
    assert "<th>goal</th>" not in page


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
