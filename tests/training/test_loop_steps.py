"""What the training loop hands from environment to agent to buffer, with parts that write down what they get."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.noted import (
    BUFFER,
    ENV,
    PLAN,
    Agent,
    Counting,
    begun,
)

import jaxrl_buffers as jb
from algorithms import Plan
from algorithms.environments import Finished
from algorithms.training import learning, loop, off_policy, on_policy, train_state
from algorithms.types import StepInfo


@pytest.fixture(scope="module")
def iterated():
    """Return the state before and after two iterations."""

    @jax.jit
    def run():
        state = begun(Agent())
        return state, loop.run(state, Agent(), BUFFER, ENV, PLAN, 2)

    return run()


def test_first_steps_are_observed_and_stored_but_not_learned_from(iterated):
    before, _ = iterated
    assert (before.agent.rows, before.buffer.rows, before.agent.num_steps, before.iteration) == (6, 6, 0, 0)
    assert before.agent.rewards not in (0, 12)  # by random actions, not the agent's
    np.testing.assert_array_equal(before.collector.env.episode_length, [0, 3])  # after 3 steps each
    assert before.sums.total("num_updates") == 0


def test_an_iteration_collects_observes_adds_and_then_learns(iterated):
    before, after = iterated
    assert (after.agent.rows, after.buffer.rows, after.iteration) == (14, 14, 2)
    assert after.agent.rewards - before.agent.rewards == 8 * 2
    assert (after.agent.num_steps, after.buffer.num_draws) == (2 * 3, 2 * 3)
    np.testing.assert_array_equal(after.agent.rows_at_steps[:6], [10] * 3 + [14] * 3)
    np.testing.assert_array_equal(after.collector.env.episode_length, [1, 2])  # after 7 steps each


def test_the_buffer_learns_the_progress_of_an_iteration_and_the_errors(iterated):
    _, after = iterated
    np.testing.assert_allclose(after.buffer.progress[:6], [0, 1 / 3, 2 / 3] * 2, rtol=1e-6)
    np.testing.assert_array_equal(after.buffer.told[:6], 10 * np.arange(6))
    np.testing.assert_array_equal(after.buffer.masked[:6], -1)


def test_the_buffer_observes_the_mean_return_of_the_episodes_that_ended(iterated):
    """In steps 4 and 5 the second environment ends, in steps 6 and 7 the first; or none does."""
    before, after = iterated
    first_three = float(before.collector.env.episode_return[1])
    np.testing.assert_array_equal(after.buffer.observed[0], first_three + 4)
    np.testing.assert_array_equal(after.buffer.observed[3], 6)
    finished = Finished(jnp.array([[True, False], [True, True]]), jnp.array([[1.0, 0], [2, 6]]), jnp.zeros((2, 2)))
    assert learning._mean_return(finished) == 3
    assert np.isnan(learning._mean_return(jax.tree.map(jnp.zeros_like, finished)))


def test_metrics_are_means_over_updates(iterated):
    _, after = iterated
    empty, metrics = train_state.read_metrics(after, PLAN)
    assert (metrics["steps"], metrics["episodes"]) == (6 + 2 * 4, 2)
    assert metrics["step"] == np.mean(np.arange(6))
    assert metrics["priority"] == np.mean(10 * np.arange(6)) + 1.5
    assert metrics["weight"] == 2.5
    assert metrics["sample_age"] == 3.5
    assert metrics["episode_length"] == 4
    assert empty.sums.names == after.sums.names
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(empty.sums))


def distinct(keys):
    """Return a set of raw keys."""
    return {tuple(key) for key in np.asarray(keys).reshape(-1, 2).tolist()}


def test_every_draw_has_a_key_of_its_own(iterated):
    _, after = iterated
    samples, gradients = distinct(after.buffer.keys[:6]), distinct(after.agent.keys[:6])
    assert (len(samples), len(gradients)) == (6, 6)
    assert not samples & gradients
    plan = jax.vmap(lambda i: loop.iteration_keys(jax.random.fold_in(after.key, i), PLAN))(jnp.arange(2))
    assert [keys.shape for keys in plan] == [(2, 2), (2, 2, 2), (2, 3), (2, 3)]
    act, env, *learning = (distinct(jax.random.key_data(keys)) for keys in plan)
    assert len(set().union(act, env, *learning)) == 2 * (2 + 4 + 3 + 3)
    assert [samples, gradients] == learning


def test_what_acting_remembers_begins_anew_with_an_episode():
    agent = Agent()

    @jax.jit
    def collect():
        state = begun(agent, PLAN)
        keys = jax.random.split(jax.random.key(1), 7), jax.random.split(jax.random.key(2), (7, 2))
        return loop.collect(agent, state.agent, ENV, state.collector, *keys)

    _, chunk, finished = collect()
    np.testing.assert_array_equal(chunk.obs, [[0, 3], [1, 4], [2, 0], [0, 1], [1, 2], [2, 3], [0, 4]])
    np.testing.assert_array_equal(chunk.extras["carry"]["steps"], chunk.obs)
    np.testing.assert_array_equal(chunk.extras["carry"]["pairs"], np.stack([chunk.obs] * 2, axis=2) + 9)
    np.testing.assert_array_equal(finished.ended.sum(0), [2, 2])
    np.testing.assert_array_equal(chunk.action, 2)


def test_sequences_tell_which_rows_count():
    agent = Agent(has_sequences=True)

    @jax.jit
    def step():
        state = begun(agent)
        return off_policy.train_step(agent, BUFFER, state.agent, state.buffer, jax.random.key(1), jax.random.key(2), 4)

    _, stored, _ = step()
    assert (stored.masked[0], stored.progress[0]) == (3, 0)


def test_training_evaluates_at_intervals_and_at_the_end():
    state, metrics = jax.jit(lambda key: loop.train(key, Agent(), BUFFER, ENV, PLAN))(jax.random.key(0))
    np.testing.assert_array_equal(metrics["steps"], [14, 22, 26])
    np.testing.assert_array_equal(metrics["returns"], [[3 * 7, 5 * 7]] * 3)  # without exploration
    np.testing.assert_allclose(metrics["step"], [np.mean(np.arange(6)), np.mean(np.arange(6, 12)), 13])
    assert (state.iteration, state.buffer.rows, state.agent.rows) == (5, 26, 26)


def test_training_goes_on_with_given_data():
    plan = dataclasses.replace(PLAN, total_steps=10)
    given = BUFFER.init(SimpleNamespace(extras={"carry": {"pairs": np.zeros(2)}}))._replace(rows=jnp.int32(1000))
    state = jax.eval_shape(lambda: loop.init(jax.random.key(0), Agent(), BUFFER, ENV, plan, given))
    assert {"priority", "sample_age", "step", "weight"} <= set(state.sums.names)
    trained, _ = jax.jit(lambda: loop.train(jax.random.key(0), Agent(), BUFFER, ENV, plan, given))()
    assert trained.buffer.rows == 1000 + 10


def test_new_episodes_break_what_is_stored(iterated):
    _, after = iterated
    anew = loop.begin_anew(after, Agent(), BUFFER, ENV)
    assert (anew.buffer.breaks, after.buffer.breaks) == (1, 0)
    np.testing.assert_array_equal(anew.collector.env.obs, 0)
    np.testing.assert_array_equal(anew.collector.carry["pairs"], np.full((2, 2), 9))
    later = loop.begin_anew(after._replace(iteration=after.iteration + 1), Agent(), BUFFER, ENV)
    assert not distinct(anew.collector.env.inner) & distinct(later.collector.env.inner)


def test_new_episodes_have_a_key_of_their_own(iterated):
    """Not one of those into which an iteration splits its key, which are the same as folded ones."""

    class Showing(Counting):
        def reset(self, key, num_envs):
            return super().reset(key, num_envs)._replace(inner=jax.random.key_data(key))

    _, after = iterated
    plan = Plan(total_steps=1_000, num_envs=2, start_steps=0, update_every=100, num_updates=50)
    anew = loop.begin_anew(after, Agent(), BUFFER, Showing())
    keys = loop.iteration_keys(jax.random.fold_in(after.key, after.iteration), plan)
    taken = distinct(np.concatenate([jax.random.key_data(part).reshape(-1, 2) for part in keys]))
    assert len(taken) == 50 + 100 + 50 + 50
    assert not taken & distinct(anew.collector.env.inner)


class OnPolicy(Agent):
    """Values are ten times observations; rewards of a minibatch are its own."""

    learns_from_columns = False

    def values(self, state, chunk):
        return 10 * chunk.obs, 10 * chunk.next_obs

    def gradients(self, state, sample, key):
        batch = sample.batch
        metrics = {
            "return": jnp.sum(batch.return_),
            "rows": batch.extras["rows"][0].astype(jnp.float32),
            "reward": jnp.sum(batch.extras["reward"]),
            "weight": jnp.mean(sample.weights),
        }
        return (jnp.sum(batch.advantage), jax.random.key_data(key)), StepInfo(jnp.zeros(2), metrics)


def test_off_policy_agents_do_not_learn_from_rollouts():
    plan = Plan(8, num_envs=2, start_steps=0, update_every=8, num_updates=8, mini_batch_size=2, test_every=0)
    with pytest.raises(ValueError, match=r"Agent does not learn from a Rollout; give it a replay buffer"):
        jax.eval_shape(lambda: loop.init(jax.random.key(0), Agent(), jb.rollout(4, 2), ENV, plan))


def test_a_rollout_is_learned_from_in_epochs_and_observed_afterwards():
    plan = Plan(
        total_steps=16, num_envs=2, start_steps=0, update_every=8, num_updates=8, mini_batch_size=2, test_every=0
    )
    rollout, agent = jb.rollout(4, 2, gamma=0.5, gae_lambda=1.0, normalize=False), OnPolicy()

    @jax.jit
    def run():
        state = loop.init(jax.random.key(0), agent, rollout, ENV, plan)
        return loop.run(state, agent, rollout, ENV, plan, 2)

    state = run()
    assert state.buffer == ()
    assert (state.agent.rows, state.agent.num_steps, state.iteration) == (16, 16, 2)
    _, metrics = train_state.read_metrics(state, plan)
    assert metrics["rows"] == 4  # 0 in the first iteration, 8 in the second
    assert metrics["reward"] == 2 * 2
    assert metrics["weight"] == 1
    assert len(distinct(state.agent.keys[:16])) == 16
    # Each epoch, of four minibatches, goes once through all rows.
    advantages = np.asarray(state.agent.rows_at_steps)
    sums = advantages[:16].reshape(4, 4).sum(axis=1)
    np.testing.assert_allclose(sums[0], sums[1], rtol=1e-5)
    np.testing.assert_allclose(sums[2], sums[3], rtol=1e-5)
    # First environment: 3 steps of 2 to the end, then one whose successor is worth 10; second: 4 steps, then 40.
    first, second = [2 + 1 + 0.5, 2 + 1, 2, 2 + 5], [2 + 1 + 0.5 + 0.25 + 40 / 16, 2 + 1 + 0.5 + 5, 2 + 1 + 10, 2 + 20]
    values = [0, 10, 20, 0, 0, 10, 20, 30]
    np.testing.assert_allclose(sums[0], sum(first) + sum(second) - sum(values), rtol=1e-5)
    assert np.any(advantages[:4] != advantages[4:8])  # in another order


def test_memories_learn_from_whole_environments():
    obs = jnp.arange(6.0).reshape(3, 2)
    no = jnp.zeros((3, 2), bool)
    chunk = jb.Transition(obs, obs, obs, no, no, obs + 2, {"rows": obs})
    rollout = jb.rollout(3, 2, normalize=False)
    rows = on_policy._batch(OnPolicy(), rollout, None, chunk)
    by_columns = type("ByColumns", (OnPolicy,), {"learns_from_columns": True})()
    columns = on_policy._batch(by_columns, rollout, None, chunk)
    np.testing.assert_array_equal(rows.obs, obs)
    np.testing.assert_array_equal(columns.obs, obs.T[None])
    np.testing.assert_array_equal(columns.advantage[0].T, rows.advantage)
    np.testing.assert_array_equal(rows.extras["value"], 10 * obs)
    np.testing.assert_array_equal(rows.extras["reward"], obs)
