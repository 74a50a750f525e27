"""Runs that meet numbers which are not finite: what is told, what is kept, and how they end."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from support import faulty  # noqa: F401  # registers its environments
from support.scripts import load_script

from algorithms import Plan
from algorithms.runs import plotting, run, watch
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings
from algorithms.training import faults
from algorithms.training.metrics import Sums

ROOT = Path(__file__).parents[2]
OPTIONS = {
    **{"num-envs": 2, "start-steps": 40, "update-every": 4, "num-updates": 2, "mini-batch-size": 8},
    **{"test-every": 40, "num-test-episodes": 1, "total-steps": 200, "final-episodes": 1},
}
SMALL = {"capacity": 100, "hidden-sizes": 4}


@pytest.fixture(scope="module")
def main():
    return load_script("train").main


def arguments(algorithm, environment, **options):
    given = {**OPTIONS, **SMALL, **{name.replace("_", "-"): value for name, value in options.items()}}
    pairs = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    return [algorithm, environment, *pairs]


def settings(environment, agent=None, **plan):
    numbers = {name.replace("-", "_"): value for name, value in OPTIONS.items() if name != "final-episodes"}
    plan = Plan(**{**numbers, **plan})
    return Settings("ddqn", environment, plan, capacity=100, hidden_sizes=(4,), agent=agent or {}, num_seeds=2)


def is_finite(path):
    return faults.num_nonfinite(run.restore(path).agent) == 0


def test_warn_goes_on_and_keeps_the_finite_state(main, tmp_path, capsys):
    """All in a subprocess first, as a user drives it; then resumed, which gives the same end."""
    out = tmp_path / "run"
    program = ROOT / "tests" / "support" / "faulty.py"
    command = [sys.executable, str(program), *arguments("ddqn", "NaNReward-v0", out=out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert process.returncode == 3
    lines = process.stderr.splitlines()
    assert len(lines) == 3
    assert re.match(r"train.py: rewards at step 10 were not finite; training goes on \(`--on-nan skip`", lines[0])
    assert "the agent is not finite any more" in lines[1]
    assert "the checkpoint of 40 steps is kept" in lines[1]
    assert re.match(r"train.py: do not use the result: \d+ numbers of the agent are not finite.", lines[2])
    assert "return nan (1 episode)" in process.stdout
    metrics = RunFolder(out).metrics()
    assert [sum(line["nonfinite_rewards"]) for line in metrics] == [10, 4, 6, 4]  # the first with those of the warm-up
    assert sum(metrics[0]["nonfinite_gradients"]) > 0
    assert metrics[-1]["loss_q"] == metrics[-1]["returns"][0] == [None]
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "result.json").read_text())["nonfinite_numbers"] > 0
    assert is_finite(out)

    before = {path: path.stat().st_mtime_ns for path in out.glob("checkpoint/**/*")}
    assert main(["--resume", str(out)]) == 3  # from the other checkpoint, where it had ended
    assert {path: path.stat().st_mtime_ns for path in out.glob("checkpoint/**/*")} == before
    assert RunFolder(out).metrics() == metrics
    assert "return nan" in capsys.readouterr().out


def test_stop_keeps_the_checkpoint_and_ends_in_one_line(main, tmp_path, capsys):
    """The loss becomes so by itself: a step much too long."""
    out = tmp_path / "run"
    given = arguments("ddqn", "NoFault-v0", out=out, on_nan="stop", **{"agent.learning_rate": 1e30})
    assert main(given) == 3
    error = capsys.readouterr().err
    expected = r"train.py: stopped: losses at step \d+ and gradients at step \d+ were not finite; "
    assert re.fullmatch(expected + rf"the checkpoint of 40 steps is kept; {out}\n", error)
    assert is_finite(out)
    assert not (out / "result.json").exists()
    assert json.loads((out / "config.json").read_text())["plan"]["on_nan"] == "stop"
    assert main(["--resume", str(out)]) == 3
    assert capsys.readouterr().err == error


def test_stop_in_the_warm_up(main, tmp_path, capsys):
    assert main(arguments("ddqn", "InfObs-v0", out=tmp_path / "run", on_nan="stop")) == 3
    error = capsys.readouterr().err
    assert "stopped: observations at step 10 were not finite; there is no finite checkpoint" in error
    assert len(error.splitlines()) == 1


def test_skip_goes_on_to_a_finite_end(main, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(arguments("ddqn", "SomeNaNReward-v0", out=out, on_nan="skip", seed=1)) == 0
    error = capsys.readouterr().err
    assert re.fullmatch(
        r"train.py: rewards at step \d+ .*were not finite; updates with such gradients are skipped.\n", error
    )
    assert is_finite(out)
    metrics = RunFolder(out).metrics()
    assert 0 < sum(sum(line["skipped_updates"]) for line in metrics) < 80
    assert not (out / "checkpoint_nonfinite").exists()


def test_a_python_user_is_warned_and_the_run_goes_on_from_where_it_is(tmp_path):
    """Whatever was lost of some seeds, others may be sound: states are still saved, beside the finite one."""
    path, stop = tmp_path / "run", run.Interrupted

    def interrupt(report):
        if report.steps >= 120:
            signal.raise_signal(signal.SIGINT)

    with pytest.warns(RuntimeWarning) as warned, pytest.raises(stop, match="after 120 steps"):
        run.start(settings("NaNReward-v0"), path, run.Options(interrupt, checkpoint_seconds=0, final_episodes=1))
    told = [str(line.message) for line in warned]
    assert len(told) == 2
    assert told[0].startswith("rewards at step 10 were not finite")
    assert "the checkpoint of 40 steps is kept" in told[1]
    assert is_finite(path)
    seen = []
    with pytest.warns(RuntimeWarning):
        result = run.resume(path, run.Options(lambda report: seen.append(report.steps)))
    assert min(seen) == 120
    assert result["nonfinite_numbers"] > 0
    assert np.all(np.isnan(result["return_of_seeds"]))
    assert is_finite(path)


def test_ends_that_include_the_time_limit(main, tmp_path, capsys):
    assert main(arguments("ddqn", "Conflated-v0", out=tmp_path / "run")) == 0
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "in Conflated-v0 every episode that met its time limit was terminated as well (first at step 16)" in error
    assert "let `terminated` leave out the time limit" in error
    assert sum(RunFolder(tmp_path / "run").metrics()[-1]["ended_both_ways"]) > 0


class Looks:
    """A watch, with what it tells."""

    def __init__(self, on_nan="warn"):
        self.told = []
        self.watch = watch.Watch(self.told.append, "Env-v0", on_nan, lambda: 100)

    def look(self, truncated=0, both=0, is_read=False, **first):
        sums = Sums.zero(("nonfinite_losses",))
        totals = np.zeros((2, 9), np.float32)
        totals[1, 6:8] = truncated, both
        steps = np.zeros((2, len(faults.NAMES)), np.int32)
        for name, step in first.items():
            steps[1, faults.NAMES.index(name)] = step
        self.watch.look(sums.replace(totals=totals, first_steps=steps), is_read)


def test_everything_is_told_once():
    looks = Looks()
    looks.look()
    assert looks.told == []
    looks.look(nonfinite_losses=7, nonfinite_gradients=9)
    looks.look(nonfinite_losses=7, nonfinite_rewards=1_000)
    looks.watch.saved_nonfinite()
    looks.watch.saved_nonfinite()
    assert len(looks.told) == 2
    assert "losses at step 7 and gradients at step 9" in looks.told[0]
    assert "the checkpoint of 100 steps is kept" in looks.told[1]


def test_a_task_may_be_done_at_the_time_limit():
    """Only where that is always so is it told of."""
    looks = Looks()
    looks.look(truncated=3, both=1, ended_both_ways=5)
    looks.look(truncated=3, both=1, ended_both_ways=5, is_read=True)
    looks.look(truncated=1, both=1, ended_both_ways=50)
    assert looks.told == []
    looks = Looks()
    looks.look(truncated=1, both=1, ended_both_ways=50, is_read=True)
    looks.look(truncated=1, both=1, ended_both_ways=90)
    assert len(looks.told) == 1
    assert "first at step 50" in looks.told[0]


def test_stop_raises():
    with pytest.raises(watch.NotFinite, match="stopped: rewards at step 12 were not finite; the checkpoint of 100"):
        Looks("stop").look(nonfinite_rewards=12)


def test_curves_with_returns_that_are_not_finite(tmp_path):
    lines = [[[1.0, 2.0], [3.0, 4.0]], [[None, 2.0], [3.0, 4.0]], [[None, None], [None, None]]]
    metrics = [{"steps": index, "returns": returns} for index, returns in enumerate(lines)]
    for count in (3, 1):
        plotting.draw_curve(metrics[-count:], "title", tmp_path / "curve.png")
        assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_finite_state_is_preferred_and_the_furthest_continued(tmp_path):
    folder = RunFolder(tmp_path / "run")
    given = settings("NoFault-v0")
    folder.create(given)
    assert not folder.has_checkpoint
    assert folder.finite_iteration() is None
    for iteration, value in enumerate([1.0, 2.0, math.nan, math.nan]):
        folder.save({"w": np.float32(value)}, given, {"iteration": iteration}, is_finite=math.isfinite(value))
    like = {"w": jax.ShapeDtypeStruct((), np.float32)}
    assert folder.finite_iteration() == 1
    assert folder.restore(like)[0]["w"] == 2
    assert folder.restore(like)[1] == {"iteration": 1}
    assert folder.restore(like, furthest=True)[1] == {"iteration": 3}
    folder.save({"w": np.float32(5)}, given, {"iteration": 4})
    assert folder.restore(like, furthest=True)[0]["w"] == 5
