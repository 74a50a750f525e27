"""Training on several devices gives the learning curves of one device, within the noise of seeds."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.probes import GAMMA, Probe, ProbeParams

import jaxrl_buffers as jb
from algorithms import DDQN, PPO, Discrete, Plan, Torso, environments
from algorithms.training import loop, parallel

NUM_SEEDS, NUM_POINTS, NUM_ENVS = 24, 6, 4
SMALL = Torso((32,))
# The second action counts: it is worth 1 or -1.
ENV = environments.wrap(Probe(is_discrete=True)).replace(params=ProbeParams(length=2, by_action=1.0, shows_time=1.0))
BEGIN = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
# Agent, buffer, plan, and the iterations between two points of the curve.
PARTS = {
    "uniform": (
        DDQN(Discrete(2), SMALL, learning_rate=1e-3, polyak=0.95),
        jb.uniform(400, NUM_ENVS, gamma=GAMMA),
        Plan(
            4_000, num_envs=NUM_ENVS, start_steps=400, update_every=4, num_updates=1, mini_batch_size=32, test_every=0
        ),
        50,
    ),
    "ppo": (
        PPO(Discrete(2), SMALL, learning_rate_pi=1e-3, learning_rate_v=3e-3),
        jb.rollout(16, NUM_ENVS, gamma=GAMMA),
        Plan(6_400, num_envs=NUM_ENVS, start_steps=0, update_every=64, num_updates=8, mini_batch_size=32, test_every=0),
        12,
    ),
}


def worth(agent, state):
    """Return the mean value of the first observations; for DDQN that of the best actions."""
    if isinstance(agent, PPO):
        return jnp.mean(agent.value(state, BEGIN))
    return jnp.mean(jnp.max(agent._values(state.params.critic, BEGIN), axis=-1))


@functools.cache
def curves(name, num_devices):
    """Return the worth `[points, seeds]` of the first observations in the course of training."""
    agent, buffer, plan, num_iterations = PARTS[name]
    mesh = parallel.make_mesh(num_devices, num_groups=1)
    plan = parallel.on_mesh(mesh, plan, agent, buffer)
    parts = *parallel.parts(agent, buffer, plan), ENV, plan
    begin = jax.jit(parallel.spread(lambda key: loop.init(key, *parts), mesh, gives_state=True))
    run = jax.jit(parallel.spread(lambda state: loop.run(state, *parts, num_iterations), mesh, gives_state=True))
    state = begin(jax.random.split(jax.random.key(num_devices), NUM_SEEDS))
    points = []
    for _ in range(NUM_POINTS):
        state = run(state)
        points.append(jax.vmap(functools.partial(worth, agent))(state.agent))
    return np.asarray(points)


@pytest.mark.parametrize("name", PARTS)
def test_curves_are_those_of_one_device(name):
    """The means over seeds differ by less than five standard errors, at every point, and the last is the value."""
    one, many = curves(name, 1), curves(name, 4)
    error = np.sqrt((one.var(axis=1, ddof=1) + many.var(axis=1, ddof=1)) / NUM_SEEDS)
    assert np.all(np.abs(one.mean(axis=1) - many.mean(axis=1)) < 5 * error), (one.mean(axis=1), many.mean(axis=1))
    assert np.all(error < 0.08)  # so that a difference would be seen
    np.testing.assert_allclose([one[-1].mean(), many[-1].mean()], GAMMA, atol=0.1)
    assert abs(one[0].mean() - one[-1].mean()) > 3 * error[0]  # it had to be learned
