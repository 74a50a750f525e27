"""Settings of a run from a YAML file, and agents from configurations."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest
import yaml
from agents import AGENTS

import jaxrl_buffers as jb
from algorithms import DDQN, SAC, Box, Discrete, LinearDecay, Torso, presets, settings_file

SCRIPT = Path(__file__).parent.parent / "scripts" / "train.py"
TEXT = """
algorithm: ddqn
environment: CartPole-v1
plan: {total_steps: 1_200, num_envs: 4, update_every: 20, num_updates: 1, mini_batch_size: 16, test_every: 0}
buffer: prioritized
n_step: 2
gamma: 1
hidden_sizes: [8]
capacity: 1_000
agent: {learning_rate: 1e-6}
sampler: {alpha: 0.7}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("train_script_of_files", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def settings_of(script, monkeypatch):
    """Return the settings with which the script would train."""

    def parse(*arguments):
        found = []
        monkeypatch.setattr(script, "_train", lambda folder, settings, *rest: found.append((folder, settings)) or 0)
        assert script.main(list(map(str, arguments))) == 0
        return found[0][1]

    return parse


def test_what_is_left_out_is_as_in_the_preset(file):
    settings, preset = settings_file.read(file), presets.preset("ddqn", "CartPole-v1")
    assert (settings.n_step, settings.gamma, settings.hidden_sizes, settings.capacity) == (2, 1.0, (8,), 1_000)
    assert (settings.plan.total_steps, settings.plan.start_steps) == (1_200, preset.plan.start_steps)
    assert settings.agent == {**preset.agent, "learning_rate": 1e-6}
    assert settings.sampler == {**preset.sampler, "alpha": 0.7}
    settings.build()


def test_another_buffer_does_not_take_over_what_is_tuned():
    settings = settings_file.from_values({"algorithm": "ddqn", "environment": "CartPole-v1", "buffer": "uniform"})
    assert settings.sampler == {}
    settings.build()


@pytest.mark.parametrize("name", presets.PRESETS)
def test_a_run_is_repeated_from_its_settings(name, tmp_path):
    settings = dataclasses.replace(presets.preset(*name), seed=3, anneals=True)
    path = tmp_path / "config.json"  # JSON is YAML
    path.write_text(json.dumps(settings.to_dict(), indent=2))
    assert settings_file.read(path) == settings


def test_options_go_before_the_file(settings_of, file):
    assert settings_of("--config", file).build() == settings_file.read(file).build()
    changed = settings_of("--config", file, "--n-step", "5", "--agent.learning-rate", "0.5", "--num-envs", "2")
    assert (changed.n_step, changed.agent["learning_rate"], changed.plan.num_envs) == (5, 0.5, 2)
    assert changed.plan.total_steps == 1_200
    assert changed.sampler["alpha"] == 0.7
    other = settings_of("ddqn", "Acrobot-v1", "--config", file)
    assert (other.environment, other.n_step) == ("Acrobot-v1", 2)
    assert settings_of("--config", file, "--buffer", "uniform").sampler["method"] == "independent"


GOOD = {"algorithm": "ddqn", "environment": "CartPole-v1"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"algorithm": "ddqn"}, "environment: is missing"),
        ({**GOOD, "n_stp": 3}, "n_stp: is unknown (got 3), expected are: algorithm"),
        ({**GOOD, "n_step": "three"}, "n_step: got 'three', expected a whole number"),
        ({**GOOD, "n_step": 2.0}, "n_step: got 2.0, expected a whole number"),
        ({**GOOD, "anneals": 1}, "anneals: got 1, expected true or false"),
        ({**GOOD, "hidden_sizes": 64}, "hidden_sizes: got 64, expected a list"),
        ({**GOOD, "plan": 5}, "plan: got 5, expected keys with values"),
        ({**GOOD, "plan": {"total_steps": "many"}}, "plan.total_steps: got 'many', expected a whole number"),
        ({**GOOD, "plan": {"total": 5}}, "plan.total: is unknown (got 5)"),
        ({**GOOD, "plan": {"total_steps": 50_001}}, "nearest total is 50000"),
        ({**GOOD, "agent": {"polyak": "x"}}, "agent.polyak: got 'x', expected a number"),
        ({**GOOD, "agent": {"torso": {}}}, "agent.torso: is unknown"),
        ({**GOOD, "agent": {"polyak": 2.0}}, "polyak"),
        ({**GOOD, "sampler": {"method": "distinct"}}, "sampler.method: is unknown (got 'distinct')"),
        ({**GOOD, "algorithm": "ddq"}, "did you mean ddqn"),
        ({**GOOD, "environment": 3}, "environment: got 3, expected a string"),
        ({**GOOD, "buffer": "prioritised"}, "did you mean prioritized"),
        ([1, 2], "got [1, 2], expected the keys of Settings"),
    ],
)
def test_bad_files_are_one_clear_line(script, capsys, tmp_path, values, message):
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(values))
    assert script.main(["--config", str(path), "--out", str(tmp_path / "run")]) == 2
    text = capsys.readouterr()
    assert message in text.err
    assert len(text.err.splitlines()) == 1
    assert text.out == ""
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "message"), [("a: [", "cannot be read"), ("a: 1\na: 2", "given twice"), (None, "No such")]
)
def test_files_that_cannot_be_read(script, capsys, tmp_path, text, message):
    path = tmp_path / "settings.yaml"
    if text is not None:
        path.write_text(text)
    assert script.main(["--config", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_names_behind_options(script, capsys, file):
    assert script.main(["--config", str(file), "--seed", "1", "sac", "CartPole-v1"]) == 2
    assert "put it before them" in capsys.readouterr().err


@pytest.mark.parametrize("name", AGENTS)
def test_agents_survive_a_configuration(name):
    agent = AGENTS[name](schedule=LinearDecay(100, final=0.1))
    assert jb.from_yaml(yaml.safe_dump(jb.to_config(agent))) == agent


def test_an_agent_from_yaml():
    text = """
    name: DDQN
    config:
      action_space: {name: Discrete, config: {num_actions: 3}}
      torso: {name: Torso, config: {hidden_sizes: [32]}}
      learning_rate: 1e-3
    """
    assert jb.from_yaml(text) == DDQN(Discrete(3), Torso((32,)), learning_rate=1e-3)
    box = {"name": "Box", "config": {"low": [-1, 0], "high": [1, 1]}}
    assert jb.from_config({"name": "SAC", "config": {"action_space": box}}) == SAC(Box((-1.0, 0.0), (1.0, 1.0)))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "config.action_space: is missing, expected a Discrete"),
        ({"action_space": {"name": "Box", "config": {"low": [0], "high": [1]}}}, "names a Box, expected a Discrete"),
        ({"action_space": {"name": "Discrete", "config": {"num_actions": "x"}}}, "num_actions: got 'x'"),
        ({"torso": {"name": "Torso", "config": {"parent": 1}}}, "torso.config.parent: is unknown"),
        ({"schedule": {"name": "Uniform"}}, "config.schedule: got"),
    ],
)
def test_bad_agents(config, message):
    with pytest.raises(ValueError, match=message):
        jb.from_config({"name": "DDQN", "config": config})
