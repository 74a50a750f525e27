"""Noise has variance one at every step, the correlations it claims, and a memory that ends with the episode."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from support.probes import PROBES, Probe

from algorithms import DDPG, MPO, PPO, SAC, Box, Discrete, Torso, environments
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
