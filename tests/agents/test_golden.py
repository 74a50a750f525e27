"""Losses and errors of whole agents on two transitions, against numbers of PyTorchRL.

Two-step returns with gamma 0.9, the second transition terminal with weight 0.5; linear networks; targets equal to the
online networks.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.linear import LINEAR, linear, stacked

from algorithms import DDPG, DDQN, SAC, TD3, Box, Discrete
from jaxrl_buffers import Batch, Handle, Sample

OBS = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
NEXT_OBS = jnp.array([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
BOX = Box((-1.0, -1.0), (1.0, 1.0))
CONTINUOUS = jnp.array([[0.5, -0.5], [1.0, 0.0]])
# Rows are outputs, columns are inputs.
POLICY = np.eye(3)
Q_1, Q_2 = np.array([[1, 2, 3], [0, 1, 0], [2, 0, 1]]), np.array([[2, 1, 1], [1, 1, 1], [0, 0, 2]])
Q_2_BIAS = [0.5, 0, 0]
ACTOR = np.array([[1, 0, 0], [0, 1, 0]])
CRITIC_1, CRITIC_2 = np.array([[1, 2, 3, 1, -1]]), np.array([[2, 1, 1, 0, 1]])


def sample(action, weights):
    discount = jnp.array([0.9**2, 0.0])
    batch = Batch(OBS, action, jnp.array([1.0, 2.0]), discount, NEXT_OBS, jnp.ones(2, bool), ())
    return Sample(batch, Handle(jnp.zeros(2, jnp.int32), jnp.arange(2, dtype=jnp.int32)), jnp.asarray(weights))


def told(agent, action, weights=(1.0, 0.5), **params):
    """Return the metrics and priorities of an agent whose networks are replaced.

    The loss of one of two critics is that of an agent with this one twice, whose targets are as before.
    """

    @jax.jit
    def run(online):
        state = agent.init(jax.random.key(0), jax.ShapeDtypeStruct((3,), jnp.float32), agent.action_space.example)
        new = state.params._replace(**params)
        groups = (new, getattr(new, "critic", None))
        target = next(group for group in groups if jax.tree.structure(group) == jax.tree.structure(state.target))
        target = jax.tree.map(jnp.copy, target)
        assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, state.params)
        state = state._replace(params=new._replace(**online), target=target)
        return agent.gradients(state, sample(action, weights), jax.random.key(1))[1]

    info = run(params)
    losses = {}
    if isinstance(agent, (SAC, TD3)):
        for index in range(2):
            twice = jax.tree.map(lambda leaf: leaf[jnp.array([index, index])], params["critic"])  # noqa: B023
            losses[f"loss_q{index + 1}"] = run(params | {"critic": twice}).metrics["loss_q"]
    return {**info.metrics, **losses, "errors": info.priorities}


def check(found, **expected):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


def test_ddqn():
    """The original ignored weights, so they are one; with weights the second square counts half."""
    agent, action = DDQN(Discrete(3), LINEAR), jnp.array([0, 1])
    check(told(agent, action, (1.0, 1.0), critic=linear(Q_1)), loss_q=3.452450, errors=[2.43, 1.0])
    check(told(agent, action, critic=linear(Q_1)), loss_q=3.452450 - 0.25, errors=[2.43, 1.0])


def test_ddpg():
    params = {"actor": linear(ACTOR), "critic": stacked(linear(CRITIC_1))}
    check(told(DDPG(BOX, LINEAR), CONTINUOUS, **params), loss_q=0.636225, errors=[1.43, 1.0], loss_pi=-1.190399)


def test_td3():
    params = {"actor": linear(ACTOR), "critic": stacked(linear(CRITIC_1), linear(CRITIC_2))}
    found = told(TD3(BOX, LINEAR, smoothing_scale=0.0), CONTINUOUS, **params)
    check(found, loss_q=0.283050, loss_q1=0.268050, loss_q2=0.298050, errors=[0.31, 1.0], loss_pi=-1.190399)


def discrete_sac(**options):
    agent = SAC(Discrete(3), LINEAR, initial_alpha=0.5, **options)
    critics = stacked(linear(Q_1), linear(Q_2, Q_2_BIAS))
    return told(agent, jnp.array([0, 1]), actor=linear(POLICY), critic=critics)


def test_discrete_sac():
    """The original's errors are known to four digits."""
    found = discrete_sac(target_entropy_ratio=0.98)
    check(found, loss_q=0.599394, loss_q1=0.876272, loss_q2=0.322515)
    check(found, loss_pi=-0.877314, loss_alpha=0.052668, alpha=0.5)
    np.testing.assert_allclose(found["errors"], [0.75, 1.0], atol=1e-4)
    np.testing.assert_allclose(found["entropy"], 0.9753, atol=1e-4)


def test_discrete_sac_takes_a_target_entropy_at_its_word():
    """0 is a target entropy like any other, and 1.076640 is the one that the ratio 0.98 gives."""
    check(discrete_sac(target_entropy=1.076640), loss_alpha=0.052668)
    expected = np.log(0.5) * 0.9753 * 0.75  # -mean(w log_alpha log_prob)
    np.testing.assert_allclose(discrete_sac(target_entropy=0.0)["loss_alpha"], expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["ddpg", "td3", "sac", "sac_discrete"])
def test_the_policy_learns_from_the_critics_and_not_from_their_targets(kind):
    agent, action = {
        "ddpg": (DDPG(BOX, LINEAR), CONTINUOUS),
        "td3": (TD3(BOX, LINEAR), CONTINUOUS),
        "sac": (SAC(BOX, LINEAR), CONTINUOUS),
        "sac_discrete": (SAC(Discrete(3), LINEAR), jnp.array([0, 1])),
    }[kind]

    @jax.jit
    def actor_gradients():
        state = agent.init(jax.random.key(0), jax.ShapeDtypeStruct((3,), jnp.float32), agent.action_space.example)
        changed = jax.tree.map(lambda leaf: 1 - 2 * leaf, (state.params.critic, state.target))
        states = (
            state,
            state._replace(target=changed[1]),
            state._replace(params=state.params._replace(critic=changed[0])),
        )
        found = [agent.gradients(state, sample(action, (1.0, 0.5)), jax.random.key(1)) for state in states]
        return [(grads.actor, info.metrics["loss_pi"]) for grads, info in found]

    before, other_target, other_critics = actor_gradients()
    jax.tree.map(np.testing.assert_array_equal, before, other_target)
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(other_critics), strict=True)
    assert all(np.any(a != b) for a, b in pairs)
