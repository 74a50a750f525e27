"""Brax's environments inside the compiled program."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.guides import blocks
from support.terminal import Terminal

import jaxrl_buffers as jb
from algorithms import SAC, Plan, Torso, environments, load_policy, train
from algorithms.runs import command_line, run
from algorithms.runs.build import build
from algorithms.runs.run_folder import RunFolder
from jaxrl_buffers import checkpoint

ROOT = Path(__file__).parents[2]
FEW = run.Options(final_episodes=2)

if importlib.util.find_spec("brax") is None:
    pytest.skip("brax is not installed: pip install 'jaxrl-buffers[brax]'", allow_module_level=True)

# Brax reads fields of MJX's data in a way that MJX advises against.
pytestmark = pytest.mark.filterwarnings("ignore:Accessing:DeprecationWarning")


@pytest.fixture(scope="module")
def pendulum():
    return environments.make("brax:inverted_pendulum", episode_length=4)


@functools.cache
def _compiled(env):
    return jax.jit(env.reset, static_argnums=1), jax.jit(env.step)


def _run(env, num_steps: int, actions: float = 0.0, num_envs: int = 2):
    reset, step = _compiled(env)
    state, rows = reset(jax.random.key(0), num_envs), []
    for number in range(num_steps):
        action = jnp.full((num_envs, env.action_space.size), actions, jnp.float32)
        before = state
        state, transition, finished = step(state, action, jax.random.key(number))
        rows.append((before, transition, finished, state))
    return rows


def test_a_time_limit_truncates_and_shows_the_final_observation(pendulum):
    rows = _run(pendulum, 9)
    ended = [np.asarray(finished.ended).tolist() for _, _, finished, _ in rows]
    assert ended == [[number in (3, 7)] * 2 for number in range(9)]
    raw = jax.jit(pendulum.env.env.step)
    for before, transition, finished, after in rows:
        np.testing.assert_array_equal(transition.truncated, finished.ended)
        assert not np.asarray(transition.terminated).any()
        one = jax.tree.map(lambda leaf: leaf[0], before.inner.inner)
        expected = raw(one, transition.action[0])  # what Brax says, without any wrapper
        np.testing.assert_allclose(transition.next_obs[0], expected.obs, rtol=1e-5, atol=1e-6)
        is_same = np.allclose(transition.next_obs, after.obs)
        assert is_same != np.asarray(finished.ended).any()  # behind the end comes another first state


def test_episodes_begin_anew_and_not_all_alike(pendulum):
    rows = _run(pendulum, 9)
    begins = [np.asarray(rows[number][0].obs) for number in (0, 4, 8)]
    assert len(np.unique(np.concatenate(begins), axis=0)) == 6


def test_a_pole_that_falls_ends_the_task():
    rows = _run(environments.make("brax:inverted_pendulum"), 40, actions=1.0)
    ends = [transition for _, transition, finished, _ in rows if np.asarray(finished.ended).any()]
    assert ends
    assert all(np.asarray(row.terminated).any() and not np.asarray(row.truncated).any() for row in ends)
    assert all(abs(np.asarray(row.next_obs)[np.asarray(row.terminated), 1]).min() > 0.2 for row in ends)


def test_ant_has_its_shapes():
    env = environments.make("brax:ant")
    assert (env.name, env.obs.shape, env.action_space.size, env.max_episode_length) == ("brax:ant", (27,), 8, 1000)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="did you mean ant"):
        environments.make("brax:ants")


def test_equal_environments_are_one():
    assert environments.make("brax:inverted_pendulum") is environments.make("brax:inverted_pendulum")
    assert environments.make("brax:inverted_pendulum") is not environments.make(
        "brax:inverted_pendulum", episode_length=4
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sac brax:ants", "Brax has no environment 'ants'; did you mean ant"),
        ("ddqn brax:inverted_pendulum", "ddqn cannot act in brax:inverted_pendulum, which has 1 continuous action;"),
        ("sac brax:inverted_pendulum --processes", "brax:inverted_pendulum runs inside the compiled program"),
        ("sac brax:inverted_pendulum --env.legs 2", "brax:inverted_pendulum does not take {'legs': 2}"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(words, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        build(command_line.parse(words.split()).settings)
    assert "\n" not in str(error.value)


def test_without_brax_it_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "algorithms.environments.brax")
    monkeypatch.setitem(sys.modules, "brax", None)
    with pytest.raises(ValueError, match=re.escape("pip install 'jaxrl-buffers[brax]'")):
        environments.make("brax:ant")


def test_agents_train_in_its_environments(pendulum):
    """As far as shapes and types go: how it is compiled is the same for all environments."""
    plan = Plan(total_steps=80, start_steps=40, update_every=4, mini_batch_size=8, num_test_episodes=1)
    agent, buffer = SAC(pendulum.action_space, Torso((8,))), jb.prioritized(100, 1)
    state, metrics = jax.eval_shape(lambda key: train(key, agent, buffer, pendulum, plan), jax.random.key(0))
    assert state.buffer.storage.rows.structure.obs.shape == (4,)
    assert metrics["returns"].shape[-1] == 1


def test_a_state_goes_on_from_a_checkpoint(pendulum, tmp_path):
    (*_, before), (_, expected, *_) = _run(pendulum, 2)
    checkpoint.save(tmp_path / "state", before)
    restored = checkpoint.restore(tmp_path / "state", jax.eval_shape(lambda: before))
    _, transition, _ = _compiled(pendulum)[1](restored, expected.action, jax.random.key(1))
    chex.assert_trees_all_equal(transition, expected)


def test_a_run_from_the_command_line_is_resumed(tmp_path, compiled_once):
    """As people do it, at a terminal on which nothing else is to be seen; in Brax's environment for short tests."""
    size = "--start-steps 40 --update-every 4 --mini-batch-size 8 --hidden-sizes 8 --test-every 0 --num-test-episodes 1"
    words = f"sac brax:fast {size} --env.episode-length 10 --final-episodes 1 --out run --total-steps"
    for line in (f"{words} 80", "--resume run --total-steps 120"):
        command = [sys.executable, str(ROOT / "scripts" / "train.py"), *line.split()]
        terminal = Terminal(command, {"PYTHONPATH": str(ROOT), **compiled_once}, str(tmp_path))
        assert terminal.finish() == 0, terminal.screen
        assert len(terminal.screen.splitlines()) == 1, terminal.screen
    assert "120 steps" in terminal.screen
    lines = RunFolder(tmp_path / "run").metrics()
    assert [line["steps"] for line in lines] == [80, 120]
    assert all(np.isfinite(line["loss_q"]).all() for line in lines)


def test_a_function_that_returns_an_environment_of_brax(tmp_path):
    """It trains, resumes and is evaluated like any other; the metrics of Brax are its info."""
    options = ["--total-steps", "40", "--num-envs", "2", "--start-steps", "16", "--update-every", "8", "--num-updates"]
    options += ["1", "--mini-batch-size", "8", "--test-every", "24", "--hidden-sizes", "8", "--num-test-episodes", "2"]
    options += ["--info", "distance", "--out", str(tmp_path / "run")]
    result = command_line.parse(["sac", "support.slide:make_short", *options]).train(FEW)[""]
    assert (result["steps"], result["mean_length"]) == (40, 6)
    metrics = RunFolder(tmp_path / "run").metrics()[-1]
    assert metrics["info_distance"] > [0.0]
    assert metrics["info_distance_at_end"] > [0.0]
    assert metrics["info_distance"] != metrics["info_distance_at_end"]
    assert run.resume(tmp_path / "run", FEW, total_steps=48)["steps"] == 48
    policy = load_policy(tmp_path / "run")
    assert policy.evaluate(num_episodes=3).returns.shape == (3,)
    assert policy(np.zeros(2, np.float32)).shape == (1,)


def test_the_guide(capsys):
    """Its code runs and prints what is written below it, and its commands are understood."""
    parts = {language: text for language, _, text in blocks("brax")}
    exec(compile(parts["python"], "brax.md", "exec"), {})
    assert capsys.readouterr().out == parts["text"]
    commands = [line.removeprefix("python scripts/train.py ").split() for line in parts["bash"].splitlines()]
    settings = [command_line.parse(command).settings for command in commands]
    assert [one.environment for one in settings] == ["brax:inverted_pendulum", "brax:ant", "brax:ant"]
    with jax.numpy_rank_promotion("allow"):  # Brax's springs need it
        assert build(settings[1]).env.max_episode_length == 500
    assert build(settings[2]).env.info_names == ("x_velocity", "reward_ctrl")


def test_the_time_limit_of_an_environment_of_ones_own():
    env = environments.make("support.slide:make_env")
    assert env.max_episode_length == 1_000
    rows = _run(environments.make("support.slide:make_short"), 7)
    assert [bool(row[1].truncated.all()) for row in rows] == [False] * 5 + [True, False]
    _, transition, _, after = rows[5]
    np.testing.assert_allclose(transition.next_obs[:, 0], transition.obs[:, 0])  # nobody pushed
    assert not np.any(transition.next_obs[:, 0] == after.obs[:, 0])
    pushed = _run(env, 6, actions=1.0)
    assert any(row[1].terminated.any() for row in pushed)
    assert not any(row[1].truncated.any() for row in pushed)
    with pytest.raises(ValueError, match=r"not every step of .* has the info 'speed'; choose from: distance"):
        env.with_info(("speed",))
    with pytest.raises(ValueError, match="make_wrapped has Brax's EpisodeWrapper around it"):
        environments.make("support.slide:make_wrapped")
