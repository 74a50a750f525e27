"""Policies are measured over complete episodes, from Python and by scripts/evaluate.py."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from support.host_walk import make_host_walk
from support.scripts import load_script
from support.trained import agent_states, save_agent, small_settings, untrained
from support.walk import Walk

from algorithms import Policy, environments, evaluate, evaluate_on_host, load_policy
from algorithms.environments import drawing
from algorithms.environments.gymnasium import from_factory
from algorithms.runs import episodes as episodes_module
from algorithms.runs.episodes import Episodes


@pytest.fixture
def main():
    return load_script("evaluate").main


def test_episodes_are_those_of_evaluate(monkeypatch):
    """In rounds of one size, of which the first has the key that was given."""
    policy = untrained(environments.make("CartPole-v1"))
    monkeypatch.setattr(episodes_module, "MOST_AT_ONCE", 4)
    played = policy.evaluate(6, key=5)
    assert played.returns.shape == played.lengths.shape == (6,)
    returns, lengths = evaluate(policy.agent, policy.state, policy.env, jax.random.key(5), 3)
    np.testing.assert_array_equal(played.returns[:3], returns)
    np.testing.assert_array_equal(played.lengths[:3], lengths)
    assert not np.array_equal(played.returns[:3], played.returns[3:])
    assert played.successes is None
    stochastic = policy.evaluate(6, deterministic=False, key=5)
    assert not np.array_equal(stochastic.returns, played.returns)


def test_episodes_on_the_host_are_those_of_evaluate_on_host():
    policy = untrained(environments.make("gymnasium:CartPole-v1"))
    played = policy.evaluate(3, key=5)
    returns, lengths = evaluate_on_host(policy.agent, policy.state, policy.env, jax.random.key(5), 3)
    np.testing.assert_array_equal(played.returns, returns)
    np.testing.assert_array_equal(played.lengths, lengths)


def test_the_same_walk_inside_and_outside_of_the_program():
    inside, outside = untrained(environments.wrap(Walk()), 1), untrained(from_factory(make_host_walk, "Walk"), 1)
    one, other = inside.evaluate(2), outside.evaluate(2)
    np.testing.assert_array_equal(one.returns, other.returns)
    np.testing.assert_array_equal(one.lengths, other.lengths)


def test_goals_that_are_reached_count_as_success():
    env = environments.make("BitFlip15-v0")
    played = untrained(env).evaluate(4)
    np.testing.assert_array_equal(played.successes, played.returns > -played.lengths)
    assert "success" in played.summary()


def test_episodes_without_an_end_are_given_up():
    policy = untrained(environments.make("CartPole-v1"))
    played = policy.evaluate(4, max_steps=3)
    assert played.summary() == {"episodes": 0, "given_up": 4}
    both = Episodes(np.array([1.0, 0.0, 3.0]), np.array([2, 0, 4])).summary()
    assert (both["episodes"], both["given_up"], both["mean_return"], both["mean_length"]) == (2, 1, 2.0, 3.0)


def test_a_summary_by_hand():
    summary = Episodes(np.array([1.0, 2.0, 3.0, 6.0], np.float32), np.array([1, 2, 3, 4]), np.array([1, 1, 1, 0], bool))
    found = summary.summary()
    assert (found["min_return"], found["max_return"], found["mean_return"]) == (1.0, 6.0, 3.0)
    # The deviation of the sample is sqrt(14 / 3), Student's t of three degrees of freedom 3.1824.
    half = 3.182446 * np.sqrt(14 / 3) / 2
    np.testing.assert_allclose(found["confidence"], [3 - half, 3 + half], rtol=1e-5)
    assert found["success"] == 0.75
    np.testing.assert_allclose(found["success_confidence"], [0.30064, 0.95441], atol=1e-5)  # Wilson's
    assert Episodes(np.full(5, 2.0), np.full(5, 1)).summary()["confidence"] == [2.0, 2.0]
    assert Episodes(np.full(1, 2.0), np.full(1, 1)).summary()["confidence"] is None


@pytest.fixture
def folder(tmp_path):
    settings = small_settings(num_seeds=2)
    save_agent(tmp_path / "run", settings, agent_states(settings))
    return tmp_path / "run"


def test_the_script_prints_a_line_for_each_seed(main, folder, capsys):
    assert main([str(folder), "--episodes", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["seed 0", "seed 1"]
    found = load_policy(folder, 1).evaluate(20).summary()
    low, high = found["confidence"]
    assert lines[1] == (
        f"seed 1: return {found['mean_return']:.1f} ({low:.1f} to {high:.1f} with 95 % confidence), range "
        f"{found['min_return']:.1f} to {found['max_return']:.1f}, length {found['mean_length']:.1f}, 20 episodes"
    )


def test_the_script_prints_json(main, folder, capsys):
    assert main([str(folder), "--episodes", "5", "--seed", "1", "--stochastic", "--episode-seed", "3", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    expected = load_policy(folder, 1).evaluate(5, deterministic=False, key=3).summary()
    assert printed == {"run": str(folder), "deterministic": False, "seeds": [{"seed": 1, **expected}]}


def test_numbers_that_are_not_finite_are_null_in_json(main, folder, capsys, monkeypatch):
    monkeypatch.setattr(Policy, "evaluate", lambda *_: Episodes(np.array([np.inf, np.nan]), np.array([1, 1])))
    assert main([str(folder), "--seed", "0", "--json"]) == 0
    seeds = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))["seeds"]
    assert seeds[0]["mean_return"] is None


def test_a_run_that_another_process_writes_to_can_be_read(main, folder, capsys):
    with episodes_lock(folder):
        assert main([str(folder), "--episodes", "2"]) == 0


def test_what_cannot_be_filmed_is_refused_before_any_episode_is_played(main, folder, capsys, monkeypatch):
    monkeypatch.setattr(drawing.importlib.util, "find_spec", lambda name: None if name == "pygame" else True)
    monkeypatch.setattr(Policy, "evaluate", lambda *_: pytest.fail("was evaluated"))
    assert main([str(folder), "--render", str(folder.parent / "film.gif")]) == 2
    assert "CartPole-v1 is drawn by pygame, which is not installed" in capsys.readouterr().err


def episodes_lock(folder):
    from algorithms.runs.run_folder import RunFolder

    return RunFolder(folder).lock()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is not the folder of a run"),
        (["RUN", "--seed", "2"], "has the seeds 0 to 1"),
        (["RUN", "--seed", "-1"], "seed"),
        (["RUN", "--episodes", "0"], "num_episodes"),
        (["RUN", "--episodes", "many"], "invalid int value: 'many'"),
        (["RUN", "--max-steps", "0"], "max_steps"),
        (["RUN", "--render", "film.avi"], "a film is a file that ends in .gif or .mp4; got film.avi"),
        (["RUN", "--render", "nowhere/film.gif"], "there is no folder"),
        (["RUN", "--nothing"], "there is no option --nothing; see evaluate.py --help"),
        ([], "the following arguments are required: RUN"),
    ],
)
def test_bad_input_is_one_line(main, folder, capsys, arguments, message):
    arguments = [str(folder) if argument == "RUN" else argument for argument in arguments]
    try:
        code = main(arguments)
    except SystemExit as error:  # of argparse
        code = error.code
    assert code == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
