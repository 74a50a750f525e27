"""Agents from dicts."""

from __future__ import annotations

import pytest
import yaml
from support.agents import AGENTS

import jaxrl_buffers as jb
from algorithms import (
    DDQN,
    SAC,
    Box,
    Discrete,
    LinearDecay,
    Torso,
)


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
