"""Runs side by side: their names, what is said about their scores, the picture and the page."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.browser import count_pixels
from support.compared import PLAN, SCRIPTS, SETTINGS, make_pair, make_run

from algorithms.runs.build import complete
from algorithms.runs.comparing import compare, estimates, labels
from algorithms.runs.plotting import COLORS
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings


@pytest.fixture
def pair(tmp_path):
    return make_pair(tmp_path)


@pytest.fixture(scope="module")
def scripts():
    return {name: runpy.run_path(str(SCRIPTS / f"{name}.py"))["main"] for name in ("compare", "plot")}


def test_runs_are_named_by_what_differs(pair):
    found = compare(pair)
    assert [run.label for run in found.runs] == ["n_step=1", "n_step=3"]
    assert found.differences == {"n_step": ["1", "3"]}
    assert found.title == "ddqn on CartPole-v1"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([{}, {"seed": 1}], ["seed=0", "seed=1"]),
        ([{}, {"seed": 1, "gamma": 0.9}], ["gamma=0.99", "gamma=0.9"]),
        ([{}, {"hidden_sizes": (8, 8)}], ["hidden_sizes=64x64", "hidden_sizes=8x8"]),
        ([{}, {"normalize": True}], ["normalize=false", "normalize=true"]),
        ([{}, {"sampler": {"name": "prioritized"}}], ["sampler=uniform", "sampler=prioritized"]),
        (
            [{"sampler": {"name": "prioritized"}}, {"sampler": {"name": "prioritized", "alpha": 0.2}}],
            ["sampler.alpha=0.6", "sampler.alpha=0.2"],
        ),
        ([{}, {"n_step": 3}, {"n_step": 3, "seed": 1}], ["n_step=1, seed=0", "n_step=3, seed=0", "n_step=3, seed=1"]),
        (
            [{"agent": {"learning_rate": 1e-4}}, {"agent": {"learning_rate": 3e-5}}],
            ["agent.learning_rate=0.0001", "agent.learning_rate=3e-05"],
        ),
        ([{}, {}], ["folder 0", "folder 1"]),
        ([{}], ["folder 0"]),
    ],
)
def test_labels(changes, expected):
    settings = [labels.named(complete(dataclasses.replace(SETTINGS, **{"agent": {}, **one}))) for one in changes]
    folders = [f"folder {number}" for number in range(len(changes))]
    assert labels.labels(settings, folders) == expected


def test_another_algorithm_is_its_own_name():
    others = complete(Settings("mpo", "CartPole-v1", PLAN, n_step=3))
    assert labels.labels([labels.named(one) for one in (SETTINGS, others)], ["a", "b"]) == ["ddqn", "mpo"]


def test_labels_stay_short():
    names = [f"option{number}" for number in range(9)]
    found = labels.labels([dict.fromkeys(names, value) for value in ("1", "2")], ["a", "b"])
    assert found[0] == "option0=1, option1=1, option2=1, option3=1"


SCORES = np.array([3.0, 1.0, 10.0, 4.0, 7.0, 5.0, 2.0, 100.0])


def test_estimates_are_what_they_say():
    """By slow and obvious definitions."""
    assert estimates.mean(SCORES).value == SCORES.mean()
    assert estimates.interquartile_mean(SCORES).value == np.sort(SCORES)[2:6].mean()
    others = np.array([3.0, 6.0, 2.0])
    wins = [(one > two) + 0.5 * (one == two) for one, two in itertools.product(SCORES, others)]
    assert estimates.probability_of_improvement(SCORES, others).value == pytest.approx(np.mean(wins))


def test_intervals_are_quantiles_over_all_resamples():
    """Four seeds can be drawn in 256 ways."""
    scores, others = np.array([1.0, 2.0, 4.0, 9.0]), np.array([0.0, 3.0, 5.0])
    means = [np.mean(drawn) for drawn in itertools.product(scores, repeat=4)]
    found = estimates.mean(scores)
    assert (found.low, found.high) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.26)
    middles = [np.mean(sorted(drawn)[1:3]) for drawn in itertools.product(scores, repeat=4)]
    found = estimates.interquartile_mean(scores)
    assert (found.low, found.high) == pytest.approx(np.quantile(middles, [0.025, 0.975]), abs=0.26)
    wins = [
        np.mean([(one > two) + 0.5 * (one == two) for one, two in itertools.product(drawn, against)])
        for drawn in itertools.product(scores, repeat=4)
        for against in itertools.product(others, repeat=3)
    ]
    found = estimates.probability_of_improvement(scores, others)
    assert (found.low, found.high) == pytest.approx(np.quantile(wins, [0.025, 0.975]), abs=0.05)


def test_estimates_of_few_and_equal_seeds():
    assert estimates.mean(np.array([3.0])) == (3.0, None, None)
    assert estimates.probability_of_improvement(np.array([3.0]), np.array([1.0, 2.0])) == (1.0, None, None)
    assert estimates.interquartile_mean(np.full(5, 2.0)) == (2.0, 2.0, 2.0)
    assert estimates.probability_of_improvement(np.full(5, 2.0), np.full(4, 2.0)) == (0.5, 0.5, 0.5)


def test_finished_runs_are_judged_by_their_last_evaluation(pair):
    found = compare(pair)
    assert [run.scores.steps for run in found.runs] == [300, 300]
    np.testing.assert_array_equal(found.runs[0].scores.of_seeds, [20.5, 21.5, 22.5, 23.5])
    assert found.basis == "deterministic evaluation after 300 steps, 7 episodes a seed"
    assert found.runs[0].improvement is None
    assert found.runs[1].improvement.value == 1.0
    np.testing.assert_array_equal(found.runs[0].steps, [100, 200, 300])
    np.testing.assert_allclose(found.runs[0].returns[2], [20, 21, 22, 23])


def test_runs_of_other_lengths_are_judged_where_the_shortest_ends(pair, tmp_path):
    """A run that goes on after its result was written is judged by its evaluations, too."""
    short = make_run(tmp_path / "short", 30.0, dataclasses.replace(SETTINGS, n_step=2), steps=(150, 250))
    found = compare([*pair, short.path])
    assert [run.scores.steps for run in found.runs] == [200, 200, 250]
    np.testing.assert_allclose(found.runs[0].scores.of_seeds, np.array([20, 21, 22, 23]) * 200 / 300, rtol=1e-5)
    assert found.basis == "deterministic evaluation after 200 to 250 steps, 2 episodes a seed"


def test_runs_that_learned_offline_are_compared_by_updates(tmp_path):
    folders = [RunFolder(tmp_path / str(number)) for number in range(2)]
    for number, folder in enumerate(folders):
        folder.create(dataclasses.replace(SETTINGS, n_step=number + 1))
        for updates in (50, 100):
            folder.append({"steps": 0, "updates": updates, "returns": [[updates * number]]})
        folder.finish({"steps": 0, "updates": 100, "episodes": 3, "return_of_seeds": [1.0]})
    found = compare([folder.path for folder in folders])
    np.testing.assert_array_equal(found.runs[1].steps, [50, 100])
    assert found.basis == "deterministic evaluation after 100 updates, 3 episodes a seed"
    online = make_run(tmp_path / "online", 5.0, dataclasses.replace(SETTINGS, n_step=3))
    with pytest.raises(ValueError, match="first evaluation after 100 steps, and another run ends at 0"):
        compare([folders[0].path, online.path])


def test_what_does_not_compare(pair, tmp_path, scripts, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = str(pair[0])
    make_run("acrobot", 1.0, dataclasses.replace(SETTINGS, environment="Acrobot-v1"))
    RunFolder("new").create(SETTINGS)
    make_run("late", 1.0, steps=(400,), final=False)
    make_run("diverged", float("nan"))
    for name, file, text in (
        ("cut", "metrics.jsonl", "{broken}\n{}\n"),
        ("result", "result.json", "[1]"),
        ("half", "result.json", '{"steps": 300, "episodes": 2}'),
        ("config", "config.json", "{}"),
    ):
        make_run(name, 1.0)
        Path(name, file).write_text(text)
    for others, message in {
        ("acrobot",): "was trained on CartPole-v1 and acrobot on Acrobot-v1; compare runs of the same environment",
        ("new",): "new has no evaluation yet",
        ("late",): "late has its first evaluation after 400 steps, and another run ends at 300",
        ("diverged",): "diverged has returns that are not finite after 300 steps",
        ("cut",): "metrics.jsonl does not hold the metrics of a run",
        ("result",): "result.json does not hold the result of a run",
        ("half",): "it has no returns of seeds",
        ("config",): "config.json does not hold the settings of a run",
        ("nowhere",): "nowhere is not the folder of a run",
        (one + "/",): "is given twice; name every run once",
    }.items():
        for main in scripts.values():
            assert main([one, *others, "--out", "out.png"]) == 2
            text = capsys.readouterr()
            assert message in text.err
            assert len(text.err.splitlines()) == 1
            assert text.out == ""
    assert not Path("out.png").exists()


def test_a_file_that_cannot_be_written(pair, scripts, capsys):
    for main in scripts.values():
        assert main([*map(str, pair), "--out", "/nowhere/at/all.png"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_table(pair, tmp_path, scripts, capsys):
    assert scripts["compare"]([*map(str, pair), "--out", str(tmp_path / "page.html")]) == 0
    out = capsys.readouterr().out
    lines = [re.split(r"\s*│\s*", line)[1:-1] for line in out.splitlines() if line.startswith("│")]
    found = compare(pair).runs
    assert lines == [
        ["n_step=1", "4", found[0].mean.spelled(1), found[0].interquartile_mean.spelled(1), ""],
        ["n_step=3", "4", found[1].mean.spelled(1), found[1].interquartile_mean.spelled(1), "1.00 [1.00, 1.00]"],
    ]
    assert "22.0 [" in lines[0][3]
    assert "better than n_step=1" in out
    assert out.splitlines()[-1] == str(tmp_path / "page.html")


def test_the_folder_of_a_sweep_means_all_its_runs(pair, tmp_path, scripts, capsys):
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    for run in pair:
        shutil.copytree(run, sweep / run.name)
    (sweep / ".sweep.json").write_text(json.dumps({"points": [run.name for run in pair]}))
    page, picture = str(tmp_path / "page.html"), str(tmp_path / "curves.png")
    assert scripts["compare"]([str(sweep), "--out", page]) == 0
    together = capsys.readouterr().out
    assert scripts["compare"]([*map(str, pair), "--out", page]) == 0
    assert together == capsys.readouterr().out
    assert scripts["plot"]([str(sweep), "--out", picture]) == 0
    assert capsys.readouterr().out.split() == [picture]
    with pytest.raises(ValueError, match=rf"{sweep} is not the folder of a run: .*; it holds runs, such as {sweep}/"):
        RunFolder(sweep).settings()


def test_curves_are_drawn_over_each_other(pair, tmp_path, scripts, capsys):
    from matplotlib.image import imread

    assert scripts["plot"]([*map(str, pair), "--out", str(tmp_path / "compare.png")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "compare.png")]
    pixels = imread(tmp_path / "compare.png")[..., :3]
    places = []
    for color in COLORS[:2]:
        assert count_pixels(pixels, color) > 300
        wanted = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        rows, columns = np.nonzero(np.all(np.abs(pixels - wanted) < 0.5 / 255, axis=-1))
        places.append(rows[columns > columns.mean()].min())
    assert places[0] > places[1]  # the better run is above
    assert count_pixels(pixels, COLORS[2]) == 0
    assert not (pair[0] / "priorities.png").exists()
