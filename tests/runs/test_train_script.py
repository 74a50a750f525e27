"""The command line as a new user drives it."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from support.scripts import finish, load_script, start_script

from algorithms.runs import memory_need, presets, run
from algorithms.runs.run_folder import RunFolder

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def main():
    """The script's own entry, without a new process for every bad option."""
    return load_script("train").main


def test_help_explains_every_option(main, capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for option in (
        "ALGORITHM",
        "ENVIRONMENT",
        "--total-steps",
        "--sampler",
        "--n-step",
        "--num-seeds",
        "--resume",
        "--fork",
    ):
        assert option in text
    for option in ("--out", "--agent.learning-rate", "--sampler.alpha", "--num-test-episodes", "--checkpoint-seconds"):
        assert option in text


def test_help_shows_the_settings_of_a_pair(main, capsys):
    assert main(["sac", "Pendulum-v1", "--help"]) == 0
    text = capsys.readouterr().out
    assert "default: 20000" in text
    assert "--agent.target-entropy" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ddqn", "CartPol-v1"), "did you mean CartPole-v1"),
        (("ddq", "CartPole-v1"), "did you mean ddqn"),
        (("SAC", "CartPole-v1"), "did you mean sac?"),
        (("ddqn", "Pendulum-v1"), "ddqn cannot act in Pendulum-v1"),
        (("td3", "CartPole-v1"), "td3 cannot act in CartPole-v1"),
        (("ddqn", "CartPole-v1", "--sampler", "prioritised"), "did you mean prioritized"),
        (("ddqn", "CartPole-v1", "--total-steps", "0"), "at least 1"),
        (("ddqn", "CartPole-v1", "--total-steps", "-5"), "at least 1"),
        (("ddqn", "CartPole-v1", "--total-steps", "50_001"), "nearest total is 50000"),
        (("ddqn", "CartPole-v1", "--num-envs", "16", "--update-every", "200"), "192 or 208 would do"),
        (("ddqn", "CartPole-v1", "--num-envs", "16", "--update_every=200"), "192 or 208 would do"),
        (("ddqn", "CartPole-v1", "--num-seeds", "0"), "num_seeds"),
        (("ddqn", "CartPole-v1", "--mini-batch-size", "5000"), "samples can be drawn after"),
        (("ddqn", "CartPole-v1", "--n-step", "0"), "at least 1"),
        (("ddqn", "CartPole-v1", "--activation", "rellu"), "no activation 'rellu'"),
        (("ddqn", "CartPole-v1", "--hidden-sizes", "0"), "hidden_sizes"),
        (("ddqn", "CartPole-v1", "--channels", "4", "0"), "channels=0"),
        (("ddqn", "CartPole-v1", "--channels", "4", "4", "4", "--strides", "1", "2"), "there are 3 convolutions"),
        (("ddqn", "Breakout-MinAtar", "--kernel-sizes", "11"), "is an image of 10x10"),
        (("ddqn", "CartPole-v1", "--obs-dtype", "int4"), "must be one of 'none', 'bool', 'uint8'"),
        (("ddqn", "CartPole-v1", "--obs-dtype", "bool"), "which bool cannot hold"),
        (("ddqn", "CartPole-v1", "--final-episodes", "0"), "final_episodes"),
        (("ddqn", "CartPole-v1", "--agent.polyak", "2"), "polyak"),
        (("ddqn", "CartPole-v1", "--sampler.alpha", "-1"), "alpha"),
        (("ddqn", "CartPole-v1", "--out", "existing"), "exists already"),
        (("ddqn", "CartPole-v1", "--out", "file/run"), "cannot be written"),
        (("--resume", "nothing"), "is not the folder of a run"),
        (("--resume", "existing", "--seed", "4"), "takes no other settings"),
        (("--resume", "nothing", "--fresh-environments"), "is not the folder of a run"),
        (("ddqn", "CartPole-v1", "--fresh-environments"), "goes with --resume"),
        (("--fork", "nothing", "--out", "new"), "is not the folder of a run"),
        (("--fork", "existing", "--config", "file"), "give changes as options"),
        (("--resume", "nothing", "--total-steps", "500"), "is not the folder of a run"),
        (("ddqn", "CartPole-v1", "--hindsight", "future"), "CartPole-v1 has no goals"),
        (("ddqn", "CartPole-v1", "--sequence-length", "0"), "sequence_length"),
        (("ddqn", "CartPole-v1", "--burn-in", "-1"), "burn_in"),
        (("ddqn", "CartPole-v1", "--checkpoint-seconds", "-1"), "checkpoint_seconds"),
        (("ppo", "CartPole-v1", "--memory", "gru", "--mini-batch-size", "50"), "at least 125"),
        (("--total-steps", "500", "ddqn", "CartPole-v1"), "train.py ALGORITHM ENVIRONMENT --total-steps"),
        (("--total-steps", "500", "sac", "Pendulum-v1"), "come first"),
        (("ddqn", "--total-steps", "500", "Acrobot-v1"), "it comes before the options"),
    ],
)
def test_bad_input_is_one_clear_line(main, capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "existing").mkdir()
    (tmp_path / "file").write_text("kept")
    assert main(list(arguments)) == 2
    text = capsys.readouterr()
    assert message in text.err
    assert len(text.err.splitlines()) == 1
    assert text.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["existing", "file"]
    assert (tmp_path / "file").read_text() == "kept"
    assert not list((tmp_path / "existing").iterdir())


def test_defaults_follow_the_number_of_environments(main, tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(run, "train", lambda runs, *_: found.append(runs[0][0].plan) or sys.exit())
    for options in ((), ("--total_steps=48_000",)):
        folder = tmp_path / f"run{len(found)}"
        with pytest.raises(SystemExit):
            main(["ddqn", "CartPole-v1", "--num-envs", "16", *options, "--out", str(folder)])
        assert RunFolder(folder).settings().plan == found[-1]
    assert [(plan.num_envs, plan.update_every, plan.total_steps) for plan in found] == [
        (16, 208, 50_000),
        (16, 208, 48_000),
    ]


def test_a_run_that_memory_cannot_hold(main, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory_need, "available", lambda: 24 * 10**9)
    assert main(["ddqn", "CartPole-v1", "--capacity", "1000000000"]) == 2
    error = capsys.readouterr().err
    assert "needs about 56.9 GB of memory, and 24.0 GB are free; use a smaller --capacity" in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.fixture
def begun(tmp_path):
    """A run that was killed before its first checkpoint."""
    folder = RunFolder(tmp_path / "run")
    folder.create(presets.preset("ddqn", "CartPole-v1"), {"final_episodes": 7})
    return folder


def test_options_that_a_resumed_run_keeps(main, begun, monkeypatch):
    found = []
    monkeypatch.setattr(run, "train", lambda *arguments: found.append(arguments[-2]) or sys.exit())
    for options in ((), ("--final-episodes", "3", "--checkpoint-seconds", "9")):
        with pytest.raises(SystemExit):
            main(["--resume", str(begun.path), *options])
    assert found == [run.Kept(60.0, 7), run.Kept(9.0, 3)]


def test_a_fork_needs_a_folder_of_its_own(main, capsys, begun):
    assert main(["--fork", str(begun.path)]) == 2
    assert "needs --out NEW" in capsys.readouterr().err
    assert main(["--fork", str(begun.path), "--out", str(begun.path.with_name("fork"))]) == 2
    assert "holds no checkpoint" in capsys.readouterr().err
    assert [path.name for path in begun.path.parent.iterdir()] == ["run"]


def test_settings_that_no_agent_has(main, capsys, begun):
    path = begun.path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "agent": {"polyac": 0.9}}))
    assert main(["--resume", str(begun.path)]) == 2
    error = capsys.readouterr().err
    assert "polyac" in error
    assert "polyak" in error
    assert len(error.splitlines()) == 1


def test_files_that_cannot_be_used(main, capsys, begun):
    (begun.path / "metrics.jsonl").mkdir()
    assert main(["--resume", str(begun.path)]) == 2
    error = capsys.readouterr().err
    assert "Is a directory" in error
    assert len(error.splitlines()) == 1


def test_a_signal_during_the_imports(tmp_path):
    """It ends the program, although whoever is importing catches all that is raised, as some of JAX's callbacks do."""
    (tmp_path / "rich.py").write_text(
        "import signal\n"
        "try:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "except BaseException:\n"
        "    raise SystemExit('caught')\n"
    )
    process = start_script(
        "train", "--help", cwd=tmp_path, environment={"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    )
    assert finish(process) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ddqn", "CartPole-v1", "--typo", "1"), "there is no option --typo; see train.py"),
        (("ddqn", "CartPole-v1", "--n-stp", "1"), "there is no option --n-stp; did you mean --n-step?"),
        (("sac", "Pendulum-v1", "--lr-q", "1"), "there is no option --lr-q; did you mean --agent.learning-rate-q?"),
        (("sac", "Pendulum-v1", "--agent.lr-pi", "1"), "did you mean --agent.learning-rate-pi?"),
        (("ddqn", "CartPole-v1", "--seed", "x"), "--seed: got 'x', expected a whole number."),
        (("ddqn", "CartPole-v1", "--seed"), "--seed: is given without a value"),
        (("ddqn", "CartPole-v1", "--sampler"), "--sampler: is given without a value"),
        (("ddqn",), "the environment is missing"),
        (("ddqn", ""), "there is no environment ''"),
        (("--resume", "run", "--final-episodes", "x"), "--final-episodes: got 'x', expected a whole number"),
    ],
)
def test_options_that_cannot_be_read(main, capsys, arguments, message):
    assert main(list(arguments)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
