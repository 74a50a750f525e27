"""Policies taken out of runs act as their agents do, on whatever observations people have."""

from __future__ import annotations

import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.trained import KINDS, agent_states, observations, save_agent, small_settings

import algorithms
from algorithms import DDQN, Discrete, Policy, Torso, environments, load_policy
from algorithms.environments.gymnasium import from_factory
from algorithms.runs import policy as policy_module
from algorithms.runs import run
from algorithms.runs.build import build
from jaxrl_buffers import _manifest


def entry(values, index):
    return jax.tree.map(lambda leaf: leaf[index], values)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_policy_acts_as_its_agent(kind, tmp_path):
    settings = small_settings(**{"algorithm": kind, **KINDS[kind]})
    state = agent_states(settings, seed=3)
    save_agent(tmp_path / "run", settings, state)
    policy, agent = load_policy(tmp_path / "run"), build(settings).agent
    obs, carry = observations(policy.env, 3), agent.initial_carry(3)
    own, act = policy.initial_carry(3), jax.jit(functools.partial(agent.act, deterministic=True))
    for number in range(2):
        expected, carry, _ = act(state, obs, carry, jax.random.key(0))
        action, own = policy.act(obs, own)
        assert isinstance(action, np.ndarray)
        np.testing.assert_array_equal(action, expected)
        alone, _ = policy.act(entry(obs, 1), policy.initial_carry())
        if number == 0:
            np.testing.assert_allclose(alone, action[1], rtol=1e-5)
    if "memory" in KINDS[kind]:
        with pytest.raises(ValueError, match=r"policy.initial_carry\(\)"):
            policy(obs)
    else:
        np.testing.assert_array_equal(policy(obs), action)


def test_a_memory_matters_until_an_episode_begins(tmp_path):
    settings = small_settings(**KINDS["lstm"])
    save_agent(tmp_path / "run", settings, agent_states(settings))
    policy = load_policy(tmp_path / "run")
    obs, later = observations(policy.env, 2), observations(policy.env, 2, seed=1)
    _, carry = policy.act(obs, None)
    fresh, _ = policy.act(later, None)
    remembered, _ = policy.act(later, carry)
    mixed, _ = policy.act(later, carry, is_first=[True, False])
    assert not np.array_equal(fresh, remembered)
    np.testing.assert_array_equal(mixed, [fresh[0], remembered[1]])
    np.testing.assert_array_equal(policy.act(later, carry, is_first=True)[0], fresh)


def test_exploring_draws_anew_unless_a_key_is_given(tmp_path):
    settings = small_settings("sac", "Pendulum-v1")
    save_agent(tmp_path / "run", settings, agent_states(settings))
    one, other = load_policy(tmp_path / "run"), load_policy(tmp_path / "run")
    obs = np.zeros(3)
    drawn = [one(obs, deterministic=False) for _ in range(3)]
    assert len({float(action[0]) for action in drawn}) == 3
    np.testing.assert_array_equal([other(obs, deterministic=False) for _ in range(3)], drawn)
    by_number, by_key = one(obs, deterministic=False, key=7), one(obs, deterministic=False, key=jax.random.key(7))
    np.testing.assert_array_equal(by_number, by_key)
    with pytest.raises(ValueError, match="needs a `key` inside of jit"):
        jax.jit(lambda obs: one(obs, deterministic=False))(jnp.zeros(3))


def test_noise_that_goes_on_is_carried_along(tmp_path):
    settings = small_settings("ddpg", "Pendulum-v1", agent={"noise": "pink"})
    save_agent(tmp_path / "run", settings, agent_states(settings))
    policy = load_policy(tmp_path / "run")
    policy(np.zeros(3))
    with pytest.raises(ValueError, match="depend on earlier steps"):
        policy(np.zeros(3), deterministic=False)
    _, carry = policy.act(np.zeros(3), policy.initial_carry(), deterministic=False)
    assert np.any(np.asarray(carry.value))


def test_one_program_serves_all_calls_and_seeds(tmp_path, monkeypatch):
    settings = small_settings(num_seeds=2)
    save_agent(tmp_path / "run", settings, agent_states(settings))
    policies = [load_policy(tmp_path / "run", seed) for seed in (0, 1)]
    policies[0](np.zeros(4))
    num = policy_module._act._cache_size()
    monkeypatch.setattr(jax, "eval_shape", None)  # nothing is traced again, which would take milliseconds
    for policy in policies:
        for obs in (np.zeros(4), np.ones(4, np.int64), [0.0, 0.1, 0.2, 0.3], np.zeros((1, 4), np.float32)):
            policy(obs)
    assert policy_module._act._cache_size() == num


def test_inside_of_jit_and_for_arrays_of_jax(tmp_path):
    settings = small_settings()
    save_agent(tmp_path / "run", settings, agent_states(settings))
    policy, obs = load_policy(tmp_path / "run"), np.random.default_rng(0).normal(size=(5, 4))
    action = jax.jit(policy)(jnp.asarray(obs, jnp.float32))
    assert isinstance(policy(jnp.asarray(obs)), jax.Array)
    np.testing.assert_array_equal(action, policy(obs))


def test_each_seed_has_its_own_policy(tmp_path):
    settings = small_settings("sac", "Pendulum-v1", num_seeds=3, seed=5)
    states = agent_states(settings)
    save_agent(tmp_path / "run", settings, states)
    agent, obs = build(settings).agent, np.ones((2, 3), np.float32)
    for seed in range(3):
        expected, _, _ = agent.act(entry(states, seed), obs, (), jax.random.key(0), deterministic=True)
        np.testing.assert_allclose(load_policy(tmp_path / "run", seed)(obs), expected, rtol=1e-5)
    for seed in (3, -1, "one"):
        with pytest.raises(ValueError, match="seed") as error:
            load_policy(tmp_path / "run", seed)
    with pytest.raises(ValueError, match=r"run has the seeds 0 to 2\.$") as error:
        load_policy(tmp_path / "run", 3)
    assert "\n" not in str(error.value)


def test_the_last_finite_checkpoint_counts(tmp_path):
    settings = small_settings()
    good, better = agent_states(settings, 1), agent_states(settings, 2)
    bad = jax.tree.map(lambda leaf: leaf * jnp.nan if leaf.dtype == jnp.float32 else leaf, good)
    save_agent(tmp_path / "only", settings, bad, 9, is_finite=False)
    with pytest.raises(ValueError, match="no checkpoint whose agent is finite"):
        load_policy(tmp_path / "only")
    for number, state in enumerate((good, better)):
        save_agent(tmp_path / "run", settings, state, number)
    save_agent(tmp_path / "run", settings, bad, 2, is_finite=False)
    policy = load_policy(tmp_path / "run")
    np.testing.assert_array_equal(jax.tree.leaves(policy.state.params)[0], jax.tree.leaves(better.params)[0])


def test_nothing_but_the_agent_is_read(tmp_path, monkeypatch):
    """A buffer that is damaged, or that would not fit into the memory, is in nobody's way."""
    settings = small_settings()
    folder = save_agent(tmp_path / "run", settings, agent_states(settings))
    arrays = next((folder.path / "checkpoint").glob("step_*")) / "arrays.bin"
    content = bytearray(arrays.read_bytes())
    assert content[-20:-8] == bytes(12)  # the buffer, before the key
    manifest = _manifest.read(arrays.parent)
    place = manifest["leaves"][".buffer"]["array"]["offset"]
    content[place : place + 4] = b"\x01\x02\x03\x04"
    arrays.write_bytes(content)
    load_policy(tmp_path / "run")
    content[0] ^= 1
    arrays.write_bytes(content)
    with pytest.raises(ValueError, match="its hash differs"):
        load_policy(tmp_path / "run")


def test_a_run_that_trained(tmp_path):
    settings = small_settings(num_seeds=2)
    run.start(settings, tmp_path / "run", run.Options(final_episodes=1))
    restored = run.restore(tmp_path / "run").agent
    for seed in (0, 1):
        policy = load_policy(tmp_path / "run", seed)
        jax.tree.map(np.testing.assert_array_equal, policy.state, entry(restored, seed))


def test_folders_without_a_policy(tmp_path):
    with pytest.raises(ValueError, match="is not the folder of a run"):
        load_policy(tmp_path / "gone")
    settings = small_settings()
    policy_module.RunFolder(tmp_path / "run").create(settings)
    with pytest.raises(ValueError, match="holds no checkpoint"):
        load_policy(tmp_path / "run")


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros(3), r"got observations of shape \[3\], but those of CartPole-v1 have the shape \[4\]; give one"),
        (np.zeros((2, 2, 4)), r"got observations of shape \[2, 2, 4\]"),
        (np.zeros(()), r"got observations of shape \[\]"),
        ({"x": np.zeros(4)}, "not an observation of CartPole-v1"),
        ("left", "not an observation of CartPole-v1"),
    ],
)
def test_other_observations_are_refused(obs, message):
    with pytest.raises(ValueError, match=message) as error:
        untrained(environments.make("CartPole-v1"))(obs)
    assert "\n" not in str(error.value)


def untrained(env):
    agent = DDQN(env.action_space, Torso((8,), (4,)))
    return Policy(agent, agent.init(jax.random.key(0), env.obs, env.action_space.example), env)


def test_values_that_a_small_dtype_cannot_hold_are_refused():
    policy = untrained(environments.make("Breakout-MinAtar", obs_dtype="bool"))
    seen = np.random.default_rng(0).integers(0, 2, (10, 10, 4))
    np.testing.assert_array_equal(policy(seen.astype(np.float32)), policy(seen.astype(bool)))
    with pytest.raises(ValueError, match="float64 values that do not fit into bool"):
        policy(seen + 0.5)


def test_a_part_of_many_and_one_do_not_mix():
    policy = untrained(environments.make("BitFlip15-v0"))
    obs = observations(policy.env, 2)
    obs["desired_goal"] = obs["desired_goal"][0]
    with pytest.raises(ValueError, match="got observations of shape"):
        policy(obs)
    del obs["desired_goal"]
    with pytest.raises(ValueError, match="not an observation of"):
        policy(obs)


def test_a_carry_of_other_shapes_is_refused(tmp_path):
    settings = small_settings(**KINDS["gru"])
    save_agent(tmp_path / "run", settings, agent_states(settings))
    policy = load_policy(tmp_path / "run")
    for carry in (policy.initial_carry(), policy.initial_carry(3), ()):
        with pytest.raises(ValueError, match=r"begin with `policy\.initial_carry"):
            policy.act(np.zeros((2, 4)), carry)


class Board(gymnasium.Env):
    """Shows the number of a field and asks for one from 1 on."""

    observation_space = gymnasium.spaces.Dict(
        field=gymnasium.spaces.Discrete(5, start=1), heat=gymnasium.spaces.Box(-1, 1, (2,), np.float64)
    )
    action_space = gymnasium.spaces.Discrete(3, start=1)


def test_observations_and_actions_are_those_of_gymnasium():
    env = from_factory(Board, "Board")
    policy, space = untrained(env), Board.observation_space
    space.seed(0)
    obs = [space.sample() for _ in range(20)]
    actions = [policy(one) for one in obs]
    assert all(Board.action_space.contains(action) for action in actions)
    assert max(actions) > min(actions)
    many = {name: np.stack([one[name] for one in obs]) for name in ("field", "heat")}
    np.testing.assert_array_equal(policy(many), actions)
    with pytest.raises(ValueError, match="not an observation of Board"):
        policy({"field": 1})


def test_the_public_names():
    assert algorithms.load_policy is load_policy
    assert Policy(DDQN(Discrete(2)), None, environments.make("CartPole-v1")).agent == DDQN(Discrete(2))
