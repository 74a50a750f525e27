"""Agents from dicts."""

from __future__ import annotations

import inspect

import pytest
import yaml
from support.agents import AGENTS

import algorithms
import jaxrl_buffers as jb
from algorithms import (
    DDQN,
    SAC,
    Box,
    Discrete,
    LinearDecay,
    Torso,
)
from jaxrl_buffers._config_schema import COMPONENTS
from jaxrl_buffers.component import Component


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


@pytest.mark.parametrize("package", [algorithms, jb])
def test_every_public_component_comes_from_a_dict(package):
    public = {name: getattr(package, name) for name in package.__all__}
    found = {name for name, value in public.items() if inspect.isclass(value) and issubclass(value, Component)}
    assert len(found) > 8
    found -= {"DataParallel", "Sharded"}  # only a program that runs on a mesh makes them
    assert {name for name in found if COMPONENTS.get(name) is not public[name]} == set()
