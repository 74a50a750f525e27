"""Noise has variance one at every step, the correlations it claims, and a memory that ends with the episode.

Random actions begin and persist with the probabilities they claim, until the episode ends.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from support.helpers import assert_frequencies
from support.linear import LINEAR
from support.probes import PROBES, Probe

from algorithms import DDPG, DDQN, MPO, PPO, SAC, Box, Discrete, Torso, environments
from algorithms.agents import exploration
from algorithms.agents.exploration import PINK_DECAYS, PINK_WEIGHTS, Gaussian, NoiseState, OrnsteinUhlenbeck, Pink
from algorithms.training import loop

NOISES = {"gaussian": Gaussian(), "ornstein_uhlenbeck": OrnsteinUhlenbeck(0.15), "pink": Pink()}
kinds = pytest.mark.parametrize("kind", NOISES)


@functools.cache
def play(kind, num_steps, num_envs, size=2):
    """Draw noise `[T, N, A]` from its beginning."""
    noise = NOISES[kind]

    @jax.jit
    def run(keys):
        step = lambda carry, key: noise.draw(carry, key, num_envs, size)[::-1]  # noqa: E731
        return jax.lax.scan(step, noise.initial_carry(num_envs, size), keys)[1]

    return np.asarray(run(jax.random.split(jax.random.key(0), num_steps)))


@kinds
def test_the_variance_is_one_from_the_first_step_on(kind):
    num_envs = 20_000
    drawn = play(kind, 6, num_envs)
    assert drawn.dtype == np.float32
    error = np.sqrt(2 / num_envs)  # of a variance of normal numbers
    np.testing.assert_allclose(drawn.var(axis=1), 1, atol=5 * error)
    np.testing.assert_allclose(drawn.mean(axis=1), 0, atol=5 / np.sqrt(num_envs))


@kinds
def test_environments_and_components_are_independent(kind):
    drawn = play(kind, 6, 20_000)[0]
    between_components = np.mean(drawn[:, 0] * drawn[:, 1])
    between_environments = np.mean(drawn[1:] * drawn[:-1])
    np.testing.assert_allclose([between_components, between_environments], 0, atol=5 / np.sqrt(20_000))


@pytest.mark.parametrize(("kind", "decay"), [("gaussian", 0), ("ornstein_uhlenbeck", 0.85)])
def test_autocorrelation(kind, decay):
    drawn = play(kind, 6, 20_000)
    found = [np.mean(drawn[0] * drawn[lag]) for lag in range(1, 6)]
    np.testing.assert_allclose(found, [decay**lag for lag in range(1, 6)], atol=5 / np.sqrt(40_000))


def test_ornstein_uhlenbeck_steps_agree_with_rlax():
    process, key = OrnsteinUhlenbeck(0.15), jax.random.key(3)
    before = NoiseState(jnp.array([[[0.7], [-1.2]]]), jnp.array([True]))
    drawn, after = process.draw(before, key, 1, 2)
    oracle = rlax.add_ornstein_uhlenbeck_noise(key, jnp.zeros(2), before.value[0, :, 0], 0.15, np.sqrt(1 - 0.85**2))
    np.testing.assert_allclose(drawn[0], oracle, rtol=1e-5)
    np.testing.assert_array_equal(after.value[..., 0], drawn)


def test_the_spectrum_of_pink_noise_is_one_over_f():
    """Exactly, from the processes it is made of."""
    frequency = np.geomspace(1 / 2000, 1 / 2, 300)[:, None]
    power = (1 - PINK_DECAYS**2) / (1 + PINK_DECAYS**2 - 2 * PINK_DECAYS * np.cos(2 * np.pi * frequency))
    decibel = 10 * np.log10(frequency[:, 0] * (power @ PINK_WEIGHTS))
    assert np.ptp(decibel) < 1.2
    np.testing.assert_allclose(PINK_WEIGHTS.sum(), 1, rtol=1e-9)


@pytest.mark.parametrize(("kind", "slope"), [("gaussian", 0), ("pink", -1)])
def test_the_slope_of_a_measured_spectrum(kind, slope):
    drawn = play(kind, 1_024, 100)
    power = np.mean(np.abs(np.fft.rfft(drawn * np.hanning(1_024)[:, None, None], axis=0)) ** 2, axis=(1, 2))
    used = slice(4, 500)
    # Equal weight for every octave.
    weights = 1 / np.sqrt(np.arange(1, 514)[used])
    found = np.polyfit(np.log(np.arange(1, 514)[used]), np.log(power[used]), 1, w=weights)[0]
    np.testing.assert_allclose(found, slope, atol=0.08)


def test_the_loop_forgets_noise_where_an_episode_ends():
    agent = DDPG(Box((-1.0,), (1.0,)), Torso((4,)), noise="pink", noise_scale=1.0)
    env = environments.wrap(Probe(is_discrete=False), PROBES["delayed reward"])  # episodes of two steps

    @jax.jit
    def run(key):
        key_agent, key_env, key_act, key_step = jax.random.split(key, 4)
        state = agent.init(key_agent, env.obs, env.action_space.example)
        collector = loop.Collector(env.reset(key_env, 3), agent.initial_carry(3))
        keys = jax.random.split(key_act, 3), jax.random.split(key_step, (3, 3))
        whole, *_ = loop.collect(agent, state, env, collector, *keys)
        part, *_ = loop.collect(agent, state, env, collector, keys[0][:2], keys[1][:2])
        return part.carry, whole.carry

    ended, began = run(jax.random.key(0))
    assert not ended.has_begun.any()
    np.testing.assert_array_equal(ended.value, 0)
    assert began.has_begun.all()


def test_disturbed_actions_stay_within_bounds():
    action = jnp.array([[0.9, -0.9]] * 500)
    found, carry = exploration.disturb(Gaussian(), 0.5, action, (), jax.random.key(0))
    assert carry == ()
    assert (found.min(), found.max()) == (-1, 1)
    quiet, _ = exploration.disturb(Gaussian(), 0.0, action, (), jax.random.key(0))
    np.testing.assert_array_equal(quiet, action)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"noise": "brown"}, "'pink'"), ({"noise_theta": 2}, "noise_theta"), ({"noise_scale": -1}, "noise_scale")],
)
def test_bad_noise(options, message):
    with pytest.raises(ValueError, match=message):
        DDPG(Box((-1.0,), (1.0,)), **options)


@pytest.mark.parametrize("agent", [SAC, MPO, PPO])
def test_bad_noise_of_stochastic_policies(agent):
    with pytest.raises(ValueError, match="'pink'"):
        agent(Box((-1.0,), (1.0,)), noise="brown")
    with pytest.raises(ValueError, match=r"noise='pink'\): noise needs continuous actions"):
        agent(Discrete(3), noise="pink")
    assert agent(Discrete(3)).initial_carry(2) == agent(Box((-1.0,), (1.0,))).initial_carry(2) == ()


def explored(num_steps, num_envs, epsilon, persistence):
    """Return actions `[T, N]` of 1000, of which the last is the greedy one."""
    space = Discrete(1_000)

    @jax.jit
    def run(keys):
        def step(before, key):
            greedy = jnp.full(num_envs, 999, jnp.int32)
            return exploration.epsilon_greedy(space, greedy, epsilon, key, persistence, before)[::-1]

        return jax.lax.scan(step, exploration.no_random_actions(num_envs), keys)[1]

    return np.asarray(run(jax.random.split(jax.random.key(0), num_steps)))


def test_lengths_of_random_actions_are_geometric():
    actions = explored(200, 500, 0.3, 0.75)
    persists = actions[1:] == actions[:-1]  # two random actions in a row are the same by chance once in 1000
    begins = (actions[1:191] != 999) & ~persists[:190]
    lengths = 1 + sum(
        np.prod([persists[1 + step : 191 + step] for step in range(last)], axis=0) for last in range(1, 9)
    )
    share = 0.25 * 0.75 ** np.arange(8)
    assert_frequencies(np.bincount(lengths[begins])[1:], [*share, 1 - share.sum()])


def test_random_actions_begin_with_probability_epsilon():
    actions = explored(200, 500, 0.3, 0.75)
    greedy = actions[:-1] == 999
    assert_frequencies(np.bincount((actions[1:] != 999)[greedy]), [0.7, 0.3])
    assert_frequencies(np.bincount(actions[0] != 999), [0.7, 0.3])


def test_without_persistence_actions_are_those_of_independent_exploration():
    obs, key = jax.random.normal(jax.random.key(1), (500, 3)), jax.random.key(2)
    found = []
    for persistence in (None, 0.0):
        agent = DDQN(Discrete(3), LINEAR, initial_epsilon=0.5, persistence=persistence)
        state = agent.init(jax.random.key(0), obs[0], jnp.int32(0))
        before = exploration.RandomActions(jnp.zeros(500, jnp.int32), jnp.ones(500, bool))
        assert agent.initial_carry(2) == () if persistence is None else not agent.initial_carry(2).is_random.any()
        found.append(agent.act(state, obs, () if persistence is None else before, key)[0])
        best, *_ = agent.act(state, obs, agent.initial_carry(500), key, deterministic=True)
        assert 100 < np.sum(found[-1] != best) < 250  # a third of 250 random actions is the best one
    np.testing.assert_array_equal(*found)


def test_random_actions_persist_until_the_episode_ends():
    agent = DDQN(Discrete(2), LINEAR, initial_epsilon=1.0, persistence=1.0)
    env = environments.wrap(Probe(is_discrete=True), PROBES["delayed reward"])  # episodes of two steps

    @jax.jit
    def run(key):
        key_agent, key_env, key_act, key_step = jax.random.split(key, 4)
        state = agent.init(key_agent, env.obs, env.action_space.example)
        collector = loop.Collector(env.reset(key_env, 50), agent.initial_carry(50))
        keys = jax.random.split(key_act, 6), jax.random.split(key_step, (6, 50))
        return loop.collect(agent, state, env, collector, *keys)[1].action

    actions = np.asarray(run(jax.random.key(0)))
    np.testing.assert_array_equal(actions[::2], actions[1::2])
    assert_frequencies(np.bincount((actions[1:-1:2] != actions[2::2]).ravel()), [0.5, 0.5])


def test_bad_persistence():
    for bad in (-0.1, 1.5, "long"):
        with pytest.raises(ValueError, match="persistence"):
            DDQN(Discrete(3), persistence=bad)
