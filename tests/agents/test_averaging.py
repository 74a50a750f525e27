"""Averaged parameters around agents."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import DDQN, Averaged, Discrete, Normalized, Plan, Recurrent, Torso
from algorithms.runs.build import build
from algorithms.runs.settings import Settings

OBS = jnp.zeros(3)
SMALL = DDQN(Discrete(2), Torso((4,)), initial_epsilon=0.0, final_epsilon=0.0, learning_rate=0.1)
REMEMBERING = Recurrent(DDQN(Discrete(2), Torso((4,), memory="gru", memory_size=4)))


@jax.jit
def init(agent):
    return agent.init(jax.random.key(0), OBS, agent.action_space.example)


@jax.jit
def stepped(agent, state):
    """Take three steps along gradients of ones; return all states."""
    states = [state]
    for _ in range(3):
        inner = states[-1].agent.params
        states.append(agent.apply(states[-1], jax.tree.map(jnp.ones_like, inner)))
    return states


@pytest.mark.parametrize("rate", [0.0, 0.75, 1.0])
def test_the_average_follows(rate):
    agent = Averaged(SMALL, rate)
    states = stepped(agent, init(agent))
    expected = [np.float64(leaf) for leaf in jax.tree.leaves(states[0].agent.params)]
    for state in states[1:]:
        moved = jax.tree.leaves(state.agent.params)
        expected = [rate * old + (1 - rate) * np.float64(new) for old, new in zip(expected, moved, strict=True)]
    for leaf, wanted in zip(jax.tree.leaves(states[-1].params), expected, strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=1e-5, atol=1e-6)


def test_only_deterministic_acting_goes_by_the_average():
    agent = Averaged(SMALL)
    state = init(agent)
    opposite = jax.tree.map(jnp.negative, state.agent.params)
    state = state._replace(params=opposite)
    obs, key = jax.random.normal(jax.random.key(1), (64, 3)), jax.random.key(2)
    averaged, explored = (agent.act(state, obs, (), key, deterministic=flag)[0] for flag in (True, False))
    by_opposite, by_params = (
        SMALL.act(state.agent._replace(params=params), obs, (), key, deterministic=True)[0]
        for params in (opposite, state.agent.params)
    )
    np.testing.assert_array_equal(averaged, by_opposite)
    np.testing.assert_array_equal(explored, by_params)
    assert np.any(averaged != explored)


def test_memories_are_those_of_the_averaged_networks():
    agent = Averaged(REMEMBERING)
    state = init(agent)
    state = state._replace(params=jax.tree.map(lambda leaf: leaf + 0.5, state.params))
    obs = jnp.ones((2, 3))
    carries = [
        agent.act(state, obs, agent.initial_carry(2), jax.random.key(0), deterministic=flag)[1]
        for flag in (True, False)
    ]
    whole = state.agent._replace(params=state.params)
    expected = REMEMBERING.act(whole, obs, agent.initial_carry(2), jax.random.key(0), deterministic=True)[1]
    for found, other, wanted in zip(*map(jax.tree.leaves, (*carries, expected)), strict=True):
        np.testing.assert_array_equal(found, wanted)
        if found.dtype != bool:
            assert np.any(found != other)


def test_settings_put_it_between_memory_and_normalization():
    plan = Plan(total_steps=2_000, start_steps=1_000)
    agent = build(Settings("ddqn", "CartPole-v1", plan, memory="gru", averaging=0.9, normalize=True)).agent
    assert isinstance(agent, Normalized)
    assert isinstance(agent.agent, Averaged)
    assert isinstance(agent.agent.agent, Recurrent)
    assert not isinstance(build(Settings("ddqn", "CartPole-v1", plan)).agent, Averaged)


@pytest.mark.parametrize("rate", [-0.1, 1.1])
def test_bad_rates(rate):
    with pytest.raises(ValueError, match="rate"):
        Averaged(SMALL, rate)
    with pytest.raises(ValueError, match="averaging"):
        build(Settings("ddqn", "CartPole-v1", Plan(total_steps=2_000, start_steps=1_000), averaging=rate))


def test_states_without_parameters_cannot_be_averaged():
    agent = Averaged(Normalized(SMALL))
    with pytest.raises(ValueError, match=r"Averaged\(Normalized\).* no `params` .* Normalized\(Averaged\(agent\)\)"):
        agent.init(jax.random.key(0), OBS, agent.action_space.example)
