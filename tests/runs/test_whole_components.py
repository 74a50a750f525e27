"""Settings files with whole components: agents and buffers as they are in Python."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from pathlib import Path

import chex
import pytest
import yaml
from support.scripts import load_script
from support.settings_files import check_refused, settings_of

import jaxrl_buffers as jb
from algorithms import (
    DDQN,
    Averaged,
    Discrete,
    LinearDecay,
    Normalized,
    Recurrent,
    RewardPrediction,
    Torso,
    environments,
)
from algorithms.environments.goals import BitFlip
from algorithms.runs import presets, run, settings_file
from algorithms.runs.build import build, complete
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings
from jaxrl_buffers import _yaml as yaml_text

ROOT = Path(__file__).parents[2]


WHOLE = yaml.safe_load("""
environment: BitFlip5-v0
plan:
  {total_steps: 120, num_envs: 4, start_steps: 80, update_every: 20, num_updates: 1, mini_batch_size: 8, test_every: 0,
  num_test_episodes: 1}
buffer:
  name: ReplayBuffer
  config:
    length: 40
    sampler:
      name: Combined
      config:
        sampler: {name: Recent, config: {sampler: {name: Prioritized, config: {alpha: 0.7}}}}
        others: [{name: LastN, config: {num_starts: 10}}]
        ratios: [0.25]
    view:
      name: Hindsight
      config: {view: {name: NStep, config: {n: 3}}, achieved: next_obs.achieved_goal, relabel: relabel_bit_flip}
agent:
  name: DDQN
  config:
    torso: {name: Torso, config: {hidden_sizes: [4]}}
    schedule: {name: LinearDecay, config: {num_steps: 100}}
    dueling: true
    addons: [{name: RewardPrediction, config: {scale: 0.5}}]
""")  # fmt: skip


@pytest.fixture(scope="module")
def script():
    return load_script("train")


def with_changes(changes):
    """Return the settings of `WHOLE` with other values at dotted paths; `...` leaves one out."""
    values = copy.deepcopy(WHOLE)
    for path, value in changes.items():
        *way, last = path.split(".")
        inner = values
        for key in way:
            inner = inner[key]
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
    return values


def whole(name, **entries):
    return {"name": name, "config": entries}


@pytest.fixture
def whole_file(tmp_path):
    path = tmp_path / "whole.yaml"
    path.write_text(yaml.safe_dump(WHOLE))
    return path


def test_whole_components_are_built():
    settings = settings_file.from_values(WHOLE)
    agent, buffer, env, _ = build(settings)
    assert settings.algorithm == "ddqn"
    addons = (RewardPrediction(scale=0.5),)
    assert agent == DDQN(Discrete(5), Torso((4,)), schedule=LinearDecay(100), dueling=True, addons=addons)
    assert buffer == jb.ReplayBuffer(
        jb.Combined(jb.Recent(jb.Prioritized(alpha=0.7)), (jb.LastN(10.0),), (0.25,)),
        jb.Hindsight(jb.NStep(n=3), **BitFlip.goal._asdict()),
        length=40,
        num_envs=4,
    )
    assert env == environments.make("BitFlip5-v0")


def test_the_file_of_the_guide():
    guide = (ROOT / "docs" / "guides" / "runs.md").read_text()
    text = re.search(r"^```yaml\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)[1]
    experiment = build(settings_file.from_values(yaml_text.parse(text)))
    assert experiment.agent.dueling
    assert experiment.buffer.sampler.sampler.alpha == 0.7


FRAMES = whole("ReplayBuffer", length=50, num_envs=4, frames=whole("Frames", stack=1))
SEQUENCES = whole("sequences", length=50, sequence_length=6)
ROLLOUT = {"environment": "CartPole-v1", "agent": {"name": "PPO"}, "buffer": whole("rollout", length=125)}
REMEMBERING = {"torso": whole("Torso", memory="gru")}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"buffer": FRAMES}, jb.ReplayBuffer(length=50, num_envs=4, frames=jb.Frames(stack=1))),
        ({"buffer": whole("prioritized", length=50, n=2)}, jb.prioritized(50, num_envs=4, n=2)),
        ({"buffer": whole("Mixture", buffers=[FRAMES, whole("uniform", length=9)])}, jb.Mixture),
        ({"buffer": SEQUENCES, "agent.config": REMEMBERING}, jb.sequences(50, 4, sequence_length=6)),
        ({"buffer": SEQUENCES, "agent.config": {}, "memory": "lstm"}, jb.sequences(50, 4, sequence_length=6)),
        ({"buffer": None, "sequence_length": 7, "agent.config": REMEMBERING, "n_step": 3}, jb.ReplayBuffer),
        ({"buffer": None, "capacity": 80, "sampler": {"name": "prioritized", "alpha": 1}}, jb.ReplayBuffer),
        ({"agent": {"learning_rate": 0.5}, "algorithm": "ddqn", "averaging": 0.9}, jb.ReplayBuffer),
        ({**ROLLOUT, "plan": {}}, jb.rollout(125, num_envs=8)),
    ],
)
def test_whole_components_stand_beside_settings(tmp_path, changes, expected):
    settings = settings_file.from_values(with_changes(changes))
    agent, buffer, _, _ = build(settings)
    assert isinstance(buffer, expected) if isinstance(expected, type) else buffer == expected
    assert isinstance(agent, Recurrent) == ("agent.config" in changes)
    assert isinstance(agent, Averaged) == ("averaging" in changes)
    if isinstance(agent, Recurrent):
        assert (agent.n_step, buffer.view.n) == (1, changes.get("n_step", 1))
        assert buffer.view.length == changes.get("sequence_length", 6)
    path = tmp_path / "config.json"
    settings = complete(settings)
    path.write_text(json.dumps(settings.to_dict()))
    assert settings_file.read(path) == Settings.from_dict(json.loads(path.read_text())) == settings


def test_what_whole_components_leave_out_is_as_in_their_classes():
    values = {"environment": "CartPole-v1", "agent": {"name": "DDQN"}, "buffer": whole("uniform", length=1_000)}
    settings, preset = settings_file.from_values(values), presets.preset("ddqn", "CartPole-v1")
    assert preset.n_step != Settings.n_step
    assert preset.normalize
    agent = DDQN(Discrete(2), Torso(preset.hidden_sizes, activation=preset.activation))
    assert build(settings).agent == Normalized(Averaged(agent, preset.averaging))
    assert build(settings).buffer == jb.uniform(1_000, preset.plan.num_envs)
    assert settings.plan == preset.plan
    wrapped = build(dataclasses.replace(settings, averaging=0.0, anneal=True)).agent
    assert isinstance(wrapped, Normalized)
    assert wrapped.agent.schedule == LinearDecay(preset.plan.num_iterations * preset.plan.num_updates)


@pytest.mark.usefixtures("compiled_once")
def test_a_run_of_whole_components(script, tmp_path, capsys):
    """It trains, it is repeated from its own settings with an option besides, and it is resumed."""
    sampler = whole("Recent", sampler=whole("Prioritized"))
    online = whole("ReplayBuffer", **{**WHOLE["buffer"]["config"], "sampler": sampler, "num_envs": 4})
    mixture = whole("Mixture", buffers=[online, whole("uniform", length=5)], ratios=[3, 1])
    path, first, repeated = tmp_path / "settings.yaml", tmp_path / "first", tmp_path / "repeated"
    path.write_text(yaml.safe_dump({**WHOLE, "buffer": mixture}))
    assert script.main(["--config", str(path), "--out", str(first), "--final-episodes", "1"]) == 0
    assert RunFolder(first).settings() == complete(settings_file.read(path))
    assert RunFolder(first).metrics()[-1]["addon0_loss"][0] > 0
    config = first / "config.json"
    arguments = ("--out", str(repeated), "--final-episodes", "1", "--total-steps", "160")
    assert script.main(["--config", str(config), *arguments]) == 0
    longer = json.loads(config.read_text())
    longer["plan"]["total_steps"] = 160
    config.write_text(json.dumps(longer))
    assert script.main(["--resume", str(first)]) == 0
    one, two = run.restore(first), run.restore(repeated)
    chex.assert_trees_all_equal((one.agent, one.buffer), (two.agent, two.buffer))
    longer["buffer"]["config"]["buffers"][1]["config"]["length"] = 6
    longer["agent"]["config"]["torso"]["config"]["hidden_sizes"] = [5]
    config.write_text(json.dumps(longer))
    capsys.readouterr()
    assert script.main(["--resume", str(first)]) == 2
    error = capsys.readouterr().err
    assert "other settings: buffer.config.buffers, agent.config.torso.config.hidden_sizes;" in error


def test_options_beside_whole_components(script, whole_file, capsys):
    changed = settings_of("--config", whole_file, "--total-steps", "200", "--num-envs", "2", "--averaging", "0.5")
    assert (changed.plan.total_steps, changed.averaging) == (200, 0.5)
    assert (changed.buffer, changed.agent) == (WHOLE["buffer"], WHOLE["agent"])
    assert build(changed).buffer.num_envs == 2
    named = settings_of("--config", whole_file, "--sampler", "recent", "--capacity", "80", "--sampler.eta", "0.9")
    assert build(named).buffer == jb.ReplayBuffer(jb.Recent(eta=0.9), length=20, num_envs=4)
    for option in ("--capacity", "--n-step", "--sampler.alpha", "--hidden-sizes", "--agent.polyak", "--anneal"):
        assert script.main(["--config", str(whole_file), option, "1"]) == 2
        assert option in capsys.readouterr().err


SAMPLER = "buffer.config.sampler.config.sampler.config.sampler.config"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{SAMPLER}.alpha": "high"}, f"{SAMPLER}.alpha: got 'high', expected a number."),
        ({f"{SAMPLER}.alpha": -1}, f"{SAMPLER}: Prioritized(alpha=-1.0)"),
        ({"buffer.config.size": 3}, "buffer.config.size: is unknown (got 3)"),
        ({"buffer.config.length": ...}, "buffer.config.length: is missing"),
        ({"buffer.config": 5}, "buffer.config: got 5"),
        ({"buffer": {"length": 5}}, "buffer: got {'length': 5}, expected a ReplayBuffer as"),
        ({"buffer": 5}, "buffer: got 5, expected keys with values"),
        ({"buffer.name": "RingBuffer"}, "buffer.name: 'RingBuffer' is unknown"),
        ({"buffer": {"name": "Uniform"}}, "buffer.name: 'Uniform' names a Uniform, expected a ReplayBuffer"),
        ({"buffer": whole("Rollout", length=5)}, "ddqn does not learn from the buffer 'Rollout'; use uniform"),
        ({**ROLLOUT, "buffer": whole("uniform", length=5)}, "ppo does not learn from the buffer 'uniform'"),
        ({**ROLLOUT, "plan": {"update_every": 2_000}}, "the rollout takes 1000 steps"),
        ({"buffer.config.num_envs": 2}, "the buffer is for 2 environments and the plan for 4"),
        ({"buffer": SEQUENCES}, "sequences are for agents with a memory"),
        ({"agent.config": REMEMBERING}, "an agent with a memory learns from sequences"),
        (
            {"buffer": SEQUENCES, "agent.config": REMEMBERING, "n_step": 3},
            "n_step: got 3, but buffer.config takes its place; leave it out.",
        ),
        *[
            ({name: value}, f"{name}: got {value!r}, but buffer.config takes its place; leave it out.")
            for name, value in {
                "capacity": 5,
                "n_step": 1,
                "gamma": 0.99,
                "hindsight": "future",
                "hindsight_ratio": 0.8,
                "sampler": {"alpha": 0.5},
                "sequence_length": 20,
                "burn_in": 5,
            }.items()
        ],
        *[
            ({name: value}, "but agent.config.torso takes its place; leave it out.")
            for name, value in {"hidden_sizes": [4], "activation": "relu", "memory": "gru", "memory_size": 64,
                                "channels": [4], "kernel_sizes": [5], "strides": [2]}.items()
        ],
        ({"anneal": True}, "anneal: got True, but agent.config.schedule takes its place; leave it out."),
        ({"agent.name": "DQN"}, "agent.name: got 'DQN', expected one of DDQN, DDPG"),
        ({"agent.name": ...}, "agent.name: got None, expected one of DDQN, DDPG"),
        ({"agent.learning_rate": 1e-3}, "agent.learning_rate: is unknown; known are: name, config."),
        ({"agent.config": [1]}, "agent.config: got [1], expected keys with values"),
        ({"agent.config.polyac": 1}, "agent.config.polyac: is unknown (got 1)"),
        ({"agent.config.polyak": 2}, "agent.config: DDQN(polyak=2.0)"),
        ({"agent.config.action_space": whole("Discrete", num_actions=5)}, "agent.config.action_space: got"),
        ({"agent.config.addons": [whole("RewardPrediction", scale="x")]}, "agent.config.addons.0.config.scale: got"),
        ({"agent.config.torso.config.activation": "rellu"}, "agent.config.torso.config: there is no activation"),
        ({"algorithm": "sac"}, "algorithm: got 'sac', expected ddqn"),
        ({"environment": "Pendulum-v1"}, "ddqn cannot act in Pendulum-v1"),
        ({"environment": ...}, "environment: is missing"),
    ],
)  # fmt: skip
def test_bad_components_are_one_clear_line(script, capsys, tmp_path, changes, message):
    check_refused(script, capsys, tmp_path, with_changes(changes), message)


def test_the_file_is_named_with_a_bad_component(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(with_changes({"agent.config.dueling": 3})))
    with pytest.raises(ValueError, match=r"settings.yaml: agent.config.dueling: got 3, expected true or false"):
        settings_file.read(path)


def test_settings_in_place_of_which_a_component_stands_are_left_alone():
    settings = settings_file.from_values(WHOLE)
    with pytest.raises(ValueError, match=r"gamma: got 0.5, but buffer.config takes"):
        build(dataclasses.replace(settings, gamma=0.5))
    with pytest.raises(ValueError, match=r"algorithm: got 'sac', expected ddqn"):
        build(dataclasses.replace(settings, algorithm="sac"))
