"""Observation normalization around every agent."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.agents import AGENTS, OBS, observations, sample

import jaxrl_buffers as jb
from algorithms import DDQN, PPO, Discrete, Normalized, Plan, Torso, environments, train
from algorithms.runs.build import build
from algorithms.runs.settings import Settings
from jaxrl_buffers import Transition

observe = jax.jit(Normalized.observe)
normalize = jax.jit(Normalized.normalize)
SMALL = DDQN(Discrete(2), Torso((4,)))


@jax.jit
def init(agent):
    return agent.init(jax.random.key(0), OBS, agent.action_space.example)


def chunk_of(obs):
    """Return a chunk whose observations are given, `[K, N, ...]`."""
    zeros = jnp.zeros(jax.tree.leaves(obs)[0].shape[:2])
    return Transition(obs, zeros, zeros, zeros, zeros, obs)


def chunk(rng, num_rows, num_envs, offset=3.0, scale=2.0):
    x = np.float32(offset + scale * rng.normal(size=(num_rows, num_envs, 4)))
    image = rng.integers(0, 256, (num_rows, num_envs, 5, 5, 1), np.uint8)
    return chunk_of({"x": x, "image": image})


@pytest.mark.parametrize(("offset", "scale"), [(0.0, 1.0), (1e3, 1.0), (-5.0, 1e-3), (0.0, 1e4)])
def test_statistics_are_those_of_numpy(offset, scale):
    agent = Normalized(SMALL)
    state, rng = init(agent), np.random.default_rng(0)
    chunks = [chunk(rng, rows, 4, offset, scale) for rows in (1, 5, 1, 30, 5)]
    for one in chunks:
        state = observe(agent, state, one)
    rows = np.concatenate([one.obs["x"].reshape(-1, 4) for one in chunks]).astype(np.float64)
    (known,) = [moments for moments in state.moments if moments]
    assert state.num_observed == len(rows)
    np.testing.assert_allclose(known.mean, rows.mean(0), rtol=1e-4, atol=1e-5 * scale)
    np.testing.assert_allclose(known.variance, rows.var(0), rtol=2e-3)
    seen = normalize(agent, state, chunks[3].obs)
    expected = (chunks[3].obs["x"] - rows.mean(0)) / rows.std(0)
    np.testing.assert_allclose(seen["x"], expected, atol=5e-3)
    np.testing.assert_array_equal(seen["image"], chunks[3].obs["image"])


def test_long_runs_neither_drift_nor_stop():
    agent = Normalized(SMALL)
    state = init(agent)._replace(num_observed=jnp.float32(2**25))  # where count + 1 == count
    state = observe(agent, state, chunk(np.random.default_rng(0), 1, 1, offset=1e4))
    (known,) = [moments for moments in state.moments if moments]
    assert np.all(known.mean > 0)
    assert np.all(np.isfinite(known.variance))


def test_constant_and_extreme_observations_stay_small():
    agent = Normalized(SMALL, clip=5.0)
    state = init(agent)
    constant = {"x": jnp.full((7, 3, 4), 1000.1), "image": jnp.zeros((7, 3, 5, 5, 1), jnp.uint8)}
    for _ in range(20):
        state = observe(agent, state, chunk_of(constant))
    assert np.all(np.abs(normalize(agent, state, constant)["x"]) < 0.5)
    extreme = {**constant, "x": constant["x"] * 1e6}
    np.testing.assert_array_equal(normalize(agent, state, extreme)["x"], np.full((7, 3, 4), 5.0))


@pytest.mark.parametrize("name", ["ddqn", "ppo"])
def test_scaled_observations_are_acted_upon_alike(name):
    agent = Normalized(AGENTS[name]())
    rng, act = np.random.default_rng(0), jax.jit(Normalized.act, static_argnames="deterministic")
    rows, obs = chunk(rng, 200, 4), observations(jax.random.key(1), 6)
    obs = {**obs, "x": 3 + 2 * obs["x"]}

    def actions(scale, offset):
        state = observe(agent, init(agent), chunk_of({**rows.obs, "x": offset + scale * rows.obs["x"]}))
        seen = {**obs, "x": offset + scale * obs["x"]}
        return act(agent, state, seen, (), jax.random.key(2), deterministic=True)[0]

    np.testing.assert_allclose(actions(100.0, 7.0), actions(1.0, 0.0), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(actions(0.01, -1.0), actions(1.0, 0.0), rtol=1e-3, atol=1e-5)


def update(agent, state, batch, key):
    grads, info = agent.gradients(state, batch, key)
    return agent.apply(state, grads), info


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_keeps_structure_dtypes_and_types(name):
    agent, batch = Normalized(AGENTS[name]()), sample(AGENTS[name](), jax.random.key(3))

    def steps(agent, rows, batch, key):
        before = init(agent)
        return before, update(agent, agent.observe(before, rows), batch, key)[0]

    before, after = jax.eval_shape(steps, agent, chunk(np.random.default_rng(0), 9, 4), batch, jax.random.key(4))
    assert jax.tree.structure(before) == jax.tree.structure(after)
    for one, two in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert (one.shape, one.dtype, False) == (two.shape, two.dtype, two.weak_type)


@pytest.mark.parametrize("name", ["ddqn", "ppo_discrete"])
def test_an_update_sees_normalized_observations(name):
    plain, jit_update = AGENTS[name](), jax.jit(lambda *args: update(*args))
    agent, batch, key = Normalized(plain), sample(plain, jax.random.key(3)), jax.random.key(4)
    state = observe(agent, init(agent), chunk(np.random.default_rng(0), 9, 4))
    after, info = jit_update(agent, state, batch, key)
    jit_update(jb.with_parameters(agent, {"agent.max_grad_norm": 0.1, "clip": 3.0}), after, batch, key)
    assert jit_update._cache_size() == 1

    fields = [field for field in ("obs", "next_obs") if hasattr(batch.batch, field)]
    seen = batch.batch._replace(**{field: normalize(agent, state, getattr(batch.batch, field)) for field in fields})
    _, expected = jit_update(plain, state.agent, batch._replace(batch=seen), key)
    np.testing.assert_allclose(info.priorities, expected.priorities, rtol=1e-4)
    _, raw = jit_update(plain, state.agent, batch, key)
    assert np.any(np.abs(raw.priorities - info.priorities) > 1e-3)


def test_ppo_learns_from_what_its_policy_saw():
    """In the first minibatch the policy is still the one that acted, so the divergence is exactly zero."""
    env = environments.make("CartPole-v1")
    agent, rollout = Normalized(PPO(env.action_space, Torso((8,)), learning_rate_pi=0.0)), jb.rollout(8, num_envs=2)
    plan = Plan(64, 2, start_steps=0, update_every=16, num_updates=2, mini_batch_size=8, test_every=0)
    state, metrics = jax.jit(lambda key: train(key, agent, rollout, env, plan))(jax.random.key(0))
    np.testing.assert_allclose(metrics["kl"], 0, atol=1e-6)
    assert state.agent.num_observed == 64


@pytest.mark.parametrize("algorithm", ["ddqn", "ppo"])
def test_the_setting_wraps_the_agent(algorithm):
    plan = Plan(total_steps=2_000, start_steps=0 if algorithm == "ppo" else 1_000)
    settings = Settings(algorithm, "CartPole-v1", plan, normalize=True, agent={"max_grad_norm": 2.0})
    agent = build(settings).agent
    assert isinstance(agent, Normalized)
    assert jb.parameters(agent)["agent.max_grad_norm"] == 2.0
    assert Settings.from_dict(settings.to_dict()) == settings


def test_training_gathers_statistics_for_every_seed():
    env = environments.make("CartPole-v1")
    agent = Normalized(DDQN(env.action_space, Torso((8,))))
    plan = Plan(60, 2, start_steps=20, update_every=4, num_updates=1, mini_batch_size=4, test_every=0)
    keys = jax.random.split(jax.random.key(0), 2)
    state, _ = jax.jit(jax.vmap(lambda key: train(key, agent, jb.uniform(50, num_envs=2), env, plan)))(keys)
    np.testing.assert_array_equal(state.agent.num_observed, [60, 60])
    (known,) = state.agent.moments
    assert jnp.all(known.mean[0] != known.mean[1])
    stored = state.buffer.storage.data.obs  # raw, as environments gave them
    np.testing.assert_allclose(known.mean[0], stored[0, :30].reshape(-1, 4).mean(0), atol=1e-5)


def test_a_bad_clip_is_refused():
    with pytest.raises(ValueError, match="clip"):
        Normalized(SMALL, clip=-1.0)
