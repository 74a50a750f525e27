"""Training on the host gives what training in one program gives, and can be cut and resumed anywhere."""

from __future__ import annotations

import dataclasses
import threading

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from support import host_programs
from support.host_walk import HostWalk, make_host_walk
from support.walk import Walk

import jaxrl_buffers as jb
from algorithms import DDQN, PPO, Plan, Recurrent, Torso, environments, evaluate, evaluate_on_host, train, train_on_host
from algorithms.environments.gymnasium import from_factory, from_vectors
from algorithms.runs._rows import Rows
from algorithms.runs.host_loop import HostLoop
from jaxrl_buffers import host

WALK, HOST_WALK = environments.wrap(Walk()), from_factory(make_host_walk, "Walk")
AGENT = DDQN(WALK.action_space, torso=Torso((8,)))
PLAN = Plan(
    total_steps=56,
    num_envs=2,
    start_steps=16,
    update_every=8,
    num_updates=2,
    mini_batch_size=4,
    test_every=16,
    num_test_episodes=3,
)
BUFFER = jb.ReplayBuffer(jb.Prioritized(), jb.NStep(2), length=40, num_envs=2)


fresh = jax.jit(lambda key: AGENT.init(key, WALK.obs, WALK.action_space.example))


@pytest.fixture(scope="module", autouse=True)
def _compile_once():
    with host_programs.shared():
        yield


def _assert_close(one, other, **tolerance):
    for (path, a), b in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(_plain(a), _plain(b), err_msg=jax.tree_util.keystr(path), **tolerance)


def _plain(leaf) -> np.ndarray:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def test_in_turn_training_is_that_of_one_program(key):
    state, metrics = jax.jit(lambda key: train(key, AGENT, BUFFER, WALK, PLAN))(key)
    found, found_metrics = train_on_host(key, AGENT, BUFFER, HOST_WALK, PLAN, collect_then_learn=True)
    rows, found_rows = (host.gather_all(BUFFER, each.buffer) for each in (state, found))
    _assert_close(rows, found_rows, rtol=0)  # the same transitions, to the bit
    assert np.asarray(rows.truncated).any()
    assert np.asarray(rows.terminated).any()
    _assert_close(state._replace(collector=()), found, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(found_metrics.pop("policy_lag"), 0)
    assert found_metrics.keys() == metrics.keys()
    _assert_close(metrics, found_metrics, rtol=1e-4, atol=1e-6)


def test_memories_forget_at_the_ends_of_episodes_as_in_one_program(key):
    agent = Recurrent(DDQN(WALK.action_space, torso=Torso((8,), memory="gru", memory_size=4)))
    buffer = jb.ReplayBuffer(view=jb.Sequence(length=4), length=40, num_envs=2)
    state, _ = jax.jit(lambda key: train(key, agent, buffer, WALK, PLAN))(key)
    with pytest.warns(DeprecationWarning, match="`lock_step` of train_on_host.. is now called `collect_then_learn`"):
        found, _ = train_on_host(key, agent, buffer, HOST_WALK, PLAN, lock_step=True)
    _assert_close(state.buffer, found.buffer, rtol=1e-4, atol=1e-6)  # with the carry of every row


def test_rollouts_are_learned_from_in_turn(key):
    agent, buffer = PPO(WALK.action_space, torso=Torso((8,))), jb.rollout(length=8, num_envs=2)
    plan = Plan(total_steps=32, num_envs=2, start_steps=0, update_every=16, num_updates=4, mini_batch_size=8)
    state, _ = jax.jit(lambda key: train(key, agent, buffer, WALK, plan))(key)
    found, _ = train_on_host(key, agent, buffer, HOST_WALK, plan)
    _assert_close(state.agent, found.agent, rtol=1e-4, atol=1e-6)


def test_evaluation_is_that_of_one_program(key):
    state = fresh(key)
    expected = evaluate(AGENT, state, WALK, key, 3)
    _assert_close(expected, evaluate_on_host(AGENT, state, HOST_WALK, key, 3), rtol=0)
    expected = evaluate(AGENT, state, WALK, key, 3, deterministic=False)
    _assert_close(expected, evaluate_on_host(AGENT, state, HOST_WALK, key, 3, deterministic=False), rtol=0)


@pytest.mark.parametrize("actors", [1, 2])
def test_while_one_chunk_is_learned_from_the_policy_before_it_acts(actors, key, monkeypatch):
    acted, policies = [], []
    with HostLoop(AGENT, BUFFER, HOST_WALK, PLAN, actors=actors) as loop:
        state, act, learn = loop.init(key), loop._programs.act, loop._programs.learn
        policies.append(jax.tree.map(np.asarray, loop._programs.policy(state.agent)))

        def see_act(policy, key, iteration, *inputs):
            acted.append((int(iteration), jax.tree.map(np.asarray, policy)))
            return act(policy, key, iteration, *inputs)

        def see_learn(state, key, chunk):
            # The chunk is on the host, so that this call is the only one that moves it to the device.
            assert {type(leaf) for leaf in jax.tree.leaves(chunk)} == {np.ndarray}
            state, policy = learn(state, key, chunk)
            policies.append(jax.tree.map(np.asarray, policy))
            return state, policy

        monkeypatch.setattr(loop._programs, "act", see_act)
        monkeypatch.setattr(loop._programs, "learn", see_learn)
        _, metrics = loop.read_metrics(loop.run(state, PLAN.num_iterations))
    # Policies are numbered by the chunks that they have learned from.
    for iteration, policy in acted:
        _assert_close(policy, policies[max(iteration - 1, 0)], rtol=0)
    assert len(policies) == 1 + PLAN.num_iterations  # each chunk was handed over once
    rows_of_actor = PLAN.update_every // PLAN.num_envs
    assert sorted(iteration for iteration, _ in acted) == sorted([*range(5)] * (actors * rows_of_actor))
    assert len({np.concatenate([leaf.ravel() for leaf in policy]).tobytes() for policy in policies}) == 6
    assert metrics["policy_lag"] == 4 / 5 * PLAN.num_updates  # the first chunk has none


@pytest.mark.parametrize(("collect_then_learn", "actors"), [(True, 1), (False, 1), (False, 2)])
def test_a_run_in_pieces_is_the_same_to_the_bit(collect_then_learn, actors, key):
    ends = []
    for pieces in ([5], [1, 3, 1]):
        with HostLoop(AGENT, BUFFER, HOST_WALK, PLAN, collect_then_learn, actors) as loop:
            state = loop.init(key)
            for piece in pieces:
                state = loop.run(state, piece)
            ends.append(state)
    _assert_close(*ends, rtol=0)


def test_a_resumed_run_keeps_agent_buffer_and_counters_and_begins_new_episodes(key):
    half = Plan(**{**PLAN.to_dict(), "total_steps": 40})
    state, _ = train_on_host(key, AGENT, BUFFER, HOST_WALK, half)
    before = jax.tree.map(np.asarray, host.gather_all(BUFFER, state.buffer))
    iteration = int(state.iteration)
    with HostLoop(AGENT, BUFFER, HOST_WALK, PLAN) as loop:
        agent = jax.tree.map(np.asarray, state.agent)
        anew = loop.begin_anew(state)
        _assert_close(agent, anew.agent, rtol=0)
        assert int(anew.iteration) == iteration == 3
        after = loop.run(anew, 2)
    rows = jax.tree.map(np.asarray, host.gather_all(BUFFER, after.buffer))
    num = before.reward.shape[0]
    kept = jax.tree.map(lambda leaf: leaf[:num], rows)._replace(truncated=before.truncated)
    _assert_close(before, kept, rtol=0)
    np.testing.assert_array_equal(rows.obs[num], np.zeros((2, 2)))  # where episodes begin
    assert (rows.terminated | rows.truncated)[num - 1].all()
    assert int(after.iteration) == PLAN.num_iterations
    with pytest.raises(ValueError, match="has made all 56 steps"):
        train_on_host(key, AGENT, BUFFER, HOST_WALK, PLAN, state=after)


def test_what_is_stored_already_is_learned_from(key):
    data = train_on_host(key, AGENT, BUFFER, HOST_WALK, PLAN)[0].buffer
    size = int(data.storage.size)
    state, _ = train_on_host(key, AGENT, BUFFER, HOST_WALK, PLAN, buffer_state=data)
    assert int(state.buffer.storage.size) == min(size + PLAN.total_steps // 2, 40)


def test_an_agent_goes_on_as_it_is(key):
    given = train_on_host(key, AGENT, BUFFER, HOST_WALK, PLAN)[0].agent
    with HostLoop(AGENT, BUFFER, HOST_WALK, PLAN) as loop:
        chex.assert_trees_all_equal(loop.init(key, agent_state=given).agent, given)
    after, _ = train_on_host(key, AGENT, BUFFER, HOST_WALK, PLAN, agent_state=given)
    assert int(after.agent.num_updates) == 2 * int(given.num_updates)


def test_offline_learning_and_what_follows_is_that_of_one_program(key):
    data = train_on_host(key, AGENT, BUFFER, HOST_WALK, PLAN)[0].buffer
    mixture, plan = jb.Mixture((BUFFER, BUFFER)), dataclasses.replace(PLAN, offline_updates=10, test_every=8)
    state = jb.MixtureState((BUFFER.init(WALK.transition()), data))
    expected = jax.jit(lambda key, state: train(key, AGENT, mixture, WALK, plan, state))(key, state)
    state = jb.MixtureState((BUFFER.init(WALK.transition()), data))
    after, metrics = train_on_host(key, AGENT, mixture, HOST_WALK, plan, state, collect_then_learn=True)
    np.testing.assert_array_equal(metrics["steps"], expected[1]["steps"])
    _assert_close(after.agent, expected[0].agent, atol=1e-5)


def test_steps_that_are_mere_resets_are_not_learned_from(key):
    def make_vector(num_envs: int):
        return SyncVectorEnv([make_host_walk] * num_envs)  # which resets on the next step

    env = from_vectors(make_vector, "Walk")
    with HostLoop(AGENT, BUFFER, env, PLAN) as loop:
        state = loop.run(loop.init(key), PLAN.num_iterations)
    rows = jax.tree.map(np.asarray, host.gather_all(BUFFER, state.buffer))
    assert rows.reward.size == PLAN.total_steps
    np.testing.assert_array_equal(rows.next_obs[..., 0], rows.obs[..., 0] + 2 * rows.action - 1)
    ended = rows.terminated | rows.truncated
    following = np.where(ended[:-1, :, None], 0, rows.next_obs[:-1])
    np.testing.assert_array_equal(rows.obs[1:], following)


def test_every_seed_of_many_does_what_it_does_alone(key):
    keys = jax.random.split(key, 3)
    with HostLoop(AGENT, BUFFER, HOST_WALK, PLAN, num_seeds=3) as loop:
        state = loop.run(loop.init(keys), PLAN.num_iterations)
        returns, lengths = loop.evaluate(state.agent, keys, 4)
        state, metrics = loop.read_metrics(state)
        assert jax.tree.map(lambda leaf: leaf.shape, loop.shapes(keys)) == jax.tree.map(lambda leaf: leaf.shape, state)
    for seed in range(3):
        with HostLoop(AGENT, BUFFER, HOST_WALK, PLAN) as loop:
            alone = loop.run(loop.init(keys[seed]), PLAN.num_iterations)
            found = loop.evaluate(alone.agent, keys[seed], 4)
            alone, metrics_alone = loop.read_metrics(alone)
        _assert_close(alone, jax.tree.map(lambda leaf, seed=seed: leaf[seed], state), rtol=1e-4, atol=1e-5)
        _assert_close(found, (returns[seed], lengths[seed]), rtol=0)
        _assert_close(metrics_alone, {name: value[seed] for name, value in metrics.items()}, rtol=1e-4, atol=1e-5)


def test_many_episodes_are_played_in_rounds(key, monkeypatch):
    state = fresh(key)
    made, start_tests = [], type(HOST_WALK).start_tests

    def see_start(self, num_envs, seed=None):
        made.append(num_envs)
        return start_tests(self, num_envs, seed)

    monkeypatch.setattr(type(HOST_WALK), "start_tests", see_start)
    returns, lengths = evaluate_on_host(AGENT, state, HOST_WALK, key, 45, deterministic=False)
    assert made == [15]
    assert returns.shape == lengths.shape == (45,)
    assert (lengths > 0).all()
    first = evaluate_on_host(AGENT, state, HOST_WALK, key, 15, deterministic=False)
    _assert_close(first, (returns[:15], lengths[:15]), rtol=0)
    assert not np.array_equal(returns[15:30], returns[:15])
    assert not np.array_equal(returns[15:30], returns[30:])


class Failing(HostWalk):
    """Fails after so many steps of all."""

    left = 30

    def step(self, action):
        Failing.left -= 1
        if Failing.left < 0:
            raise ArithmeticError("the walker stumbled")
        return super().step(action)


def make_failing():
    env = Failing()
    env.spec = make_host_walk().spec
    return env


@pytest.mark.parametrize("actors", [1, 2])
@pytest.mark.parametrize("collect_then_learn", [True, False])
def test_an_error_of_an_actor_ends_the_run_and_all_threads(actors, collect_then_learn, key):
    Failing.left = 30
    env = from_factory(make_failing, "Failing")
    before = threading.active_count()
    with pytest.raises(ArithmeticError, match="the walker stumbled") as error:
        train_on_host(key, AGENT, BUFFER, env, PLAN, collect_then_learn=collect_then_learn, actors=actors)
    assert any("of Failing" in note for note in error.value.__notes__)
    assert threading.active_count() == before


def test_environments_that_cannot_be_shared_evenly_are_refused(key):
    with pytest.raises(ValueError, match="2 environments cannot be shared evenly among 3 actors"):
        train_on_host(key, AGENT, BUFFER, HOST_WALK, PLAN, actors=3)


def test_raw_keys_will_do(key):
    expected, _ = train_on_host(key, AGENT, BUFFER, HOST_WALK, PLAN)
    found, _ = train_on_host(jax.random.key_data(key), AGENT, BUFFER, HOST_WALK, PLAN)
    _assert_close(expected.agent, found.agent, rtol=0)


def test_rows_wait_until_every_environment_has_one():
    rows, random = Rows(3), np.random.default_rng(0)
    added, taken = [[], [], []], [[], [], []]
    for number in range(200):
        is_row = random.random(3) < 0.8
        rows.add({"number": np.full(3, number), "env": np.arange(3)[:, None]}, is_row)
        for env in np.flatnonzero(is_row):
            added[env].append(number)
        assert len(rows) == min(map(len, added)) - len(taken[0])
        if len(rows) >= 4:
            chunk = rows.take(4)
            np.testing.assert_array_equal(chunk["env"], np.broadcast_to(np.arange(3)[:, None], (4, 3, 1)))
            for env in range(3):
                taken[env].extend(chunk["number"][:, env].tolist())
    for env in range(3):
        assert taken[env] == added[env][: len(taken[env])]
    assert len(taken[0]) > 100
