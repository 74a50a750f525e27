"""Budgets are met exactly, or refused with the nearest that can be met."""

from __future__ import annotations

import pytest

import jaxrl_buffers as jb
from algorithms import Plan


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
        ({"total_steps": 900}, "nearest total is 1050"),
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
