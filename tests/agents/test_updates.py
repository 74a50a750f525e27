"""Gradients, priorities and metrics of every algorithm against its equations."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from models.equations import AGENTS, EQUATIONS, drawn, moved

from algorithms import PPO

NORMS = {"actor": "grad_norm_pi", "critic": "grad_norm_q"}


@pytest.mark.parametrize("name", EQUATIONS)
def test_an_update_follows_the_equations(name):
    agent = AGENTS[name]

    @jax.jit
    def both(key):
        keys = jax.random.split(key, 5)
        state = agent.init(keys[0], jax.ShapeDtypeStruct((3,), jnp.float32), agent.action_space.example)
        state = state._replace(params=moved(state.params, keys[1]))
        if not isinstance(agent, PPO):
            state = state._replace(target=moved(state.target, keys[2]))
        sample = drawn(agent, keys[3])
        losses, priorities, metrics = EQUATIONS[name](agent, state, sample, keys[4])
        grads = {group: jax.grad(loss)(getattr(state.params, group)) for group, loss in losses.items()}
        norms = NORMS | ({"critic": "grad_norm_v"} if isinstance(agent, PPO) else {})
        metrics |= {norms[group]: optax.tree.norm(grad) for group, grad in grads.items() if group in norms}
        return (grads, priorities, metrics), agent.gradients(state, sample, keys[4])

    (grads, priorities, metrics), (found, info) = jax.device_get(both(jax.random.key(0)))
    assert set(grads) == set(found._fields) - {"addons"}
    close = functools.partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-5)
    for group, expected in grads.items():
        jax.tree.map(close, getattr(found, group), expected)
    close(info.priorities, priorities)
    assert set(info.metrics) - {"moves_policy"} == set(metrics)
    for metric, value in metrics.items():
        close(info.metrics[metric], value, err_msg=metric)
