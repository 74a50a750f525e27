"""Agents that learn on several devices: the gradient of all devices is that of one device with all samples."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from support.agents import AGENTS, OBS, sample, without_images
from support.mesh import AXIS, make_mesh, on_devices

from algorithms import DDQN, PPO, SAC, AttractionKL, Box, Discrete, Normalized, Recurrent, RewardPrediction, Torso
from algorithms.addons import behavior
from algorithms.networks.distributions import Categorical
from algorithms.wrappers.data_parallel import DataParallel
from jaxrl_buffers import Batch, Handle, Sample, Transition
from jaxrl_buffers.rollouts import RolloutBatch

D, B = 4, 12


def both(agent, state, batch, key):
    """Return gradients, metrics, priorities and the next state of one device and of `D` devices."""

    def step(agent, state, batch, key):
        grads, info = agent.gradients(state, batch, key)
        return {"grads": grads, "metrics": info.metrics, "after": agent.apply(state, grads)}, info.priorities

    mesh = make_mesh(D)
    parallel = jax.shard_map(
        lambda *args: step(DataParallel(agent, AXIS), *args),
        mesh=mesh,
        in_specs=(P(), P(AXIS), P()),
        out_specs=(P(), P(AXIS)),  # P() is accepted only for what is the same on all devices
    )
    return jax.jit(lambda *args: step(agent, *args))(state, batch, key), jax.jit(parallel)(state, batch, key)


def check_same(agent, batch, key):
    state = agent.init(jax.random.key(7), OBS["x"], agent.action_space.example)
    one, many = both(agent, state, batch, key)
    chex.assert_trees_all_close(many, one, rtol=2e-5, atol=2e-6)
    norms = [name for name in one[0]["metrics"] if name.startswith("grad_norm")]
    assert norms
    assert all(float(one[0]["metrics"][name]) > 0 for name in norms)


@pytest.mark.parametrize("name", AGENTS)
def test_gradients_are_those_of_all_samples(name, monkeypatch):
    agent = AGENTS[name]()
    batch = without_images(sample(agent, jax.random.key(1), B))
    # Random numbers differ from device to device, so they are left out.
    monkeypatch.setattr(jax.random, "normal", lambda key, shape, dtype=jnp.float32: jnp.zeros(shape, dtype))
    weights = jnp.linspace(0.1, 3.0, B) if name[:3] != "ppo" else (jnp.arange(B) < 7).astype(jnp.float32)
    check_same(agent, batch._replace(weights=weights), jax.random.key(2))


def sequences(agent, num=8, length=5):
    """Return sequences whose masks differ much from device to device."""
    keys = jax.random.split(jax.random.key(3), 5)
    obs, next_obs = (jax.random.normal(key, (num, length, 4)) for key in keys[:2])
    mask = jnp.arange(length)[None] >= (jnp.arange(num)[:, None] * 5 // num)
    action = jax.random.randint(keys[2], (num, length), 0, 3)
    reward = jax.random.normal(keys[3], (num, length))
    carry = jax.tree.map(lambda leaf: jnp.repeat(leaf, num, axis=0), agent.initial_carry(1)[1])
    handle = Handle(jnp.zeros(num, jnp.int32), jnp.arange(num, dtype=jnp.int32))
    if isinstance(agent.agent, PPO):
        carry = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], length, axis=1), carry)
        carry["is_first"] = carry["is_first"].at[:, 1:].set(False)
        extras = {"action": action, "log_prob": -1 - 0.1 * reward, "reward": reward, "carry": carry}
        batch = RolloutBatch(obs, action, reward, reward, mask, extras)
        return Sample(batch, handle, mask.astype(jnp.float32))
    batch = Batch(obs, action, reward, jnp.full(mask.shape, 0.9), next_obs, mask, {"carry": carry})
    return Sample(batch, handle, jnp.linspace(0.5, 2.0, num))


@pytest.mark.parametrize("algorithm", [DDQN, PPO])
def test_memories_count_the_rows_of_all_devices(algorithm):
    agent = Recurrent(algorithm(Discrete(3), Torso((8,), memory="gru", memory_size=4)))
    check_same(agent, sequences(agent), jax.random.key(2))


def test_addons():
    """Each device alone would choose another behavior as the nearest."""
    one, other = (
        behavior(lambda obs, p=p: Categorical(jnp.log(jnp.broadcast_to(jnp.array(p), (obs.shape[0], 3)))))
        for p in ([0.8, 0.1, 0.1], [0.1, 0.1, 0.8])
    )
    addons = (AttractionKL((one, other), scale=0.3), RewardPrediction())
    agent = SAC(Discrete(3), Torso((8,)), addons=addons)
    batch = without_images(sample(agent, jax.random.key(1), B))
    state = agent.init(jax.random.key(7), OBS["x"], agent.action_space.example)
    one, many = both(agent, state, batch, jax.random.key(2))
    norm = many[0]["metrics"].pop("grad_norm_pi")
    assert norm != one[0]["metrics"].pop("grad_norm_pi")  # with those of the add-ons
    chex.assert_trees_all_close(many, one, rtol=2e-5, atol=2e-6)


def test_statistics_are_those_of_all_observations():
    agent = Normalized(DDQN(Discrete(3), Torso((8,))))
    obs = jax.random.normal(jax.random.key(0), (5, 8, 4)) + 10.0 * jnp.arange(8.0)[None, :, None]  # devices differ
    zeros = jnp.zeros((5, 8))
    chunk = Transition(obs, zeros, zeros, zeros > 0, zeros > 0, obs)
    state = agent.init(jax.random.key(1), jax.ShapeDtypeStruct((4,), jnp.float32), agent.action_space.example)
    parallel = jax.shard_map(
        lambda state, chunk: DataParallel(agent, AXIS).observe(state, chunk),
        mesh=make_mesh(D),
        in_specs=(P(), P(None, AXIS)),
        out_specs=P(),
    )
    after, one = state, state
    for part in (chunk, jax.tree.map(lambda leaf: leaf[:2] * 3, chunk)):
        after, one = jax.jit(parallel)(after, part), agent.observe(one, part)
    chex.assert_trees_all_close(after[1:], one[1:], rtol=1e-5)
    assert float(after.num_observed) == 56


def test_devices_explore_differently():
    agent = DataParallel(SAC(Box((-1.0,), (1.0,)), Torso((8,))), AXIS)
    state = agent.init(
        jax.random.key(0), jax.ShapeDtypeStruct((2,), jnp.float32), jax.ShapeDtypeStruct((1,), jnp.float32)
    )
    act = on_devices(lambda state, key: agent.act(state, jnp.zeros((3, 2)), (), key)[0], D, P(), P())
    actions = np.asarray(act(state, jax.random.key(1)))
    assert len(np.unique(actions)) == actions.size


def test_devices_learn_with_random_numbers_of_their_own():
    """SAC draws actions for its targets, so equal samples have other errors on each device."""
    agent = AGENTS["sac"]()
    batch = without_images(sample(agent, jax.random.key(1), B))
    state = agent.init(jax.random.key(7), OBS["x"], agent.action_space.example)
    gradients = on_devices(lambda *args: DataParallel(agent, AXIS).gradients(*args)[1].priorities, D, P(), P(), P())
    priorities = np.asarray(gradients(state, batch, jax.random.key(2)))
    assert len(np.unique(priorities, axis=0)) == D
