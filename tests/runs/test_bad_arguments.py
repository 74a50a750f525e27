"""Bad arguments in Python are refused where they are given."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import jaxrl_buffers as jb
from algorithms import DDPG, DDQN, MPO, PPO, SAC, TD3, Averaged, Box, Discrete, Normalized, Plan, Torso
from algorithms.runs.build import build
from algorithms.runs.settings import Settings

HUGE = 10**5000  # Python does not write it out
DISCRETE, BOX = Discrete(2), Box((-1.0,), (1.0,))


PLAN = Plan(total_steps=2_000)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *[(lambda agent=agent, space=space: agent(space, max_grad_norm=0), r"max_grad_norm=0\): .* above 0")
          for agent, space in ((DDQN, DISCRETE), (DDPG, BOX), (TD3, BOX), (SAC, BOX), (MPO, BOX), (PPO, BOX))],
        *[(lambda agent=agent, space=space: agent(space, target_update_interval=2**31), "at most 2147483647")
          for agent, space in ((DDQN, DISCRETE), (DDPG, BOX), (TD3, BOX), (SAC, BOX), (MPO, BOX))],
        (lambda: DDQN(DISCRETE, learning_rate=float("inf")), "finite in 32 bits"),
        (lambda: DDQN(DISCRETE, learning_rate=10**400), r"401 characters\).*finite in 32 bits"),
        (lambda: DDQN(DISCRETE, learning_rate=HUGE), "very many digits.*finite in 32 bits"),
        (lambda: DDQN(DISCRETE, learning_rate=b"1"), "must be a number"),
        (lambda: DDQN(DISCRETE, dueling="no"), r"dueling='no'\).*True or False"),
        (lambda: DDQN(DISCRETE, target_update_interval=1.5), "whole number"),
        (lambda: SAC(BOX, initial_alpha=0), "above 0"),
        (lambda: SAC(BOX, target_entropy=float("nan")), "target_entropy=nan"),
        (lambda: Normalized(DDQN(DISCRETE), clip=0), "above 0"),
        (lambda: Normalized(DDQN(DISCRETE), clip=0.0), "above 0"),
        (lambda: Normalized(DDQN), "give an agent, such as"),
        (lambda: Averaged(3), "give an agent, such as"),
        (lambda: Torso(hidden_sizes=3), "must be a tuple"),
        (lambda: Torso(activation=3), "no activation 3"),
        (lambda: Torso(activation=["relu"]), "no activation"),
        (lambda: jb.Prioritized(initial=np.float64("inf")), "finite in 32 bits"),
        (lambda: jb.ReplayBuffer(length=HUGE), "very many digits.*less than 2"),
        (lambda: jb.NStep(n=2**31), "less than 2"),
        (lambda: jb.Uniform(method=["independent"]), "must be one of"),
        (lambda: jb.from_config({"name": "Uniform", "config": {3: 4}}), "config.3: is unknown"),
        (lambda: build(Settings(["ddqn"], "CartPole-v1", PLAN)), "no algorithm"),
        (lambda: build(Settings("ddqn", 3, PLAN)), "environment=3"),
        (lambda: build(Settings("ddqn", "CartPole-v1", 3)), "plan=3"),
        (lambda: build(Settings("ddqn", "CartPole-v1", PLAN, buffer=3)), "buffer: got 3"),
        (lambda: build(Settings("ddqn", "CartPole-v1", PLAN, agent=3)), "agent: got 3"),
        (lambda: build(Settings("ddqn", "CartPole-v1", PLAN, agent={"polyak": None})), "agent.polyak: got None"),
        (lambda: build(Settings("ddqn", "CartPole-v1", PLAN, sampler=[])), r"sampler: got \[\]"),
        (lambda: build(Settings("ddqn", "CartPole-v1", PLAN, normalize="no")), "normalize='no'"),
        (lambda: build(Settings("ddqn", "CartPole-v1", PLAN, gamma=2)), "at most 1"),
        (lambda: build(Settings("ddqn", "CartPole-v1", PLAN, n_step=0)), "n_step=0"),
        (lambda: Plan(total_steps=HUGE), "very many digits"),
    ],
)  # fmt: skip
def test_from_python(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert len(str(caught.value)) < 1_000


def test_components_without_end():
    config = {"name": "Recent", "config": {}}
    config["config"]["sampler"] = config
    with pytest.raises(ValueError, match="components nested too deeply"):
        jb.from_config(config)


def test_the_axis_0_is_no_number():
    """A component of axes, as `jax.vmap` takes it, is built like any other."""
    for agent in (DDQN(DISCRETE), SAC(BOX), Normalized(DDQN(DISCRETE))):
        axes = jax.tree.map(lambda _: 0, agent)
        assert set(jax.tree.leaves(axes)) == {0}


def test_numbers_that_look_bad_and_are_good():
    jb.LastN(5, max_share=float("inf"))
    SAC(BOX, learn_alpha=False, initial_alpha=0.0)
    DDQN(DISCRETE, learning_rate=0.0, target_update_interval=0)
    Torso(hidden_sizes=(), activation="identity")
    build(Settings("ddqn", "CartPole-v1", PLAN, seed=2**32 - 1))


def test_every_seed_begins_other_random_numbers():
    first, last = (jax.random.key_data(jax.random.key(seed)) for seed in (0, 2**32 - 1))
    assert not np.array_equal(first, last)
