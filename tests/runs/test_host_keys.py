"""Which keys, seeds and policies training on the host uses, and what it hands over."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from support import host_programs
from support.host_walk import make_host_walk

import jaxrl_buffers as jb
from algorithms import DDQN, Discrete, Plan, Torso, train_on_host
from algorithms.environments.gymnasium import from_factory
from algorithms.environments.stepping import Stepper
from algorithms.runs._collecting import Collector
from algorithms.runs._host_compiled import HostCompiled
from algorithms.runs.host_loop import HostLoop
from jaxrl_buffers import host

ENV = from_factory(make_host_walk, "Walk")
GREEDY = DDQN(Discrete(2), torso=Torso((8,)), initial_epsilon=0.0, final_epsilon=0.0)
BUFFER = jb.uniform(100, num_envs=2)
PLAN = Plan(
    *(48, 2), start_steps=32, update_every=8, num_updates=1, mini_batch_size=4, test_every=8, num_test_episodes=1
)


@pytest.fixture(scope="module", autouse=True)
def _compile_once():
    with host_programs.shared():
        yield


def test_training_goes_on_from_a_state(key):
    first, _ = train_on_host(key, GREEDY, BUFFER, ENV, dataclasses.replace(PLAN, total_steps=40))
    before = jax.tree.map(np.asarray, host.gather_all(BUFFER, first.buffer))
    after, metrics = train_on_host(key, GREEDY, BUFFER, ENV, PLAN, state=first)
    assert (metrics["steps"].tolist(), int(after.agent.num_updates)) == ([48], 2)
    rows = jax.tree.map(np.asarray, host.gather_all(BUFFER, after.buffer))
    np.testing.assert_array_equal(rows.action[:20], before.action)
    assert (rows.terminated | rows.truncated)[19].all()
    np.testing.assert_array_equal(rows.obs[20], 0)


def test_the_first_steps_of_a_trained_agent_are_its_own(key):
    given = jax.jit(lambda key: GREEDY.init(key, ENV.obs, ENV.action_space.example))(key)
    with HostLoop(GREEDY, BUFFER, ENV, PLAN) as loop:
        found = [host.gather_all(BUFFER, loop.init(key, agent_state=state).buffer) for state in (given, None)]
    greedy = [GREEDY.act(given, rows.obs[:, 0], GREEDY.initial_carry(16), key, deterministic=True)[0] for rows in found]
    is_greedy = [np.array_equal(rows.action[:, 0], action) for rows, action in zip(found, greedy, strict=True)]
    assert is_greedy == [True, False]


def test_every_evaluation_has_the_key_of_its_number(key, monkeypatch):
    keys = []
    evaluate = HostLoop.evaluate
    monkeypatch.setattr(
        HostLoop, "evaluate", lambda own, state, key, *rest: keys.append(key) or evaluate(own, state, key, *rest)
    )
    train_on_host(key, GREEDY, BUFFER, ENV, PLAN)
    key_test = jax.random.split(key)[1]
    assert keys == [jax.random.fold_in(key_test, number) for number in range(2)]


def test_every_environment_has_a_seed_of_its_own(key, monkeypatch):
    seeds = []
    monkeypatch.setattr(Collector, "reset", lambda _, seed: seeds.append(seed))
    for actors, num_seeds in ((1, None), (2, None), (2, 3)):
        with HostLoop(GREEDY, BUFFER, ENV, PLAN, actors=actors, num_seeds=num_seeds) as loop:
            loop._begin_episodes(key if num_seeds is None else jax.random.split(key, num_seeds))
    alone, first, second, *of_seeds = seeds
    assert (first, second) == (alone, alone + 1)
    one, other = of_seeds
    assert other == [seed + 1 for seed in one]
    assert len({*one, *other}) == 6


@pytest.mark.parametrize("actors", [1, 2])
def test_every_step_of_every_actor_has_a_key_of_its_own(actors, key):
    """Also where steps that only reset make more steps than a chunk has rows."""
    programs, keys = HostCompiled(GREEDY, BUFFER, ENV, PLAN, actors), jax.random.split(key, 4)
    step_key = jax.jit(programs._step_key)
    found = {
        jax.random.key_data(step_key(keys, number, actor)).tobytes()
        for number, actor in itertools.product(range(12), range(actors))
    }
    assert len(found) == 12 * actors


def test_where_an_episode_begins_nothing_is_remembered():
    """Also after a step that only reset, in which the agent acted in vain."""
    steps = Stepper(SyncVectorEnv([make_host_walk] * 2, autoreset_mode=AutoresetMode.NEXT_STEP), "Walk")
    seen = []

    def act(obs, carry, is_fresh, number):
        seen.append((obs[:, 1] == 0, is_fresh))
        return np.array([1, number % 2]), carry, ()  # one reaches the goal, the other runs out of time

    collector = Collector(steps, ())
    collector.reset(0)
    collector.collect(act, 20)
    begins, is_fresh = map(np.stack, zip(*seen, strict=True))
    assert begins.sum(axis=0).tolist() == [7, 5]
    assert is_fresh[begins].all()
