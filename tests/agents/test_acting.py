"""How every algorithm acts: which networks it asks, and what it draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.equations import AGENTS, moved
from models.networks import ACTIONS, SIZE, TORSO, all_values, gaussian, over_batch
from support.agents import BOX
from support.helpers import assert_frequencies

from algorithms import PPO, Discrete
from algorithms.agents.exploration import Pink
from algorithms.networks import CategoricalActor, DeterministicActor, ValueNetwork
from jaxrl_buffers import Transition

NUM = 4
OBS = jax.random.normal(jax.random.key(8), (NUM, 3))
LOW, HIGH = np.array(BOX.low), np.array(BOX.high)
DISCRETE = [name for name, agent in AGENTS.items() if isinstance(agent.action_space, Discrete)]
GAUSSIAN = ["sac", "mpo", "ppo"]
DETERMINISTIC = ["ddpg", "td3"]


def made(agent):
    """Return a state whose online and target networks differ."""
    keys = jax.random.split(jax.random.key(0), 3)
    state = agent.init(keys[0], jax.ShapeDtypeStruct((3,), jnp.float32), agent.action_space.example)
    state = state._replace(params=moved(state.params, keys[1]))
    return state if isinstance(agent, PPO) else state._replace(target=moved(state.target, keys[2]))


def in_bounds(action):
    """Return actions of [-1, 1] in the environment's units."""
    return LOW + (np.asarray(action, np.float64) + 1) / 2 * (HIGH - LOW)


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_actions_are_the_best_or_follow_the_probabilities(name):
    agent, num = AGENTS[name], 3_000

    @jax.jit
    def run(key):
        state = made(agent)
        same = jnp.broadcast_to(OBS[:1], (num, 3))
        if name == "ddqn":
            q = all_values(state.params.critic, OBS)
            random = state.epsilon / ACTIONS
            wanted = jnp.full(ACTIONS, random).at[jnp.argmax(q[0])].add(1 - state.epsilon)
            log_probs = jax.nn.log_softmax(q / 2)
        else:
            log_probs = over_batch(CategoricalActor(ACTIONS, TORSO))(state.params.actor, OBS)
            q, wanted = log_probs, jnp.exp(log_probs[0])
        seen = agent.replace(policy_temperature=2.0) if name == "ddqn" else agent
        best, drawn = (agent.act(state, obs, (), key, *flag)[0] for obs, flag in ((OBS, (True,)), (same, ())))
        return jnp.argmax(q, axis=1), best, drawn, wanted, log_probs, seen.distribution(state, OBS).log_probs

    expected, best, drawn, wanted, log_probs, told = run(jax.random.key(1))
    np.testing.assert_array_equal(best, expected)
    assert best.dtype == drawn.dtype == jnp.int32
    assert_frequencies(np.bincount(drawn, minlength=ACTIONS), wanted)
    np.testing.assert_allclose(told, log_probs, rtol=1e-5)


@pytest.mark.parametrize("name", GAUSSIAN)
def test_continuous_actions_are_the_mean_or_drawn_around_it(name):
    agent, key = AGENTS[name], jax.random.key(1)

    @jax.jit
    def run():
        state = made(agent)
        acts = [agent.act(state, OBS, (), key, *flag) for flag in ((True,), ())]
        return gaussian(state.params.actor, OBS), acts, agent.distribution(state, OBS)

    (mean, std), (best, drawn), told = jax.device_get(run())
    noisy = mean + std * jax.random.normal(key, (NUM, SIZE))
    squash = np.tanh if name == "sac" else lambda action: np.clip(action, -1, 1)
    np.testing.assert_allclose(best[0], in_bounds(squash(mean)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(drawn[0], in_bounds(squash(noisy)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose((told.mean, np.exp(told.log_std)), (mean, std), rtol=1e-4)
    if name == "ppo":
        for (_, _, extras), action in ((best, mean), (drawn, noisy)):
            np.testing.assert_allclose(extras["action"], action, rtol=1e-4, atol=1e-5)
            density = -0.5 * np.sum(((action - mean) / std) ** 2 + np.log(2 * np.pi * std**2), axis=1)
            np.testing.assert_allclose(extras["log_prob"], density, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", GAUSSIAN)
def test_continuous_actions_are_made_from_correlated_noise(name):
    agent, noise, keys = AGENTS[name].replace(noise="pink"), Pink(), tuple(jax.random.split(jax.random.key(1)))

    @jax.jit
    def run():
        state, carry, memory, steps = made(agent), agent.initial_carry(NUM), noise.initial_carry(NUM, SIZE), []
        for key in keys:
            drawn, memory = noise.draw(memory, key, NUM, SIZE)
            action, carry, _ = agent.act(state, OBS, carry, key)
            steps.append((action, drawn))
        return gaussian(state.params.actor, OBS), steps, carry, agent.act(state, OBS, carry, keys[0], True)[1]

    (mean, std), steps, carry, kept = jax.device_get(run())
    squash = np.tanh if name == "sac" else lambda action: np.clip(action, -1, 1)
    for action, drawn in steps:
        np.testing.assert_allclose(action, in_bounds(squash(mean + std * drawn)), rtol=1e-4, atol=1e-5)
    assert carry.has_begun.all()
    jax.tree.map(np.testing.assert_array_equal, carry, kept)  # the best actions need no noise


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_policies_are_disturbed_by_noise_when_they_explore(name):
    agent, num = AGENTS[name].replace(noise_scale=0.05), 3_000

    @jax.jit
    def run(key):
        state = made(agent)
        state = state._replace(params=jax.tree.map(lambda leaf: 0.3 * leaf, state.params))  # away from the bounds
        obs, carry = jnp.broadcast_to(OBS[:1], (num, 3)), agent.initial_carry(num)
        action = over_batch(DeterministicActor(SIZE, TORSO))(state.params.actor, OBS)
        acts = [agent.act(state, obs, carry, key, *flag)[0] for flag in ((True,), ())]
        return action, acts, agent.distribution(state, OBS)

    action, (best, drawn), told = jax.device_get(run(jax.random.key(1)))
    np.testing.assert_allclose(best, np.tile(in_bounds(action[:1]), (num, 1)), rtol=1e-4, atol=1e-5)
    disturbance = (drawn - best) / (HIGH - LOW) * 2
    np.testing.assert_allclose(disturbance.std(axis=0), 0.05, rtol=0.1)
    np.testing.assert_allclose(disturbance.mean(axis=0), 0, atol=0.005)
    np.testing.assert_allclose(told.mean, action, rtol=1e-5)
    np.testing.assert_allclose(np.exp(told.log_std), 0.1, rtol=1e-5)


@pytest.mark.parametrize("name", AGENTS)
def test_features_are_what_the_last_layer_of_the_policy_gets(name):
    agent = AGENTS[name]

    @jax.jit
    def run():
        state = made(agent)
        network = state.params.critic if name == "ddqn" else state.params.actor
        last = network["params"]["Dense_0"]
        output = agent.features(state, OBS) @ last["kernel"] + last["bias"][None]
        if name == "ddqn":
            return output, all_values(network, OBS)
        if name in DETERMINISTIC:
            return jnp.tanh(output), over_batch(DeterministicActor(SIZE, TORSO))(network, OBS)
        if name in DISCRETE:
            return jax.nn.log_softmax(output), over_batch(CategoricalActor(ACTIONS, TORSO))(network, OBS)
        mean, std = gaussian(network, OBS)
        return output, jnp.concatenate([mean, jnp.log(std)], axis=1)

    np.testing.assert_allclose(*run(), rtol=1e-4, atol=1e-5)


def test_rollouts_are_valued_row_by_row():
    agent = AGENTS["ppo"]

    @jax.jit
    def run():
        state = made(agent)
        obs, next_obs = jax.random.normal(jax.random.key(2), (2, 3, 2, 3))
        no = jnp.zeros((3, 2), bool)
        found = agent.values(state, Transition(obs, (), jnp.zeros((3, 2)), no, no, next_obs))
        of_rows = jax.vmap(over_batch(ValueNetwork(TORSO)), in_axes=(None, 0))
        return found, tuple(of_rows(state.params.critic, rows) for rows in (obs, next_obs))

    np.testing.assert_allclose(*run(), rtol=1e-4, atol=1e-5)
