"""Exported policies act as the policies do, by JAX alone."""

from __future__ import annotations

import importlib.util
import subprocess

import jax
import jax.export
import numpy as np
import pytest
from support.only_jax import python  # noqa: F401, a fixture
from support.trained import KINDS, agent_states, observations, save_agent, small_settings

from algorithms import load_policy

pytest.importorskip("flatbuffers")


def policy_of(kind, tmp_path):
    settings = small_settings(**{"algorithm": kind, **KINDS[kind]})
    save_agent(tmp_path / "run", settings, agent_states(settings, seed=2))
    return load_policy(tmp_path / "run")


def read(path):
    return jax.export.deserialize(bytearray(path.read_bytes()))


@pytest.mark.parametrize("kind", KINDS)
def test_exported_policies_act_alike(kind, tmp_path):
    """For any number of observations, and in every step of an episode."""
    policy, path = policy_of(kind, tmp_path), tmp_path / "policy.jaxexport"
    policy.export(path)
    exported = read(path)
    assert exported.platforms == ("cpu", "cuda", "tpu")
    for num in (1, 3):
        obs = observations(policy.env, num)
        if "memory" not in KINDS[kind]:
            np.testing.assert_allclose(exported.call(obs), policy(obs), rtol=1e-5)
            continue
        own, is_first = None, np.ones(num, bool)
        (_, carry, _), _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
        carry = tuple(np.full((num, *leaf.shape[1:]), 7, leaf.dtype) for leaf in carry)  # it does not matter what
        for seed in range(3):
            obs = observations(policy.env, num, seed)
            expected, own = policy.act(obs, own)
            action, carry = exported.call(obs, carry, is_first)
            np.testing.assert_allclose(action, expected, rtol=1e-5)
            is_first = np.zeros(num, bool)


@pytest.mark.parametrize(("algorithm", "name"), [("ddqn", "later"), ("sac", "table")])
def test_policies_of_gymnasium_return_its_actions(algorithm, name, tmp_path):
    settings = small_settings(algorithm, f"support.own_terms:{name}")
    save_agent(tmp_path / "run", settings, agent_states(settings, seed=2))
    policy, path = load_policy(tmp_path / "run"), tmp_path / "policy.jaxexport"
    policy.export(path)
    observed, actions = policy.env.spaces
    samples = [observed.sample() for _ in range(5)]
    obs = jax.tree.map(lambda *leaves: np.stack(leaves), *samples)
    action = np.asarray(read(path).call(policy.env.encode(obs)))
    assert all(one.astype(actions.dtype) in actions for one in action)
    np.testing.assert_allclose(action, policy(obs), rtol=1e-5)


def test_exported_exploration_takes_a_seed(tmp_path):
    policy, path = policy_of("sac", tmp_path), tmp_path / "policy.jaxexport"
    policy.export(path, deterministic=False)
    call, obs = read(path).call, observations(policy.env, 2)
    actions = [call(obs, np.uint32(seed)) for seed in (1, 2)]
    assert not np.array_equal(*actions)
    np.testing.assert_allclose(actions[0], policy(obs, deterministic=False, key=1), rtol=1e-5)


def test_exported_noise_goes_on(tmp_path):
    policy, path = policy_of("ddpg", tmp_path), tmp_path / "policy.jaxexport"
    policy.export(path, deterministic=False)
    exported, obs = read(path), observations(policy.env, 2)
    carry = tuple(np.zeros((2, *leaf.shape[1:]), leaf.dtype) for leaf in exported.in_avals[1:3])
    action, carry = exported.call(obs, carry, np.ones(2, bool), np.uint32(5))
    expected, own = policy.act(obs, None, deterministic=False, key=5)
    np.testing.assert_allclose(action, expected, rtol=1e-5)
    action, _ = exported.call(obs, carry, np.zeros(2, bool), np.uint32(6))
    np.testing.assert_allclose(action, policy.act(obs, own, deterministic=False, key=6)[0], rtol=1e-5)


def test_a_file_holds_what_acting_needs(tmp_path):
    """Neither critics nor optimizers."""
    policy, path = policy_of("sac", tmp_path), tmp_path / "policy.jaxexport"
    policy.export(path)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(policy.state.params.actor))
    assert path.stat().st_size < size + 20_000


SCRIPT = """
import sys, numpy, jax, jax.export
assert not [name for name in ("algorithms", "jaxrl_buffers", "flax", "gymnax") if name in sys.modules]
try:
    import flax
    sys.exit("flax is here")
except ModuleNotFoundError:
    pass
policy = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
obs = numpy.load(sys.argv[2], allow_pickle=True).item()["obs"]
numpy.save(sys.argv[3], policy.call(obs))
"""


@pytest.mark.parametrize("kind", ["ddqn", "goals", "averaged"])
def test_where_there_is_only_jax(kind, python, tmp_path):  # noqa: F811
    policy = policy_of(kind, tmp_path)
    policy.export(tmp_path / "policy.jaxexport")
    obs = observations(policy.env, 4)
    np.save(tmp_path / "obs.npy", {"obs": obs}, allow_pickle=True)
    command = [python, "-I", "-c", SCRIPT, *(tmp_path / name for name in ("policy.jaxexport", "obs.npy", "out.npy"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), policy(obs))


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    policy = policy_of("ddqn", tmp_path)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "flatbuffers" else find(name))
    with pytest.raises(ValueError, match=r"pip install 'jaxrl-buffers\[export\]'"):
        policy.export(tmp_path / "policy.jaxexport")
