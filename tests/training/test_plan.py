"""Budgets are met exactly, or refused with the nearest that can be met."""

from __future__ import annotations

import dataclasses

import pytest

import jaxrl_buffers as jb
from algorithms import Plan
from algorithms.runs import presets, settings_file
from algorithms.runs.build import build
from algorithms.runs.settings import Settings


def test_iterations_add_up():
    plan = Plan(total_steps=10_000, num_envs=8, start_steps=800, update_every=16, num_updates=4, test_every=1_600)
    assert plan.start_steps + plan.num_iterations * plan.update_every == 10_000
    assert plan.iterations_per_test == 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"total_steps": 0}, "at least 1"),
        ({"total_steps": -7}, "at least 1"),
        ({"total_steps": 2**31 + 1000}, r"2\*\*31"),
        ({"total_steps": 1_070, "start_steps": 1_000, "update_every": 50}, "nearest total is 1050 or 1100"),
        ({"total_steps": 2_001, "num_envs": 2}, "nearest total is 2000 or 2002"),
        ({"total_steps": 900}, "nearest total is 1050, or lower `start_steps`"),
        ({"num_envs": 0}, "at least 1"),
        ({"num_envs": 3, "start_steps": 1_000}, "`start_steps` must be a multiple of num_envs=3; 999 or 1002 would do"),
        ({"num_envs": 20, "update_every": 50}, "`update_every` must be a multiple of num_envs=20; 40 or 60 would do"),
        ({"start_steps": -1}, "at least 0"),
        ({"update_every": 0}, "at least 1"),
        ({"num_updates": 0}, "at least 1"),
        ({"mini_batch_size": 0}, "at least 1"),
        ({"mini_batch_size": 2.5}, "whole number"),
        ({"test_every": -1}, "at least 0"),
        ({"test_every": 70}, "`test_every` must be a multiple of update_every=50; 50 or 100 would do"),
        ({"num_test_episodes": 0}, "at least 1"),
    ],
)
def test_plans_that_cannot_be_met(options, message):
    with pytest.raises(ValueError, match=message):
        Plan(**{"total_steps": 2_000, **options})


@pytest.mark.parametrize(
    ("buffer", "options", "message"),
    [
        (jb.uniform(100), {"mini_batch_size": 101}, "only 100 samples can be drawn after 1000 first steps"),
        (jb.uniform(2_000), {"mini_batch_size": 1_001}, "only 1000 samples"),
        (jb.uniform(2_000, 2), {}, "for 2 environments and the plan for 1"),
        (jb.uniform(40), {"mini_batch_size": 8}, "holds only 40 steps"),
        (jb.sequences(2_000, sequence_length=64, period=8), {"mini_batch_size": 120}, "only 117 samples"),
        (jb.uniform(2_000), {"start_steps": 0}, "only 0 samples"),
        (jb.ReplayBuffer(frames=jb.Frames(stack=4), length=100), {"mini_batch_size": 98}, "only 97 samples"),
        (jb.rollout(10), {"start_steps": 0}, "the rollout takes 10 steps"),
        (jb.rollout(50), {}, "do not learn from random steps"),
        (jb.rollout(50), {"start_steps": 0, "mini_batch_size": 20}, "3 minibatches of 20"),
    ],
)
def test_buffers_that_do_not_fit(buffer, options, message):
    with pytest.raises(ValueError, match=message):
        Plan(total_steps=2_000, **options).check_buffer(buffer)


def test_a_buffer_that_fits():
    Plan(total_steps=2_000, mini_batch_size=1_000).check_buffer(jb.uniform(1_000))


def test_a_rollout_is_gone_through_in_whole_epochs():
    options = {"num_envs": 5, "start_steps": 0, "update_every": 50, "num_updates": 12, "mini_batch_size": 15}
    plan = Plan(total_steps=2_000, **options)
    plan.check_buffer(jb.rollout(10, 5))
    assert (plan.num_minibatches, plan.num_epochs) == (4, 3)


PAIRS = [*presets.PRESETS, ("ddqn", "Acrobot-v1"), ("ppo", "Acrobot-v1"), ("sac", "MountainCarContinuous-v0")]


def with_envs(pair, num_envs, **entries):
    algorithm, environment = pair
    values = {"algorithm": algorithm, "environment": environment, "plan": {"num_envs": num_envs}, **entries}
    return settings_file.from_values(values)


NUMBERS = sorted({*range(1, 33), *(round(1.2**power) for power in range(20, 38)), 97, 128, 256, 500, 512, 999, 1_000})


@pytest.mark.parametrize("pair", PAIRS)
def test_every_preset_follows_the_number_of_environments(pair):
    tuned = build(presets.preset(*pair)).plan
    for num_envs in NUMBERS:
        settings = with_envs(pair, num_envs)
        plan = build(settings).plan  # which checks that the buffer fits, too
        assert plan.num_envs == num_envs
        assert tuned.total_steps <= plan.total_steps < tuned.total_steps + plan.update_every
        assert tuned.update_every <= plan.update_every < tuned.update_every + num_envs
        assert tuned.test_every <= plan.test_every < tuned.test_every + plan.update_every
        assert tuned.start_steps <= plan.start_steps < plan.total_steps / 3  # a memory needs whole sequences
        if plan.start_steps and tuned.total_steps % num_envs == 0:
            assert plan.total_steps == tuned.total_steps
        ratio = plan.num_updates / plan.update_every * tuned.update_every / tuned.num_updates
        assert 2 / 3 <= ratio <= 4 / 3 or plan.num_updates <= 2
        assert 0.75 < plan.mini_batch_size / tuned.mini_batch_size < 1.35
    assert build(with_envs(pair, tuned.num_envs)).plan == tuned


def test_sequences_begin_with_enough_rows():
    """Sixteen rows of each environment make one sequence; the tuned first steps would be only four."""
    plan = build(with_envs(("ddqn", "MaskedCartPole-v1"), 500)).plan
    assert plan.start_steps == 16 * 500
    with pytest.raises(ValueError, match="only 0 samples can be drawn after 2000 first steps"):
        build(with_envs(("ddqn", "MaskedCartPole-v1"), 500, plan={"num_envs": 500, "start_steps": 2_000}))


def test_minibatches_of_rollouts_follow():
    plan = build(with_envs(("ppo", "CartPole-v1"), 16)).plan
    assert (plan.update_every, plan.num_minibatches, plan.num_epochs) == (1_008, 4, 10)
    plan = build(with_envs(("ppo", "CartPole-v1"), 3, memory="gru")).plan
    assert plan.num_minibatches == 3  # of whole environments


def test_what_was_given_stays():
    plan = Plan(total_steps=50_000, num_envs=16, num_updates=7)
    assert (plan.total_steps, plan.num_updates, plan.update_every) == (50_000, 7, 64)
    assert plan.start_steps + plan.num_iterations * plan.update_every == 50_000
    assert Plan(total_steps=100_000, num_envs=16, start_steps=0, update_every=2_000).update_every == 2_000
    assert Plan(total_steps=100_000, num_envs=16, start_steps=0).update_every == 80
    for name, value, message in [
        ("update_every", 200, "`update_every` must be a multiple of num_envs=16; 192 or 208 would do"),
        ("start_steps", 1_000, "`start_steps` must be a multiple of num_envs=16; 992 or 1008 would do"),
        ("test_every", 2_000, "`test_every` must be a multiple of update_every=208; 1872 or 2080 would do"),
        ("total_steps", 50_001, "the nearest total is 50000 or 50016"),
        ("num_updates", 2**30, "lower `num_updates`"),
    ]:
        with pytest.raises(ValueError, match=message):
            with_envs(("ddqn", "CartPole-v1"), 16, plan={"num_envs": 16, name: value})


def test_plain_numbers_are_written():
    settings = with_envs(("ddqn", "CartPole-v1"), 16)
    assert {type(value) for value in settings.to_dict()["plan"].values()} == {int, str}
    assert Settings.from_dict(settings.to_dict()) == settings


def test_plans_follow_when_they_are_changed():
    plan = dataclasses.replace(Plan(total_steps=12_000), num_envs=30)
    assert (plan.start_steps, plan.update_every, plan.num_updates) == (1_020, 60, 60)
    same = Plan(**plan.to_dict())
    assert same == plan
    with pytest.raises(ValueError, match="must be a multiple of num_envs=7"):
        dataclasses.replace(same, num_envs=7)
