"""Agents learn from a data set alone, and go on online from there."""

from __future__ import annotations

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.pendulum import ENV, PLAN, data_set

import jaxrl_buffers as jb
from algorithms import DDQN, SAC, Plan, Recurrent, Torso, empty_row, environments, evaluate, train, train_offline
from algorithms.training import learning, loop
from algorithms.wrappers.normalization import Normalized

AGENT = SAC(ENV.action_space, Torso((8,)))
ONLINE = jb.uniform(100, num_envs=2)
MIXTURE = jb.Mixture((ONLINE, jb.prioritized(8_000)), (1, 3))


@functools.cache
def stored():
    return jb.datasets.from_arrays(MIXTURE.buffers[1], data_set()[0])


def mixed():
    return jb.MixtureState((ONLINE.init(ENV.transition()), stored()))


def test_offline_learning_is_better_than_its_data_and_online_learning_goes_on_from_there(optimized_code):
    arrays, return_of_data = data_set()
    buffer = jb.uniform(len(arrays["rewards"]))
    rates = {"learning_rate_q": 1e-3, "learning_rate_pi": 1e-3, "learning_rate_alpha": 1e-3}
    agent = SAC(ENV.action_space, Torso((64, 64)), max_grad_norm=10.0, **rates)
    key, data = jax.random.key(0), jb.datasets.from_arrays(buffer, arrays)
    learned, _, metrics = jax.jit(
        lambda key, data: train_offline(key, agent, buffer, data, ENV, num_updates=3_000, batch_size=128)
    )(key, data)
    returns, _ = evaluate(agent, learned, ENV, key, num_episodes=20)
    assert return_of_data < -450  # a policy at random has about -1200
    assert returns.mean() > return_of_data + 200
    assert np.isfinite(metrics["loss_q"])
    assert int(learned.num_updates) == 3_000

    online = jb.uniform(2_000)
    mixture, state = jb.Mixture((online, buffer)), jb.MixtureState((online.init(ENV.transition()), data))
    plan = Plan(800, start_steps=200, update_every=1, num_updates=1, mini_batch_size=128, test_every=200)
    after, history = jax.jit(lambda *states: train(key, agent, mixture, ENV, plan, *states))(state, learned)
    assert int(after.agent.num_updates) == 3_600
    rows = jb.host.gather_all(online, after.buffer.parts[0])
    assert rows.reward[:200].sum() > return_of_data  # the first steps are those of what was learned
    assert history["returns"].mean() > return_of_data + 200


@functools.cache
def begun():
    return jax.jit(lambda data: loop.init(jax.random.key(1), AGENT, MIXTURE, ENV, PLAN, data))(mixed())


offline = jax.jit(lambda state, num: loop.run_offline(state, AGENT, MIXTURE, PLAN, num), static_argnums=1)


def test_offline_updates_draw_from_the_data_alone_and_take_no_step():
    state, after = begun(), offline(begun(), 10)
    assert (int(after.iteration), int(after.agent.num_updates), int(after.sums.total("num_updates"))) == (10, 10, 10)
    chex.assert_trees_all_equal(after.buffer.parts[0], state.buffer.parts[0])
    chex.assert_trees_all_equal(after.collector, state.collector)
    before, now = (part.buffer.parts[1].sampler.tree.leaves for part in (state, after))
    assert 70 <= np.sum(np.asarray(before) != np.asarray(now)) <= 80  # 10 batches of 8, all of them from the data


def test_many_pieces_of_offline_learning_are_one():
    whole, parts = offline(begun(), 8), offline(offline(begun(), 4), 4)
    chex.assert_trees_all_equal(*(state._replace(key=jax.random.key_data(state.key)) for state in (whole, parts)))


def test_training_learns_offline_first_and_tests_in_both_parts():
    state, metrics = jax.jit(lambda data: train(jax.random.key(0), AGENT, MIXTURE, ENV, PLAN, data))(mixed())
    np.testing.assert_array_equal(metrics["steps"], [0, 0, 0, 12, 16, 20])
    assert metrics["returns"].shape == (6, 2)
    assert (int(state.agent.num_updates), int(state.iteration)) == (10 + 3 * 2, PLAN.num_iterations)
    assert int(ONLINE.size(state.buffer.parts[0])) == 20
    assert (int(PLAN.updates(13)), PLAN.num_tests(13)) == (16, 6)


def test_a_total_of_zero_is_offline_only():
    plan = dataclasses.replace(PLAN, total_steps=0, start_steps=0)
    state, metrics = jax.jit(lambda data: train(jax.random.key(0), AGENT, MIXTURE, ENV, plan, data))(mixed())
    assert metrics["returns"].shape == (3, 2)
    assert (int(state.agent.num_updates), int(ONLINE.size(state.buffer.parts[0]))) == (10, 0)


def test_what_observations_are_like_is_learned_from_all_rows():
    agent, buffer = Normalized(AGENT), jb.uniform(8_000)
    data = jb.datasets.from_arrays(buffer, data_set()[0])
    learned, _, _ = jax.jit(lambda data: train_offline(jax.random.key(0), agent, buffer, data, ENV, 1, 4))(data)
    obs = data_set()[0]["observations"]
    assert int(learned.num_observed) == len(obs) == 8_000
    assert 8_000 % learning.BLOCK_ROWS
    np.testing.assert_allclose(learned.moments[0].mean, obs.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(learned.moments[0].variance, obs.var(axis=0), rtol=1e-4)
    again, _, _ = jax.jit(
        lambda data, state: train_offline(jax.random.key(0), agent, buffer, data, ENV, 1, 4, agent_state=state)
    )(data, learned)
    chex.assert_trees_all_equal(again.moments, learned.moments)


def test_an_agent_with_a_memory_learns_from_rows_without_one():
    arrays = {name: array[:60] for name, array in data_set()[0].items()}
    agent = Recurrent(SAC(ENV.action_space, Torso((4,), memory="gru", memory_size=4)))
    stored, online = (jb.sequences(60 // num_envs, num_envs, sequence_length=3, burn_in=1) for num_envs in (1, 2))
    bare = jb.datasets.from_arrays(stored, arrays)
    with pytest.raises(ValueError, match=r"without the memory before .*extras=algorithms\.empty_row\(agent, env\)"):
        jax.eval_shape(lambda: train_offline(jax.random.key(0), agent, stored, bare, ENV, 1, 4))
    row = empty_row(agent, ENV)
    mixture = jb.Mixture((online, stored), ratios=(1, 1))
    data = jb.datasets.from_arrays(stored, arrays, extras=row.extras)
    begun = jb.MixtureState((online.init(row), data))
    state, _ = jax.jit(lambda data: train(jax.random.key(0), agent, mixture, ENV, PLAN, data))(begun)
    assert int(state.agent.num_updates) == 10 + 3 * 2
    memories = [
        jb.host.gather_all(part, rows).extras["carry"]
        for part, rows in zip(mixture.buffers, state.buffer.parts, strict=True)
    ]
    assert [any(np.any(leaf) for leaf in jax.tree.leaves(memory)) for memory in memories] == [True, False]


def test_an_agent_goes_on_as_it_is():
    """Parameters, optimizers, targets and counters are those that were given, and the first steps are its own."""
    env, buffer = environments.make("CartPole-v1"), jb.uniform(100)
    agent = DDQN(env.action_space, Torso((8,)), initial_epsilon=0.0, final_epsilon=0.0)
    plan = Plan(60, start_steps=40, update_every=5, num_updates=1, mini_batch_size=8, test_every=0)
    given = train(jax.random.key(0), agent, buffer, env, plan)[0].agent
    state = loop.init(jax.random.key(1), agent, buffer, env, plan, agent_state=given)
    chex.assert_trees_all_equal(state.agent, given)
    rows = jb.host.gather_all(buffer, state.buffer)
    greedy, _, _ = agent.act(given, rows.obs[:, 0], agent.initial_carry(40), jax.random.key(0), deterministic=True)
    np.testing.assert_array_equal(rows.action[:, 0], greedy)
    after, _ = train(jax.random.key(1), agent, buffer, env, plan, agent_state=given)
    assert (int(given.num_updates), int(after.agent.num_updates), int(after.iteration)) == (4, 8, 4)
    with pytest.raises(ValueError, match=r"has float32\[8, 2\] for .*, but DDQN in CartPole-v1 needs float32\[16, 2\]"):
        train(jax.random.key(1), agent.replace(torso=Torso((16,))), buffer, env, plan, agent_state=given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total_steps": 0, "offline_updates": 0}, "total_steps=0.: `total_steps` must be .* at least 1"),
        ({"total_steps": 0}, "start_steps=8 plus a multiple"),
        ({"offline_updates": -1}, "at least 0"),
        ({"offline_updates": 2**31 - 1}, "2.*31 updates"),
    ],
)
def test_plans_that_cannot_be(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(PLAN, **change)


def test_offline_learning_needs_data_and_an_off_policy_agent():
    with pytest.raises(ValueError, match="learn from stored rows, but there are none"):
        loop.init(jax.random.key(0), AGENT, ONLINE, ENV, PLAN)
    with pytest.raises(ValueError, match="on-policy"):
        Plan(80, start_steps=0, update_every=40, offline_updates=10).check_buffer(jb.rollout(40))
    suggestion = Plan(0, offline_updates=7, num_envs=3)
    assert (suggestion.start_steps, suggestion.num_iterations) == (0, 7)
    assert jnp.asarray(suggestion.steps(jnp.int32(3))) == 0
