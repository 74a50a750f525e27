"""Double Q-learning: how exploration fades, and what a dueling network is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from support.linear import LINEAR

from algorithms import DDQN, Discrete
from algorithms.networks import QNetwork


def test_epsilon_decays_to_its_floor():
    """From 1 by 0.999 an update, down to 0.05 at update 2995."""
    agent = DDQN(Discrete(2), LINEAR)

    @jax.jit
    def run():
        state = agent.init(jax.random.key(0), jnp.zeros(1), jnp.int32(0))
        grads = jax.tree.map(jnp.zeros_like, state.params)
        step = lambda state, _: (agent.apply(state, grads), state.epsilon)  # noqa: E731
        return jax.lax.scan(step, state, length=3_010)[1]

    epsilon = run()
    np.testing.assert_allclose(epsilon, np.maximum(0.999 ** np.arange(3_010), 0.05), rtol=1e-4)
    assert np.argmin(epsilon) == 2995
    assert np.all(epsilon[2995:] == np.float32(0.05))


def test_a_dueling_network_is_a_value_and_centered_advantages():
    network, obs = QNetwork(3, LINEAR, dueling=True), jnp.array([0.5, -2.0])
    params = network.init(jax.random.key(0), obs)
    advantage, value = (params["params"][f"Dense_{index}"]["kernel"] for index in range(2))
    assert (advantage.shape, value.shape) == ((2, 3), (2, 1))
    expected = obs @ value + obs @ advantage - jnp.mean(obs @ advantage)
    np.testing.assert_allclose(network.apply(params, obs), expected, rtol=1e-5)
