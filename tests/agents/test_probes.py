"""Every agent finds values and actions that are known exactly."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.probes import GAMMA, PROBES, Probe, stacked

import jaxrl_buffers as jb
from algorithms import DDPG, DDQN, MPO, PPO, SAC, TD3, Box, Discrete, Plan, Torso, environments, train

SMALL = Torso((32, 32))
PLAN = Plan(
    total_steps=4_800, num_envs=4, start_steps=800, update_every=4, num_updates=1, mini_batch_size=64, test_every=0
)
ON_POLICY_PLAN = Plan(
    total_steps=6_400, num_envs=4, start_steps=0, update_every=64, num_updates=16, mini_batch_size=32, test_every=0
)
BOX = Box((-1.0,), (1.0,))
FAST = {"learning_rate_q": 3e-3, "learning_rate_pi": 3e-3, "polyak": 0.9, "max_grad_norm": 10.0}
COLD = {"learn_alpha": False, "initial_alpha": 1e-3}
AGENTS = {
    "ddqn": DDQN(Discrete(2), SMALL, learning_rate=3e-3, polyak=0.9, max_grad_norm=10.0),
    "sac": SAC(BOX, SMALL, **FAST, **COLD),
    "sac_discrete": SAC(Discrete(2), SMALL, **FAST, **COLD),
    "ddpg": DDPG(BOX, SMALL, noise_scale=0.5, **FAST),
    "td3": TD3(BOX, SMALL, noise_scale=0.5, **FAST),
    "mpo": MPO(BOX, SMALL, num_samples=10, kl_variance_constraint=0.01, **FAST),
    "mpo_discrete": MPO(Discrete(2), SMALL, **FAST),
    "ppo": PPO(BOX, SMALL, learning_rate_v=3e-3),  # a faster policy narrows before it has found the best action
    "ppo_discrete": PPO(Discrete(2), SMALL, learning_rate_pi=3e-3, learning_rate_v=3e-3, max_grad_norm=10.0),
}
# What to look at: both signs at time 0, and time 1 after a positive sign.
OBSERVATIONS = jnp.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 1.0]])


@functools.cache
def trained(agent_name: str) -> tuple[np.ndarray, np.ndarray]:
    """Train on all probes at once; return values `[P, 3, C]` of candidate actions, and chosen actions `[P, 3]`."""
    agent = AGENTS[agent_name]
    env = environments.wrap(Probe(isinstance(agent.action_space, Discrete)))
    is_on_policy = isinstance(agent, PPO)
    buffer = jb.rollout(16, 4, gamma=GAMMA) if is_on_policy else jb.uniform(1_200, 4, gamma=GAMMA)
    plan = ON_POLICY_PLAN if is_on_policy else PLAN

    def run(key, params):
        state, _ = train(key, agent, buffer, env.replace(params=params), plan)
        action, _, _ = agent.act(state.agent, OBSERVATIONS, (), key, deterministic=True)
        return values(agent, state.agent), action.reshape(-1)

    keys = jax.random.split(jax.random.key(0), len(PROBES))
    return jax.device_get(jax.jit(jax.vmap(run))(keys, stacked()))


def values(agent, state):
    """Return the values `[3, C]` of both discrete actions, or of -0.5 and 0.5; for PPO `[3, 1]`, of no action."""
    if isinstance(agent, DDQN):
        return agent._values(state.params.critic, OBSERVATIONS)
    if isinstance(agent, PPO):
        return agent.value(state, OBSERVATIONS)[:, None]
    candidates = (0, 1) if isinstance(agent.action_space, Discrete) else (-0.5, 0.5)
    actions = [jnp.full((3, *agent.action_space.example.shape), action) for action in candidates]
    if isinstance(agent, MPO):
        return jnp.stack([agent.networks.values(state.params.critic, OBSERVATIONS, a) for a in actions], axis=1)
    networks = agent.policy if isinstance(agent, SAC) else agent
    return jnp.stack([networks.values(state.params.critic, OBSERVATIONS, a).mean(0) for a in actions], axis=1)


@pytest.fixture(params=AGENTS)
def of_probe(request):
    found, action = trained(request.param)
    return lambda name: (found[list(PROBES).index(name)], action[list(PROBES).index(name)], AGENTS[request.param])


def test_constant_reward(of_probe):
    q, _, _ = of_probe("constant reward")
    np.testing.assert_allclose(q[:2], 1, atol=0.1)


def test_reward_by_observation(of_probe):
    q, _, _ = of_probe("reward by observation")
    np.testing.assert_allclose(q[0], 1, atol=0.1)
    np.testing.assert_allclose(q[1], -1, atol=0.1)


def test_delayed_reward(of_probe):
    q, _, _ = of_probe("delayed reward")
    np.testing.assert_allclose(q[2], 1, atol=0.1)
    np.testing.assert_allclose(q[:2], GAMMA, atol=0.1)


def test_reward_by_action(of_probe):
    q, action, agent = of_probe("reward by action")
    is_discrete = isinstance(agent.action_space, Discrete)
    expected = [-1, 1] if is_discrete else [-1, 0]
    expected = expected[1:] if isinstance(agent, PPO) else expected
    np.testing.assert_allclose(q[:2], [expected] * 2, atol=0.15)
    np.testing.assert_allclose(action[:2], 1 if is_discrete else 0.5, atol=0.15)


def test_a_time_limit_bootstraps(of_probe):
    """An episode cut off after each reward of 1 is worth `1 / (1 - gamma)`; taken for the end it would be worth 1."""
    q, _, _ = of_probe("time limit")
    np.testing.assert_allclose(q[:2], 1 / (1 - GAMMA), atol=0.7)
