"""Environments with goals: what happens in them, and what would have happened with another goal."""

from __future__ import annotations

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import jaxrl_buffers as jb
from algorithms import environments
from algorithms.environments.goals import BitFlip, Goal, PointReach, bit_flip, point_reach

ENVIRONMENTS = [BitFlip(4), PointReach()]
step = jax.jit(lambda env, state, action, key: env.step(state, action, key))


def bits_state(env, bits, goal, time=0):
    """Return one environment in the middle of an episode."""
    inner = bit_flip.BitFlipState(*(jnp.asarray(leaf)[None] for leaf in (np.int32(time), bits, goal)))
    return env.reset(jax.random.key(0), 1)._replace(inner=inner)


def point_state(env, position, goal, time=0):
    position, goal = np.float32(position), np.float32(goal)
    inner = point_reach.PointReachState(*(jnp.asarray(leaf)[None] for leaf in (np.int32(time), position, goal)))
    return env.reset(jax.random.key(0), 1)._replace(inner=inner)


def test_an_action_flips_one_bit():
    env = environments.wrap(BitFlip(4))
    for action in range(4):
        state = bits_state(env, np.float32([0, 1, 1, 0]), np.zeros(4, np.float32))
        after, transition, _ = step(env, state, jnp.array([action]), jax.random.key(1))
        expected = np.float32([0, 1, 1, 0])
        expected[action] = 1 - expected[action]
        np.testing.assert_array_equal(after.inner.bits[0], expected)
        np.testing.assert_array_equal(transition.next_obs["observation"][0], expected)
        np.testing.assert_array_equal(transition.next_obs["achieved_goal"][0], expected)
        assert transition.reward[0] == -1
        assert not transition.terminated[0] | transition.truncated[0]


def test_reaching_the_goal_of_bits_terminates():
    env = environments.wrap(BitFlip(4))
    goal = np.float32([1, 1, 0, 0])
    state = bits_state(env, np.float32([1, 0, 0, 0]), goal)
    _, transition, finished = step(env, state, jnp.array([1]), jax.random.key(1))
    assert transition.reward[0] == 0
    assert transition.terminated[0]
    assert not transition.truncated[0]
    np.testing.assert_array_equal(transition.next_obs["achieved_goal"][0], goal)  # not the one after the reset
    assert finished.ended[0]


def test_the_point_moves_and_walls_stop_it():
    env = environments.wrap(PointReach())
    state = point_state(env, [0.95, 0.0], [-1, -1])
    after, transition, _ = step(env, state, jnp.array([[1.0, -0.5]]), jax.random.key(1))
    np.testing.assert_allclose(after.inner.position[0], [1.0, -0.05], atol=1e-6)
    np.testing.assert_allclose(transition.next_obs["achieved_goal"][0], [1.0, -0.05], atol=1e-6)
    assert transition.reward[0] == -1
    assert not transition.terminated[0]


@pytest.mark.parametrize(("distance", "reached"), [(0.049, True), (0.051, False)])
def test_the_region_of_the_goal(distance, reached):
    env = environments.wrap(PointReach())
    state = point_state(env, [0, 0], [0, 0.1 + distance])
    _, transition, _ = step(env, state, jnp.array([[0.0, 1.0]]), jax.random.key(1))
    assert transition.terminated[0] == reached
    assert transition.reward[0] == reached - 1


@pytest.mark.parametrize("env", ENVIRONMENTS, ids=str)
def test_time_limits_truncate(env):
    """Whole episodes of a policy that never reaches its goal."""
    env = environments.wrap(env)
    limit = env.max_episode_length
    still = jnp.zeros((3, *env.action_space.example.shape), env.action_space.example.dtype)
    start = env.reset(jax.random.key(0), 3)
    # One goal that flipping the first bit, or standing still, does not lead to.
    far = jnp.ones_like(start.inner.goal) * (1 - jnp.round(start.obs["achieved_goal"][:, 1:2]))
    state = start._replace(inner=start.inner.replace(goal=far))
    for time in range(limit):
        state, transition, finished = step(env, state, still, jax.random.key(time))
        assert not transition.terminated.any()
        np.testing.assert_array_equal(transition.truncated, time == limit - 1)
    np.testing.assert_array_equal(finished.episode_return, -limit)
    np.testing.assert_array_equal(finished.episode_length, limit)
    assert not Goal.is_reached(finished.episode_return, finished.episode_length).any()
    np.testing.assert_array_equal(state.inner.time, 0)


@pytest.mark.parametrize("env", ENVIRONMENTS, ids=str)
def test_observations_are_float32_and_of_the_space(env):
    env = environments.wrap(env)
    state = env.reset(jax.random.key(0), 5)
    action = env.action_space.sample(jax.random.key(1), 5)
    after, transition, _ = step(env, state, action, jax.random.key(2))
    space = env.env.observation_space(env.params).spaces
    for obs in (state.obs, transition.obs, transition.next_obs, after.obs):
        assert set(obs) == set(space) == {"observation", "achieved_goal", "desired_goal"}
        assert {str(leaf.dtype) for leaf in obs.values()} == {"float32"}
        assert all(leaf.shape[1:] == space[name].shape for name, leaf in obs.items())
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((after, transition)))
    assert len(np.unique(np.asarray(state.obs["desired_goal"]), axis=0)) > 1


def random_transitions(env, num_steps=60):
    """Return transitions `[num_steps, 4, ...]` of random actions."""

    def one(state, key):
        key_act, key_env = jax.random.split(key)
        state, transition, _ = env.step(state, env.action_space.sample(key_act, 4), key_env)
        return state, transition

    keys = jax.random.split(jax.random.key(1), num_steps)
    return jax.jit(lambda: jax.lax.scan(one, env.reset(jax.random.key(0), 4), keys)[1])()


@pytest.mark.parametrize("env", ENVIRONMENTS, ids=str)
def test_relabelling_with_its_own_goal_changes_nothing(env):
    env = environments.wrap(env)
    transition = random_transitions(env)
    assert transition.terminated.any() or not isinstance(env.env, BitFlip)
    relabeled = jax.vmap(jax.vmap(env.goal.relabel))(transition, transition.obs["desired_goal"])
    jax.tree.map(np.testing.assert_array_equal, relabeled, transition)


@pytest.mark.parametrize("env", ENVIRONMENTS, ids=str)
def test_relabelling_gives_what_the_environment_would_have_given(env):
    """The goals are those that other environments achieved, so that some are reached."""
    env = environments.wrap(env)
    transition = random_transitions(env)
    goal = np.roll(np.asarray(transition.next_obs["achieved_goal"]), 1, axis=0)
    goal[::2] = np.asarray(transition.next_obs["achieved_goal"])[::2]
    relabeled = jax.vmap(jax.vmap(env.goal.relabel))(transition, jnp.asarray(goal))
    np.testing.assert_array_equal(relabeled.obs["desired_goal"], goal)
    np.testing.assert_array_equal(relabeled.next_obs["desired_goal"], goal)
    for name in ("observation", "achieved_goal"):
        np.testing.assert_array_equal(relabeled.obs[name], transition.obs[name])
        np.testing.assert_array_equal(relabeled.next_obs[name], transition.next_obs[name])
    np.testing.assert_array_equal(relabeled.action, transition.action)
    np.testing.assert_array_equal(relabeled.truncated, transition.truncated)

    def again(obs, action, goal):
        state = env.env.reset_env(jax.random.key(0), env.params)[1]
        field = {"bits" if isinstance(env.env, BitFlip) else "position": obs["observation"]}
        return env.env.step_env(jax.random.key(0), state.replace(goal=goal, **field), action, env.params)

    next_obs, _, reward, terminated, _ = jax.vmap(jax.vmap(again))(transition.obs, transition.action, jnp.asarray(goal))
    jax.tree.map(np.testing.assert_array_equal, relabeled.next_obs, next_obs)
    np.testing.assert_array_equal(relabeled.reward, reward)
    np.testing.assert_array_equal(relabeled.terminated, terminated)
    assert terminated[::2].all()
    assert not terminated.all()


def test_success_is_told_from_returns_and_lengths():
    returns, lengths = jnp.array([-3.0, -2.0, 0.0, -4.0]), jnp.array([3, 3, 1, 4])
    np.testing.assert_array_equal(Goal.is_reached(returns, lengths), [False, True, True, False])


def test_names():
    assert environments.make("BitFlip-v0", num_bits=7).action_space.num_actions == 7
    assert environments.make("BitFlip15-v0").action_space.num_actions == 15
    assert environments.make("BitFlip15-v0").max_episode_length == 15
    for name in ("BitFlip-v0", "BitFlip15-v0", "PointReach-v0"):
        assert name in gymnax.registered_envs
    with pytest.raises(ValueError, match="BitFlip15-v0"):
        environments.make("BitFlip15")
    with pytest.raises(ValueError, match="did you mean PointReach-v0"):
        environments.make("PointReach")
    with pytest.raises(ValueError, match="num_bits"):
        environments.make("BitFlip-v0", num_bits=0)
    assert environments.make("CartPole-v1").goal is None


@pytest.mark.parametrize(("env", "name"), [(BitFlip(4), "relabel_bit_flip"), (PointReach(), "relabel_point_reach")])
def test_configs_name_the_relabelling(env, name):
    view = jb.Hindsight(jb.NStep(2), achieved=env.goal.achieved, relabel=env.goal.relabel)
    config = jb.to_config(view)
    assert config["config"]["relabel"] == name
    assert jb.from_yaml(yaml.safe_dump(config)) == view
