"""Brax's environments inside the compiled program."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.terminal import Terminal

from algorithms import environments
from algorithms.runs import command_line
from algorithms.runs.build import build
from algorithms.runs.run_folder import RunFolder

ROOT = Path(__file__).parents[2]

if importlib.util.find_spec("brax") is None:
    pytest.skip("brax is not installed: pip install 'jaxrl-buffers[brax]'", allow_module_level=True)

# Brax reads fields of MJX's data in a way that MJX advises against.
pytestmark = pytest.mark.filterwarnings("ignore:Accessing:DeprecationWarning")


@pytest.fixture(scope="module")
def pendulum():
    return environments.make("brax:inverted_pendulum", episode_length=4)


def _run(env, num_steps: int, actions: float = 0.0, num_envs: int = 2):
    step = jax.jit(env.step)
    state, rows = jax.jit(env.reset, static_argnums=1)(jax.random.key(0), num_envs), []
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


def test_a_run_from_the_command_line_is_resumed(tmp_path, compiled_once):
    """As people do it, at a terminal on which nothing else is to be seen."""
    size = "--start-steps 40 --update-every 4 --mini-batch-size 8 --hidden-sizes 8 --test-every 0 --num-test-episodes 1"
    words = f"sac brax:inverted_pendulum {size} --env.episode-length 10 --final-episodes 1 --out run --total-steps"
    for line in (f"{words} 80", "--resume run --total-steps 120"):
        command = [sys.executable, str(ROOT / "scripts" / "train.py"), *line.split()]
        terminal = Terminal(command, {"PYTHONPATH": str(ROOT), **compiled_once}, str(tmp_path))
        assert terminal.finish() == 0, terminal.screen
        assert len(terminal.screen.splitlines()) == 1, terminal.screen
    assert "120 steps" in terminal.screen
    lines = RunFolder(tmp_path / "run").metrics()
    assert [line["steps"] for line in lines] == [80, 120]
    assert all(np.isfinite(line["loss_q"]).all() for line in lines)
