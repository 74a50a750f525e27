"""Hindsight by name in a training run, with every sampler."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest

import jaxrl_buffers as jb
from algorithms import Plan
from algorithms.runs import run
from algorithms.runs.build import build
from algorithms.runs.settings import Settings
from algorithms.runs.settings_checks import CHOICES
from algorithms.training import loop

PLAN = Plan(
    total_steps=200,
    num_envs=4,
    start_steps=120,
    update_every=40,
    num_updates=2,
    mini_batch_size=32,
    test_every=0,
    num_test_episodes=4,
)
SETTINGS = Settings(
    "ddqn", "BitFlip5-v0", PLAN, hindsight="future", hindsight_ratio=1.0, n_step=2, hidden_sizes=(8,), capacity=200
)


SAMPLERS = (
    {"name": "uniform"},
    {"name": "prioritized"},
    {"name": "recent"},
    {"name": "recent", "base": {"name": "prioritized"}},
    {"name": "last_n", "num_starts": 20},
    {"name": "episodic"},
)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_every_sampler_learns_in_hindsight(sampler):
    agent, buffer, env, plan = build(dataclasses.replace(SETTINGS, sampler=sampler))
    assert isinstance(buffer.view, jb.Hindsight)
    assert buffer.view.view == jb.NStep(2, SETTINGS.gamma)

    @jax.jit
    def train(key):
        state = loop.init(key, agent, buffer, env, plan)
        after = loop.run(state, agent, buffer, env, plan, 2)
        return state, after, buffer.sample(after.buffer, key, 400)

    before, after, sample = train(jax.random.key(0))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.agent))
    moved = jax.tree.map(lambda old, new: np.any(old != new), before.agent.params, after.agent.params)
    assert all(jax.tree.leaves(moved))
    batch = sample.batch
    np.testing.assert_array_equal(batch.obs["desired_goal"], batch.next_obs["desired_goal"])
    reached = np.all(np.asarray(batch.next_obs["achieved_goal"] == batch.next_obs["desired_goal"]), axis=1)
    np.testing.assert_array_equal(batch.discount == 0, reached)  # an episode ends where its new goal is reached
    assert np.mean(reached) > 0.4  # with the goals that were pursued it would be less than a tenth


def test_ratios_and_strategies_are_passed_on():
    for strategy in CHOICES["hindsight"][1:]:
        view = build(dataclasses.replace(SETTINGS, hindsight=strategy, hindsight_ratio=0.3)).buffer.view
        assert (view.strategy, view.ratio) == (strategy, 0.3)
    assert isinstance(build(dataclasses.replace(SETTINGS, hindsight="none")).buffer.view, jb.NStep)
    assert Settings("ddqn", "BitFlip5-v0", PLAN).hindsight == "none"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"environment": "CartPole-v1"}, "CartPole-v1 has no goals"),
        ({"hindsight": "past"}, "must be one of 'none', 'final'"),
        ({"hindsight_ratio": 1.5}, "hindsight_ratio"),
        ({"algorithm": "ppo", "n_step": 1}, "off-policy"),
    ],
)
def test_what_does_not_go_together(changes, message):
    with pytest.raises(ValueError, match=message):
        build(dataclasses.replace(SETTINGS, **changes))


def test_double_q_learning_reaches_its_goals(tmp_path):
    plan = dataclasses.replace(PLAN, total_steps=120 + 40 * 80, num_updates=20, mini_batch_size=64)
    agent = {"learning_rate": 2e-3, "polyak": 0.95, "epsilon_decay": 0.995, "max_grad_norm": 10.0}
    settings = dataclasses.replace(
        SETTINGS, plan=plan, hindsight_ratio=0.8, n_step=1, gamma=0.95, hidden_sizes=(64,), capacity=4_000, agent=agent
    )
    result = run.start(settings, tmp_path / "run", run.Options(final_episodes=100))
    assert result["mean_success"] > 0.9
    assert result["success_of_seeds"] == [result["mean_success"]]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["mean_success"] == result["mean_success"]
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert line["success"] == [np.mean(np.array(line["returns"]) > -5)]
