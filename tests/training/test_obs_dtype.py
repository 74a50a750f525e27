"""Observations that are zeros and ones take a quarter of the memory as booleans, and give the same training."""

from __future__ import annotations

import dataclasses
import functools

import chex
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.probes import Probe, ProbeParams

import jaxrl_buffers as jb
from algorithms import environments
from algorithms.networks import Torso
from algorithms.runs import memory_need, presets
from algorithms.runs.build import build
from algorithms.runs.settings import Settings
from algorithms.training import loop
from algorithms.training.plan import Plan

NAME = "Breakout-MinAtar"
PLAN = Plan(
    total_steps=120,
    num_envs=4,
    start_steps=60,
    update_every=4,
    num_updates=1,
    mini_batch_size=16,
    test_every=60,
    num_test_episodes=2,
)
SETTINGS = Settings(
    "ddqn", NAME, PLAN, sampler={"name": "prioritized"}, n_step=2, capacity=200, hidden_sizes=(16,), channels=(4,)
)


@functools.cache
def trained(obs_dtype):
    """Return the last state and the metrics of a short training."""
    agent, buffer, env, plan = build(dataclasses.replace(SETTINGS, obs_dtype=obs_dtype))
    return jax.jit(lambda key: loop.train(key, agent, buffer, env, plan))(jax.random.key(3))


def test_the_buffer_takes_a_quarter_for_its_observations():
    sizes = {}
    for obs_dtype in ("none", "bool", "uint8"):
        _, buffer, env, _ = build(dataclasses.replace(presets.preset("ddqn", NAME), obs_dtype=obs_dtype))
        state = jax.eval_shape(buffer.init, env.transition())
        sizes[obs_dtype] = memory_need.num_bytes(state)
        assert env.obs.dtype == state.storage.data.obs.dtype == {"none": jnp.float32}.get(obs_dtype, obs_dtype)
    saved = 2 * 100_000 * (10 * 10 * 4) * 3  # observation and successor, three bytes of four
    assert sizes["none"] - sizes["bool"] == sizes["none"] - sizes["uint8"] == saved
    assert sizes["bool"] < 0.26 * sizes["none"]


def test_training_is_the_same_bit_for_bit():
    (floats, float_metrics), (booleans, metrics) = trained("none"), trained("bool")
    assert booleans.buffer.storage.data.obs.dtype == bool
    chex.assert_trees_all_equal(booleans.agent, floats.agent)
    chex.assert_trees_all_equal(metrics, float_metrics)
    chex.assert_trees_all_equal(booleans.buffer.sampler, floats.buffer.sampler)
    rows, others = (state.buffer.storage.data for state in (booleans, floats))
    assert np.asarray(others.obs).any()
    chex.assert_trees_all_equal(jax.tree.map(lambda one, other: one.astype(other.dtype), rows, others), others)


def test_networks_see_booleans_as_zeros_and_ones_and_bytes_as_fractions():
    image = jax.random.bernoulli(jax.random.key(0), 0.3, (10, 10, 4))
    torso = Torso((8,))
    params = torso.init(jax.random.key(1), image)
    expected = torso.apply(params, image.astype(jnp.float32))
    chex.assert_trees_all_equal(torso.apply(params, image), expected)
    chex.assert_trees_all_equal(torso.apply(params, image.astype(jnp.uint8) * jnp.uint8(255)), expected)


def test_only_floating_point_leaves_change():
    env = environments.make("FourRooms-misc", obs_dtype="bool")
    assert env.obs.dtype == jnp.int32
    env = environments.make("BitFlip5-v0", obs_dtype="bool")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(env.obs)} == {"bool"}
    state = env.reset(jax.random.key(0), 3)
    after, transition, _ = env.step(state, jnp.zeros(3, jnp.int32), jax.random.key(1))
    for obs in (state.obs, after.obs, transition.obs, transition.next_obs):
        chex.assert_trees_all_equal_dtypes(obs, env.obs)
    floats = environments.make("BitFlip5-v0").reset(jax.random.key(0), 3)
    chex.assert_trees_all_equal(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), state.obs), floats.obs)
    chex.assert_trees_all_equal(state.inner, floats.inner)


def test_hindsight_works_on_booleans():
    env = environments.make("BitFlip5-v0", obs_dtype="bool")
    buffer = jb.hindsight(8, 2, **env.goal._asdict(), ratio=1.0)
    state = env.reset(jax.random.key(0), 2)
    rows = []
    for number in range(3):
        state, transition, _ = env.step(state, jnp.full(2, number, jnp.int32), jax.random.key(number))
        rows.append(transition)
    chunk = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
    sample = buffer.sample(buffer.add(buffer.init(env.transition()), chunk), jax.random.key(1), 16)
    reached = jnp.all(sample.batch.next_obs["achieved_goal"] == sample.batch.next_obs["desired_goal"], axis=1)
    assert reached.any()
    np.testing.assert_array_equal(sample.batch.discount == 0, reached)


@pytest.mark.parametrize("name", ["CartPole-v1", "UmbrellaChain-bsuite"])  # at the first step, and only later
@pytest.mark.parametrize("obs_dtype", ["bool", "uint8"])
def test_what_a_dtype_cannot_hold_is_refused(name, obs_dtype):
    with pytest.raises(ValueError, match=rf"{name} has observations such as .*, which {obs_dtype} cannot hold; leave"):
        environments.make(name, obs_dtype=obs_dtype)


@pytest.mark.parametrize("obs_dtype", ["bool", "uint8"])
def test_environments_of_ones_own(obs_dtype):
    env, params = gymnax.make("Catch-bsuite")
    assert environments.wrap(env, params, obs_dtype=obs_dtype).obs.dtype == obs_dtype
    with pytest.raises(ValueError, match=rf"Probe has observations such as -1\.0, which {obs_dtype} cannot hold"):
        environments.wrap(Probe(True), ProbeParams(length=4), obs_dtype=obs_dtype)


def test_unknown_dtypes_are_refused():
    with pytest.raises(ValueError, match="must be one of 'bool', 'uint8'"):
        environments.make(NAME, obs_dtype="int4")
    with pytest.raises(ValueError, match="must be one of 'none', 'bool', 'uint8'"):
        build(dataclasses.replace(SETTINGS, obs_dtype="int4"))


def test_the_setting_is_kept_with_a_run():
    settings = dataclasses.replace(SETTINGS, obs_dtype="bool")
    assert Settings.from_dict(settings.to_dict()) == settings
    before = {key: value for key, value in SETTINGS.to_dict().items() if key != "obs_dtype"}
    assert Settings.from_dict(before) == SETTINGS
