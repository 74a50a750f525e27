"""Numbers that are not finite, and episodes with two ends: counted in the program."""

from __future__ import annotations

import dataclasses
import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import faulty

import jaxrl_buffers as jb
from algorithms import DDQN, MPO, PPO, Normalized, Plan, Torso, environments, train
from algorithms.training import faults, off_policy
from algorithms.training.metrics import Scalars, Sums

SMALL = Torso((4,))
PLAN = Plan(
    total_steps=80,
    num_envs=2,
    start_steps=40,
    update_every=4,
    num_updates=2,
    mini_batch_size=4,
    test_every=20,
    num_test_episodes=1,
)
ON_POLICY = dataclasses.replace(PLAN, start_steps=0, update_every=20, num_updates=4, mini_batch_size=10)
SPACE = environments.wrap(faulty.Faulty()).action_space
AGENTS = {"ddqn": Normalized(DDQN(SPACE, SMALL)), "ppo": Normalized(PPO(SPACE, SMALL))}
NUM_EPISODES = 80 // faulty.STEPS


@functools.cache
def program(name, on_nan):
    """Return training by the environment's parameters, compiled once for all of them."""
    env = environments.wrap(faulty.Faulty())
    plan = dataclasses.replace(ON_POLICY if name == "ppo" else PLAN, on_nan=on_nan)
    buffer = jb.rollout(10, 2) if name == "ppo" else jb.prioritized(50, 2)
    return jax.jit(lambda params: train(jax.random.key(0), AGENTS[name], buffer, env.replace(params=params), plan))


def run(name, on_nan="warn", **params):
    leaves = {name: jnp.asarray(value) for name, value in vars(faulty.FaultyParams(**params)).items()}
    return program(name, on_nan)(faulty.FaultyParams(**leaves))


def total(metrics):
    return {name: float(jnp.sum(metrics[name])) for name in faults.NAMES if name in metrics}


@pytest.mark.parametrize("name", AGENTS)
def test_nothing_is_counted_in_a_sound_run(name):
    state, metrics = run(name)
    counts = total(metrics)
    assert set(counts) == set(faults.NAMES) - {"skipped_updates"}
    assert counts == dict.fromkeys(counts, 0.0) | {"truncated_episodes": NUM_EPISODES}
    assert faults.num_nonfinite(state.agent) == 0


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rewards_are_counted_also_in_the_warm_up(name, value):
    state, metrics = run(name, reward=value)
    counts = total(metrics)
    assert counts["nonfinite_rewards"] == NUM_EPISODES
    assert counts["nonfinite_observations"] == 0
    assert counts["nonfinite_losses"] > 0
    assert counts["nonfinite_gradients"] > 0
    assert faults.num_nonfinite(state.agent) > 0
    assert jnp.sum(metrics["nonfinite_rewards"][:1]) == (2 if name == "ppo" else 8)  # up to step 20, or step 60


@pytest.mark.parametrize("name", AGENTS)
def test_observations_are_counted_in_both_places(name):
    """As what an action was chosen by, and as what it led to."""
    _, metrics = run(name, obs=math.nan)
    assert total(metrics)["nonfinite_observations"] == 2 * NUM_EPISODES
    assert total(metrics)["nonfinite_rewards"] == 0


def test_counts_are_since_the_last_reading_and_means_stay_useful():
    _, metrics = run("ddqn", reward=math.nan, at=faulty.STEPS)
    assert jnp.all(jnp.isnan(metrics["episode_return"]))
    np.testing.assert_array_equal(metrics["episode_length"][1:], faulty.STEPS)
    np.testing.assert_array_equal(metrics["epsilon"] > 0, True)
    np.testing.assert_array_equal(metrics["nonfinite_rewards"], [6, 4])


@pytest.mark.parametrize("name", AGENTS)
def test_training_goes_on_with_skip(name):
    _, metrics = run(name, "skip", reward=math.nan, at=1)
    few, of_few = run(name, "skip", reward=math.nan, share=0.1)
    sound, of_sound = run(name, "skip")
    num_updates = 16 if name == "ppo" else 20
    assert total(of_sound)["skipped_updates"] == 0
    assert 0 < total(of_few)["skipped_updates"] < num_updates
    assert total(of_few)["skipped_updates"] == total(of_few)["nonfinite_gradients"]
    assert total(of_few)["skipped_updates"] < total(metrics)["skipped_updates"] <= num_updates
    assert faults.num_nonfinite((few.agent, sound.agent)) == 0
    if name == "ddqn":
        assert few.agent.agent.num_updates == num_updates - total(of_few)["skipped_updates"]


@pytest.mark.parametrize("on_nan", ["warn", "skip"])
@pytest.mark.parametrize("name", AGENTS)
def test_statistics_of_observations_survive_with_skip(name, on_nan):
    state, _ = run(name, on_nan, obs=math.nan, share=0.1)
    assert (faults.num_nonfinite(state.agent) == 0) == (on_nan == "skip")
    assert (faults.num_nonfinite(state.agent.moments) == 0) == (on_nan == "skip")
    assert 0 < state.agent.num_observed <= 80
    assert (state.agent.num_observed < 80) == (on_nan == "skip")


def test_a_train_step_that_is_skipped_changes_nothing():
    """Nor does any of its passes; the error that is not finite gets the priority 0."""
    env = environments.wrap(faulty.Faulty())
    agent = MPO(SPACE, SMALL, num_passes=2)
    buffer = jb.ReplayBuffer(jb.Prioritized(alpha=1.0, epsilon=0.01), jb.NStep(), length=8)
    state = jax.jit(lambda key: agent.init(key, env.obs, SPACE.example))(jax.random.key(0))

    @jax.jit
    def step(rewards):
        rows = env.transition()
        chunk = jax.tree.map(lambda leaf: jnp.ones((4, 1, *leaf.shape), leaf.dtype), rows)
        stored = buffer.add(buffer.init(rows), chunk._replace(reward=rewards[:, None]))
        keys = jax.random.key(1), jax.random.key(2)
        return off_policy.train_step(agent, buffer, state, stored, *keys, batch_size=16, skip_nonfinite=True)

    for bad in (math.nan, math.inf):
        after, stored, metrics = step(jnp.array([0.0, 1.0, bad, 0.0]))
        chex.assert_trees_all_equal(after, state)
        assert metrics["skipped_updates"] == 1
        assert metrics["nonfinite_gradients"] == 1
        mass = np.asarray(stored.sampler.tree.leaves)[:4]
        np.testing.assert_allclose(mass[2], 0.01, rtol=1e-5)
        assert np.all(mass[[0, 1, 3]] > 0.01)
    after, _, metrics = step(jnp.zeros(4))
    assert metrics["skipped_updates"] == 0
    assert after.num_updates == 1


def test_an_update_that_would_leave_the_agent_not_finite_is_skipped():
    """Its gradients are finite, but the step along them is too far for a float32."""
    before, counts = {"w": jnp.ones(3)}, {"nonfinite_gradients": jnp.float32(0)}
    after = {"w": jnp.array([1.0, jnp.inf, 1.0])}
    kept, counted = faults.skip(before, after, counts)
    chex.assert_trees_all_equal(kept, before)
    assert counted["skipped_updates"] == 1
    by_design, counted = faults.skip(after, jax.tree.map(lambda leaf: leaf + 1, after), counts)
    np.testing.assert_array_equal(by_design["w"], [2, jnp.inf, 2])
    assert counted["skipped_updates"] == 0


def test_skipping_costs_nothing_where_nothing_is_at_fault():
    """The same bits with and without it."""
    one, two = (run("ddqn", on_nan)[0] for on_nan in ("warn", "skip"))
    chex.assert_trees_all_equal(one.agent, two.agent)


def test_which_metrics_are_losses():
    grads = {"w": jnp.array([1.0, 2.0])}
    metrics = {"loss_q": jnp.nan, "addon0_loss": jnp.inf, "loss_pi": 1.0, "q": jnp.nan, "lossless": jnp.nan}
    metrics = {name: jnp.float32(value) for name, value in metrics.items()}
    counts = faults.of_update(grads, metrics)
    assert (counts["nonfinite_losses"], counts["nonfinite_gradients"]) == (2, 0)
    for bad in (jnp.nan, -jnp.inf, 3e38):  # the norm of the last is not finite, and that is what clipping needs
        assert faults.of_update({"w": jnp.array([1.0, bad])}, {})["nonfinite_gradients"] == 1
    assert faults.of_update((), {})["nonfinite_gradients"] == 0


def test_leaves_that_cannot_be_infinite():
    chunk = jb.Transition(
        obs={"image": jnp.zeros((2, 1, 3), jnp.uint8), "x": jnp.array([[[0.0, jnp.nan]], [[0.0, 0.0]]])},
        action=jnp.zeros((2, 1)),
        reward=jnp.array([[0.0], [-jnp.inf]]),
        terminated=jnp.array([[True], [True]]),
        truncated=jnp.array([[False], [True]]),
        next_obs={"image": jnp.zeros((2, 1, 3), jnp.uint8), "x": jnp.zeros((2, 1, 2))},
    )
    found = [np.asarray(rows)[:, 0].tolist() for rows in faults.of_rows(chunk)]
    assert found == [[False, True], [True, False], [False, True], [False, True]]
    assert faults.num_nonfinite((chunk.obs, jax.random.key(0), jnp.int32(3), ())) == 1


def test_the_first_step_of_every_fault_is_kept():
    flags, zeros = jnp.zeros((1, 1), bool), jnp.zeros((1, 1))
    sound = jb.Transition(jnp.zeros((1, 1, 2)), zeros, zeros, flags, flags, jnp.zeros((1, 1, 2)))
    bad_reward, bad_obs = sound._replace(reward=zeros + jnp.nan), sound._replace(obs=sound.obs + jnp.inf)
    finished = environments.Finished(flags, zeros, zeros)

    def updates(losses, gradients):
        named = {"q": 1.0, "nonfinite_losses": losses, "nonfinite_gradients": gradients}
        scalars = Scalars.of(named)
        return scalars.replace(values=jnp.tile(scalars.values[None], (2, 1)))  # of two updates

    sums = Sums.zero(()).add(jnp.int32(3), bad_obs).with_names(updates(0, 0).names)
    sums = sums.add(jnp.int32(10), bad_obs, finished, updates(0, 0))
    sums = sums.add(jnp.int32(20), bad_reward, finished, updates(1, 0))
    sums = sums.add(jnp.int32(30), bad_reward, finished, updates(1, 1))
    first = dict(zip(faults.NAMES, sums.first_steps.tolist(), strict=True))
    assert first["nonfinite_rewards"] == first["nonfinite_losses"] == 20
    assert (first["nonfinite_observations"], first["nonfinite_gradients"], first["ended_both_ways"]) == (3, 30, 0)
    read = sums.read()
    assert (read["nonfinite_rewards"], read["nonfinite_observations"]) == (2, 2)
    assert (read["nonfinite_losses"], read["nonfinite_gradients"], read["q"]) == (4, 2, 1)


def test_episodes_with_two_ends_are_counted():
    _, metrics = run("ddqn", share=0.0, conflates=True)
    assert total(metrics)["ended_both_ways"] == total(metrics)["truncated_episodes"] == NUM_EPISODES


@pytest.mark.parametrize("on_nan", ["ignore", None])
def test_bad_policies(on_nan):
    with pytest.raises(ValueError, match=r"on_nan.*'warn', 'skip', 'stop'"):
        dataclasses.replace(PLAN, on_nan=on_nan)
