"""Runs in folders whose environments are stepped on the host."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from support import host_programs
from support.explained import unexplained
from support.terminal import Terminal

from algorithms import Plan
from algorithms.environments import gymnasium
from algorithms.runs import command_line, presets, run
from algorithms.runs.build import build
from algorithms.runs.host_loop import HostLoop
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings
from jaxrl_buffers import host

ROOT = Path(__file__).parents[2]
WALK = "support.host_walk:make_host_walk"
PLAN = Plan(
    total_steps=40,
    num_envs=2,
    start_steps=16,
    update_every=4,
    num_updates=2,
    mini_batch_size=4,
    test_every=12,
    num_test_episodes=3,
)
SETTINGS = Settings("ddqn", WALK, PLAN, hidden_sizes=(8,), capacity=100)
# The walker may be at its goal in the very step of the time limit.
OPTIONS = run.Options(checkpoint_seconds=0, final_episodes=2, on_notice=lambda line: None)


@pytest.fixture(scope="module", autouse=True)
def _compile_once():
    with host_programs.shared():
        yield


def _leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def _rows(state):
    buffer = build(SETTINGS).buffer
    return jax.tree.map(np.asarray, host.gather_all(buffer, jax.tree.map(lambda leaf: leaf[0], state.buffer)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run, and what it told."""
    told, folder = [], tmp_path_factory.mktemp("runs") / "whole"
    run.start(SETTINGS, folder, OPTIONS._replace(on_chunk=told.append))
    return RunFolder(folder), told


def test_a_run_has_the_files_and_the_metrics_of_any_run(whole):
    folder, told = whole
    assert [(report.phase, report.steps) for report in told[:2]] == [("compiling", 16), ("training", 20)]
    lines = folder.metrics()
    assert [line["steps"] for line in lines] == [28, 40]
    assert np.shape(lines[0]["returns"]) == (1, 3)
    assert lines[0]["policy_lag"] == [pytest.approx(4 / 3, rel=1e-4)]  # of three chunks the first has none
    assert lines[1]["policy_lag"] == [2]
    assert {"loss_q", "episode_return", "buffer_size", "nonfinite_rewards"} <= lines[0].keys()
    assert unexplained({*lines[0], *lines[1]}, "ddqn") == []
    result = json.loads((folder.path / "result.json").read_text())
    assert (result["steps"], result["episodes"]) == (40, 2)
    assert (folder.path / "curve.png").exists()


def test_the_same_run_gives_the_same_bits(whole, tmp_path):
    run.start(SETTINGS, tmp_path / "again", OPTIONS)
    for one, other in zip(
        _leaves(run.restore(whole[0].path).agent), _leaves(run.restore(tmp_path / "again").agent), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_a_stopped_run_goes_on_with_its_agent_buffer_and_counters(whole, tmp_path, monkeypatch):
    def stop(report):
        if report.steps == 28:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(run.Interrupted, match="28 steps"):
        run.start(SETTINGS, tmp_path / "run", OPTIONS._replace(on_chunk=stop))
    stopped = run.restore(tmp_path / "run")
    assert int(stopped.iteration[0]) == 3
    begun, begin_anew = [], HostLoop.begin_anew

    def see(self, state):
        begun.append((_leaves(state.agent), int(state.iteration)))
        return begin_anew(self, state)

    monkeypatch.setattr(HostLoop, "begin_anew", see)
    result = run.resume(tmp_path / "run", OPTIONS)
    assert result["steps"] == 40
    (agent, iteration), *others = begun
    assert (iteration, others) == (3, [])
    for one, other in zip(agent, _leaves(jax.tree.map(lambda leaf: leaf[0], stopped.agent)), strict=True):
        np.testing.assert_array_equal(one, other)
    before, after = _rows(stopped), _rows(run.restore(tmp_path / "run"))
    num = len(before.reward)
    assert num == 14
    np.testing.assert_array_equal(after.obs[:num], before.obs)
    assert (after.terminated | after.truncated)[num - 1].all()  # nothing that follows continues it
    np.testing.assert_array_equal(after.obs[num], np.zeros((2, 2)))  # where episodes begin
    assert [line["steps"] for line in RunFolder(tmp_path / "run").metrics()] == [28, 40]


def test_a_finished_run_can_be_extended_and_forked(whole, tmp_path):
    settings = dataclasses.replace(SETTINGS, plan=dataclasses.replace(PLAN, total_steps=64), gamma=0.9)
    run.fork(whole[0].path, settings, tmp_path / "fork", OPTIONS)
    origin, forked = _rows(run.restore(whole[0].path)), _rows(run.restore(tmp_path / "fork"))
    np.testing.assert_array_equal(forked.obs[: len(origin.obs)], origin.obs)
    assert len(forked.obs) == 32
    result = run.resume(tmp_path / "fork", OPTIONS, total_steps=72)
    assert result["steps"] == 72
    assert int(run.restore(tmp_path / "fork").iteration[0]) == 14


def test_seeds_and_actors_go_side_by_side(whole, tmp_path):
    settings = dataclasses.replace(SETTINGS, num_seeds=2, actors=2, seed=0)
    result = run.start(settings, tmp_path / "seeds", OPTIONS)
    assert len(result["return_of_seeds"]) == 2
    lines = RunFolder(tmp_path / "seeds").metrics()
    assert np.shape(lines[0]["returns"]) == (2, 3)
    agents = [_leaves(jax.tree.map(lambda leaf, s=s: leaf[s], run.restore(tmp_path / "seeds").agent)) for s in (0, 1)]
    assert any((one != other).any() for one, other in zip(*agents, strict=True))
    assert run.resume(tmp_path / "seeds", OPTIONS, total_steps=52)["steps"] == 52


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("ddqn gymnasium:CartPol-v1", "gymnasium:CartPol-v1: .*CartPol"),
        ("ddqn gymnasium:Pendulum-v1", "ddqn cannot act in gymnasium:Pendulum-v1, which has 1 continuous action"),
        (
            "sac gymnasium:Pendulum-v1 --obs-dtype uint8",
            "observations of gymnasium:Pendulum-v1 are stored as they come",
        ),
        ("sac gymnasium:Pendulum-v1 --frame-skip 4", "Pendulum-v1 is not an Atari game"),
        ("sac gymnasium:Pendulum-v1 --num-envs 3 --actors 2", "3 environments cannot be shared evenly among 2 actors"),
        (
            "sac gymnasium:Pendulum-v1 --env.gravity 9 --env.gg 1",
            "does not take .*unexpected keyword argument 'gg'[.]$",
        ),
        ("sac gymnasium:Pendulum-v1 --env.frame-stack 2", "env.frame_stack: got 2; it is a setting of its own"),
        ("sac gymnasium:Pendulum-v1 --env.g 1 2", "--env.g: got '1 2', expected one value"),
        ("ddqn CartPole-v1 --frame-stack 4", "CartPole-v1 is not made by Gymnasium; `frame_stack` is for"),
        ("ddqn CartPole-v1 --processes", "CartPole-v1 runs inside the compiled program; `processes` is for"),
        ("ddqn CartPole-v1 --actors 2", "CartPole-v1 runs inside the compiled program; `actors` is for"),
        (
            "ddqn CartPole-v1 --collect-then-learn",
            "compiled program; `collect_then_learn` is for",
        ),
        ("ddqn CartPole-v1 --env.length 2", "CartPole-v1 does not take {'length': 2}"),
        ("sac gymnasium:Pendulum-v1 --hindsight future", "gymnasium:Pendulum-v1 has no goals"),
        (f"ddqn {WALK} --frame-skip 4", "make_host_walk is not an Atari game of Gymnasium"),
        ("ddqn support.walk:Walk --frame-stack 4", "Walk does not make single environments of Gymnasium"),
        ("ddqn support.host_walk:make_vector --frame-stack 4", "make_vector does not make single environments"),
        ("ddqn support.host_walk:make_vector --processes", "make_vector has an argument `num_envs`.*leave `processes`"),
    ],
)
def test_what_means_nothing_is_refused_in_one_line(words, message):
    with pytest.raises(ValueError, match=message) as error:
        build(command_line.parse(words.split()).settings)
    assert "\n" not in str(error.value)


def test_cores_are_refused_where_all_seeds_learn_in_one_program(tmp_path):
    settings = dataclasses.replace(SETTINGS, num_seeds=2)
    with pytest.raises(ValueError, match=r"cores: got 1, but .*make_host_walk is stepped on the host, where all seeds"):
        run.start(settings, tmp_path / "run", OPTIONS._replace(cores=1))
    assert not (tmp_path / "run").exists()


def test_options_of_a_constructor_are_handed_on():
    words = "sac gymnasium:Pendulum-v1 --env.g 1.5 --num-envs 2 --processes --lock-step --actors 2"
    with pytest.warns(FutureWarning, match="`lock_step` is now called `collect_then_learn`"):
        settings = command_line.parse(words.split()).settings
    assert (settings.env, settings.actors, settings.collect_then_learn) == ({"g": 1.5}, 2, True)
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    vector = build(settings).env.make_tests(1)
    assert vector.envs[0].unwrapped.g == 1.5
    vector.close()


def test_what_is_looked_at_once_is_not_made_again(monkeypatch):
    env = gymnasium.make("Pendulum-v1", g=2.0)
    monkeypatch.setattr(gymnasium, "from_factory", None)
    assert gymnasium.make("Pendulum-v1", g=2.0) is env


def test_games_have_presets_of_their_own():
    for algorithm in ("ddqn", "sac", "ppo"):
        settings = presets.preset(algorithm, "gymnasium:ALE/Pong-v5")
        assert (settings.frame_stack, settings.channels, settings.strides) == (4, (32, 64, 64), (4, 2, 1))
    assert presets.preset("ppo", "gymnasium:ALE/Pong-v5").plan.update_every == 1024
    assert presets.preset("sac", "gymnasium:Walker2d-v5") == dataclasses.replace(
        presets.preset("sac", "unknown"), environment="gymnasium:Walker2d-v5"
    )


SIZE = "--start-steps 40 --update-every 4 --mini-batch-size 8 --hidden-sizes 8 --test-every 400 --num-test-episodes 1"


def _train(words: str, folder: Path, **environment: str) -> Terminal:
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), *words.split()]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return Terminal(command, {"PYTHONPATH": paths, **environment}, str(folder))


def test_a_run_with_processes_is_stopped_by_ctrl_c_and_resumed(tmp_path, compiled_once):
    words = f"ddqn {WALK} --num-envs 2 --processes {SIZE} --total-steps 400_040 --final-episodes 1 --out run"
    terminal = _train(words, tmp_path, **compiled_once)
    terminal.wait_for(r"[1-9][\d,]*/400,040 steps")
    terminal.press(b"\x03")
    assert terminal.finish() == 128 + signal.SIGINT
    assert "Traceback" not in terminal.text
    assert "continue with" in terminal.screen
    steps = RunFolder(tmp_path / "run").finite_iteration() * 4 + 40
    terminal = _train(f"--resume run --total-steps {steps + 400}", tmp_path, **compiled_once)
    assert terminal.finish() == 0, terminal.screen
    assert f"{steps + 400:,} steps" in terminal.screen


def test_mujoco_leaves_the_screen_and_the_folder_alone(tmp_path, compiled_once):
    pytest.importorskip("mujoco", reason="pip install 'jaxrl-buffers[gymnasium]'")
    words = f"sac gymnasium:HalfCheetah-v5 {SIZE} --total-steps 100 --final-episodes 1 --env.ctrl-cost-weight 0.2"
    terminal = _train(f"{words} --env.max-episode-steps 20 --out run", tmp_path, **compiled_once)
    assert terminal.finish() == 0, terminal.screen
    assert len(terminal.screen.splitlines()) == 1, terminal.screen
    assert not (tmp_path / "MUJOCO_LOG.TXT").exists()


def test_a_game_of_atari_is_trained_on_frames_that_are_kept_once(tmp_path, compiled_once):
    for module in ("ale_py", "cv2"):
        pytest.importorskip(module, reason="pip install 'jaxrl-buffers[atari]'")
    words = "ddqn gymnasium:ALE/Pong-v5 --frame-skip 4 --frame-stack 4 --total-steps 80 --start-steps 60"
    words += " --update-every 10 --capacity 200 --test-every 0 --num-test-episodes 1 --final-episodes 1"
    terminal = _train(f"{words} --env.max-num-frames-per-episode 80 --out run", tmp_path, **compiled_once)
    assert terminal.finish() == 0, terminal.screen
    assert len(terminal.screen.splitlines()) == 1, terminal.screen
    settings = RunFolder(tmp_path / "run").settings()
    assert (settings.channels, settings.hidden_sizes) == ((32, 64, 64), (512,))
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(run.restore(tmp_path / "run").buffer))
    assert num_bytes / 200 == pytest.approx(84 * 84 * (1 + 1 / 8), rel=0.02)
