"""The presets learn: a part of their budgets, and a bar that an agent which does not learn cannot pass."""

from __future__ import annotations

import dataclasses

import jax
import pytest

from algorithms import evaluate
from algorithms.runs import presets
from algorithms.runs.build import build
from algorithms.training import loop

pytestmark = pytest.mark.usefixtures("optimized_code")


def final_return(algorithm, environment, total_steps):
    """Train the preset for so many steps; return the mean of 20 deterministic episodes."""
    settings = presets.preset(algorithm, environment)
    plan = dataclasses.replace(settings.plan, total_steps=total_steps, test_every=0)
    agent, buffer, env, plan = build(dataclasses.replace(settings, plan=plan))

    @jax.jit
    def train(key):
        key_train, key_test = jax.random.split(key)
        state = loop.init(key_train, agent, buffer, env, plan)
        state = loop.run(state, agent, buffer, env, plan, plan.num_iterations)
        return evaluate(agent, state.agent, env, key_test, 20)[0].mean()

    return train(jax.random.key(0))


def test_ddqn_balances_the_pole():
    assert final_return("ddqn", "CartPole-v1", 15_000) > 120  # by chance 22, always the same action 9


def test_sac_swings_the_pendulum_up():
    assert final_return("sac", "Pendulum-v1", 6_000) > -350  # by chance -1,200
