"""Soft actor-critic with discrete actions: its temperature, its target entropy and its draws."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.linear import linear

from algorithms import SAC, Box, Discrete, Torso
from algorithms.agents.exploration import Gaussian


@pytest.mark.parametrize(
    ("duration", "num_updates", "ratio"),
    [(100, 0, 0.8), (100, 50, 0.5), (100, 100, 0.2), (100, 10_000, 0.2), (1, 1, 0.2)],
)
def test_the_target_entropy_falls_linearly(duration, num_updates, ratio):
    agent = SAC(Discrete(4), target_entropy_ratio=0.8, final_target_entropy_ratio=0.2, annealing_updates=duration)
    np.testing.assert_allclose(agent._target_entropy(jnp.int32(num_updates)), ratio * np.log(4), rtol=1e-5)


def test_the_target_entropy_stays_without_annealing():
    found = SAC(Discrete(4))._target_entropy(jnp.int32(10_000))
    np.testing.assert_allclose(found, 0.5 * np.log(4), rtol=1e-6)
    assert found.dtype == jnp.float32
    assert SAC(Box((-1.0,) * 3, (1.0,) * 3))._target_entropy(jnp.int32(5)) == -3


@pytest.mark.parametrize("space", [Discrete(4), Box((-1.0,), (1.0,))])
def test_a_target_entropy_of_zero_is_one(space):
    assert SAC(space, target_entropy=0.0)._target_entropy(jnp.int32(0)) == 0


def test_drawn_actions_follow_the_probabilities():
    agent = SAC(Discrete(3), Torso(()))

    @jax.jit
    def run(key_draw, key_best):
        actor, obs = linear(np.zeros((3, 2)), np.log([0.1, 0.6, 0.3])), jnp.zeros((20_000, 2))
        act = functools.partial(agent.policy.act, actor, obs, Gaussian(), ())
        return act(key_draw, False)[0], act(key_best, True)[0]

    draws, best = run(*jax.random.split(jax.random.key(1)))
    shares = np.bincount(draws, minlength=3) / 20_000
    np.testing.assert_allclose(shares, [0.1, 0.6, 0.3], atol=5 * np.sqrt(0.25 / 20_000))
    assert jnp.all(best == 1)


@pytest.mark.parametrize("learn_alpha", [True, False])
def test_a_fixed_temperature_stays(learn_alpha):
    agent = SAC(Discrete(3), Torso(()), learn_alpha=learn_alpha, initial_alpha=0.3)

    @jax.jit
    def step():
        state = agent.init(jax.random.key(0), jnp.zeros(2), jnp.int32(0))
        return agent.apply(state, jax.tree.map(jnp.ones_like, state.params)).params.log_alpha

    assert (step() == jnp.log(jnp.float32(0.3))) != learn_alpha
