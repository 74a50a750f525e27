"""Training on a mesh: the same loop on any number of devices."""

from __future__ import annotations

import dataclasses
import functools

import chex
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from support.mesh import on_devices

import jaxrl_buffers as jb
from algorithms import DDQN, PPO, SAC, Normalized, Plan, Recurrent, Torso, environments
from algorithms.training import loop, parallel, train_state
from algorithms.training.keys import iteration_keys

SMALL, GRU = Torso((8,)), Torso((8,), memory="gru", memory_size=4)
PLAN = Plan(400, num_envs=8, start_steps=160, update_every=16, num_updates=2, mini_batch_size=16, test_every=0)
ROLLOUT = Plan(320, num_envs=8, start_steps=0, update_every=64, num_updates=4, mini_batch_size=32, test_every=0)
CARTPOLE, PENDULUM = environments.make("CartPole-v1"), environments.make("Pendulum-v1")
PARTS = {
    "ddqn": (DDQN(CARTPOLE.action_space, SMALL), jb.prioritized(30, 8, n=3), CARTPOLE, PLAN),
    "sac": (
        Normalized(SAC(PENDULUM.action_space, SMALL)),
        jb.emphasize_recent(30, 8, sampler=jb.Prioritized(weighting="alf"), adaptive=True, c_min=20),
        PENDULUM,
        dataclasses.replace(PLAN, on_nan="skip"),
    ),
    "ppo": (Normalized(PPO(CARTPOLE.action_space, SMALL)), jb.rollout(8, 8), CARTPOLE, ROLLOUT),
    "ppo_memory": (Recurrent(PPO(CARTPOLE.action_space, GRU)), jb.rollout(8, 8), CARTPOLE, ROLLOUT),
    "memory": (
        Recurrent(DDQN(CARTPOLE.action_space, GRU)),
        jb.sequences(30, 8, sequence_length=4, sampler=jb.Prioritized()),
        CARTPOLE,
        PLAN,
    ),
}


@functools.cache
def program(name, mesh, count=None):
    """Return a program that begins, or makes iterations; `parallel.init` and `run` would compile in every call."""
    plan = parallel.on_mesh(mesh, PARTS[name][3], *PARTS[name][:2])
    parts, env = parallel.parts(*PARTS[name][:2], plan), PARTS[name][2]
    if count is None:
        return jax.jit(parallel.spread(lambda key: loop.init(key, *parts, env, plan), mesh, gives_state=True))
    return jax.jit(parallel.spread(lambda state: loop.run(state, *parts, env, plan, count), mesh, gives_state=True))


def trained(name, mesh, key, *chunks):
    """Return the state after chunks of iterations, as NumPy's arrays, and where its leaves lie."""
    state = program(name, mesh)(key)
    for count in chunks:
        state = program(name, mesh, count)(state)
    return plain(state), state


def plain(state):
    return jax.device_get(state._replace(key=jax.random.key_data(state.key)))


@pytest.mark.parametrize("name", PARTS)
def test_devices_train_one_agent(name):
    """All devices have the same agent, which learns; each has its own environments and rows."""
    mesh = parallel.make_mesh(4)
    begun = parallel.init(mesh, jax.random.key(0), *PARTS[name])
    state = parallel.run(mesh, begun, *PARTS[name], 3)
    after = plain(state)
    for leaf in jax.tree.leaves(state.agent):
        copies = [np.asarray(part.data) for part in leaf.addressable_shards]
        assert len(copies) == 4
        for other in copies[1:]:
            np.testing.assert_array_equal(other, copies[0])
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(begun))  # its memory was used up
    chex.assert_tree_all_finite(after.agent)
    obs = after.collector.env.obs
    assert len(np.unique(obs, axis=0)) == len(obs) == 8
    plan = parallel.on_mesh(mesh, PARTS[name][3], *PARTS[name][:2])
    read = parallel.spread(lambda state: train_state.read_metrics(state, plan)[1], mesh)
    metrics = jax.device_get(jax.jit(read)(state))
    assert int(metrics["steps"]) == PARTS[name][3].steps(3)
    assert all(np.isfinite(value) for name, value in metrics.items() if not name.startswith("episode_"))
    assert metrics["skipped_updates" if name == "sac" else "nonfinite_losses"] == 0
    if not name.startswith("ppo"):
        assert after.buffer.storage.head.tolist() == [26] * 4
        assert not np.array_equal(*jax.tree.leaves(after.buffer.storage.data)[0][:2])


def test_results_do_not_depend_on_chunks():
    """The same mesh gives the same bits, however the run is cut, and another key gives others."""
    mesh = parallel.make_mesh(2)
    whole, parts = (trained("ddqn", mesh, jax.random.key(1), *chunks)[0] for chunks in ((4,), (2, 2)))
    chex.assert_trees_all_equal(whole, parts)
    other = trained("ddqn", mesh, jax.random.key(2), 4)[0]
    assert not np.array_equal(*(one.agent.params.critic["params"]["Dense_0"]["kernel"] for one in (whole, other)))


def test_one_device_is_the_loop_itself():
    agent, buffer, env, plan = PARTS["ddqn"]
    program = jax.jit(lambda key: loop.run(loop.init(key, agent, buffer, env, plan), agent, buffer, env, plan, 2))
    chex.assert_trees_all_equal(
        trained("ddqn", parallel.make_mesh(1), jax.random.key(0), 2)[0], plain(program(jax.random.key(0)))
    )


def test_seeds_and_devices():
    """A mesh of two axes: each seed gets what it would get alone on two devices."""
    keys = jax.random.split(jax.random.key(3), 4)
    together = trained("ddqn", parallel.make_mesh(2, num_groups=2), keys, 2)[0]
    alone = trained("ddqn", parallel.make_mesh(2), keys[1], 2)[0]
    chex.assert_trees_all_close(jax.tree.map(lambda leaf: leaf[1], together), alone, rtol=1e-4, atol=1e-5)
    assert together.buffer.storage.head.shape == (4, 2)
    assert together.collector.env.obs.shape == (4, 8, 4)


def test_an_environment_has_its_keys_on_any_number_of_devices():
    plan = dataclasses.replace(PLAN, devices=4)
    key = jax.random.key(5)
    words = lambda keys: jax.tree.map(jax.random.key_data, keys)  # noqa: E731
    one = words(iteration_keys(key, PLAN))
    many = on_devices(lambda key: words(iteration_keys(key, plan)), 4, P())(key)
    np.testing.assert_array_equal(np.concatenate(many.env, axis=1), one.env)
    drawn = np.concatenate([np.asarray(keys).reshape(-1, 2) for keys in many])
    assert len(np.unique(drawn, axis=0)) == len(drawn)
    states = [trained("ppo", parallel.make_mesh(devices), key)[0].collector for devices in (1, 2, 8)]
    for other in states[1:]:
        chex.assert_trees_all_equal(other, states[0])


def test_what_does_not_divide_is_refused():
    agent, buffer, env, plan = PARTS["ddqn"]
    with pytest.raises(ValueError, match=r"num_envs=8.*3.*6 or 9"):
        parallel.init(parallel.make_mesh(3), jax.random.key(0), agent, buffer, env, plan)
    with pytest.raises(ValueError, match=r"mini_batch_size=12.*8 or 16"):
        Plan(400, num_envs=8, mini_batch_size=12, devices=8)
    with pytest.raises(ValueError, match="9 devices are needed, but there are 8"):
        parallel.make_mesh(9)
    mixture = jb.Mixture((buffer, jb.prioritized(30, 6)))
    with pytest.raises(ValueError, match="6 environments cannot be split over 4 devices; 4 or 8 env"):
        parallel.on_mesh(parallel.make_mesh(4), plan, agent, mixture)
    with pytest.raises(ValueError, match=r"update_every"):
        parallel.init(parallel.make_mesh(2), jax.random.key(0), PARTS["ppo"][0], jb.rollout(4, 8), CARTPOLE, ROLLOUT)
    parallel.check(jb.Mixture((buffer, buffer), (7, 1)), dataclasses.replace(PLAN, devices=2))
    for shared in (
        jb.Mixture((buffer, buffer), (7, 1)),
        buffer.replace(sampler=jb.Recent(jb.Combined(jb.Prioritized(), (jb.LastN(2.0), jb.Uniform()), (0.1, 0.1)))),
    ):
        with pytest.raises(ValueError, match=r"mini_batch_size=16.*8 devices, a batch of 2 has no sample.*to (48|64)"):
            parallel.check(shared, dataclasses.replace(PLAN, devices=8))
    assert Plan(4_000, devices=8).num_envs == 8
    assert Plan(4_800, num_envs=12, devices=6).mini_batch_size == 66


def test_only_a_rollout_asks_for_an_on_policy_agent(monkeypatch):
    """Since Python 3.12, every wrapper looks like one. Here, everything does."""
    monkeypatch.setattr(parallel, "OnPolicyAgent", object)
    assert parallel.on_mesh(parallel.make_mesh(2), PARTS["sac"][3], *PARTS["sac"][:2]).devices == 2
