"""DDPG and TD3: what the target is made of, what is delayed, and whose gradient the policy follows."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rlax
from support.linear import linear, stacked

import jaxrl_buffers as jb
from algorithms import DDPG, TD3, Box, Torso
from algorithms.training.metrics import Scalars, Sums
from jaxrl_buffers import Batch, Handle, Sample

BOX = Box((-2.0, 0.0), (2.0, 1.0))
AGENTS = {"ddpg": DDPG(BOX, Torso((8,))), "td3": TD3(BOX, Torso((8,)))}


def sample(key, num=8):
    key_obs, key_next, key_action = jax.random.split(key, 3)
    obs, next_obs = jax.random.normal(key_obs, (num, 3)), jax.random.normal(key_next, (num, 3))
    batch = Batch(obs, BOX.sample(key_action, num), jnp.ones(num), jnp.full(num, 0.9), next_obs, jnp.ones(num, bool))
    return Sample(batch, Handle(jnp.zeros(num, jnp.int32), jnp.arange(num, dtype=jnp.int32)), jnp.ones(num))


@functools.cache
def functions(name):
    agent = AGENTS[name]
    init = jax.jit(lambda key: agent.init(key, jax.ShapeDtypeStruct((3,), jnp.float32), BOX.example))
    return init, jax.jit(type(agent).gradients)


def changed(params):
    return jax.tree.map(lambda leaf: leaf + 0.3, params)


@pytest.mark.parametrize("name", AGENTS)
def test_the_target_takes_the_action_of_the_target_policy(name):
    init, gradients = functions(name)
    state, batch, key = init(jax.random.key(0)), sample(jax.random.key(1)), jax.random.key(2)
    errors = lambda state: gradients(AGENTS[name], state, batch, key)[1].priorities  # noqa: E731
    params, target = state.params, state.target
    before = errors(state)
    np.testing.assert_array_equal(errors(state._replace(params=params._replace(actor=changed(params.actor)))), before)
    after = errors(state._replace(target=target._replace(actor=changed(target.actor))))
    assert jnp.all(after != before)


def test_ddpg_has_no_noise_inside_losses():
    init, gradients = functions("ddpg")
    state, batch = init(jax.random.key(0)), sample(jax.random.key(1))
    one, two = (gradients(AGENTS["ddpg"], state, batch, jax.random.key(seed)) for seed in range(2))
    jax.tree.map(np.testing.assert_array_equal, one, two)


def test_smoothing_noise_is_drawn_for_every_sample_and_component():
    """A critic that is one component of the action tells what the target action was."""
    num = 4_000
    agent = TD3(BOX, Torso(()), target_update_interval=1)
    batch = sample(jax.random.key(0), num)
    zeros = jax.tree.map(jnp.zeros_like, batch.batch)
    middle = jnp.tile(jnp.array([[0.0, 0.5]]), (num, 1))  # of the bounds, so 0 for the networks
    batch = batch._replace(batch=zeros._replace(action=middle, discount=jnp.ones(num)))

    @jax.jit
    def noise_of(weight):
        state = agent.init(jax.random.key(0), jax.ShapeDtypeStruct((3,), jnp.float32), BOX.example)
        critic = linear(weight)
        target = state.target._replace(actor=linear(np.zeros((2, 3))), critic=stacked(critic, critic))
        params = state.params._replace(critic=stacked(critic, critic))
        state = state._replace(params=params, target=target)
        return agent.gradients(state, batch, jax.random.key(5))[1].priorities

    first, second = (np.asarray(noise_of(np.array([[0.0, 0, 0, *weight]]))) for weight in ((1, 0), (0, 1)))
    for found in (first, second):
        assert found.max() == 0.5
        np.testing.assert_allclose(np.mean(found == 0.5), 0.0124, atol=0.01)  # beyond 2.5 standard deviations
        np.testing.assert_allclose(np.median(found), 0.6745 * 0.2, atol=0.01)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.08


def test_the_delay_masks_the_update():
    """With interval 2, policy, its optimizer and all targets move at updates 1, 3, 5, 7 and 9."""
    agent, batch = AGENTS["td3"], sample(jax.random.key(1))

    def update(state, key):
        grads, _ = agent.gradients(state, batch, key)
        state = agent.apply(state, grads)
        return state, (state, optax.tree.norm(grads.actor))

    @jax.jit
    def run(state):
        return jax.lax.scan(update, state, jax.random.split(jax.random.key(2), 10))[1]

    first = functions("td3")[0](jax.random.key(0))
    states, norms = run(first)
    assert (norms > 0).tolist() == [True, False] * 5  # what nothing uses is not computed
    history = jax.tree.map(lambda one, many: np.concatenate([one[None], many]), first, states)

    def moved(tree):
        flat = np.concatenate([leaf.reshape(11, -1) for leaf in jax.tree.leaves(tree)], axis=1)
        return np.any(flat[1:] != flat[:-1], axis=1).tolist()

    for tree in (history.params.actor, history.optimizer.actor, history.target.actor, history.target.critic):
        assert moved(tree) == [True, False] * 5
    for tree in (history.params.critic, history.optimizer.critic):
        assert moved(tree) == [True] * 10
    np.testing.assert_array_equal(history.optimizer.actor.count, [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5])


def test_skipping_the_policy_gradient_changes_no_bit():
    """Against updates that compute it always; over seeds, too, where it is computed and left out."""
    batch = sample(jax.random.key(1))

    class Eager(TD3):
        def gradients(self, state, sample, key):
            grads, info = TD3.gradients(self, state, sample, key)
            _, actor = self.policy_gradient(state, sample)
            return grads._replace(actor=actor), info

    def run(agent, key):
        def update(state, key):
            grads, _ = agent.gradients(state, batch, key)
            return agent.apply(state, grads), None

        key_init, key_run = jax.random.split(key)
        state = agent.init(key_init, jax.ShapeDtypeStruct((3,), jnp.float32), BOX.example)
        return jax.lax.scan(update, state, jax.random.split(key_run, 7))[0]

    lazy, eager = (
        jax.jit(functools.partial(run, kind(BOX, Torso((8,)), target_update_interval=3))) for kind in (TD3, Eager)
    )
    key = jax.random.key(3)
    jax.tree.map(np.testing.assert_array_equal, lazy(key), eager(key))
    many = jax.jit(jax.vmap(functools.partial(run, TD3(BOX, Torso((8,)), target_update_interval=3))))(
        jnp.stack([key, key])
    )
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two[1], rtol=1e-5, atol=1e-6), lazy(key), many)


def test_the_policy_gradient_is_computed_only_where_it_is_used():
    """Products of matrices at the top level and, besides, in one branch of a condition."""
    agent, batch = AGENTS["td3"], sample(jax.random.key(1))
    state = jax.eval_shape(functions("td3")[0], jax.random.key(0))
    jaxpr = jax.make_jaxpr(lambda state: agent.gradients(state, batch, jax.random.key(2)))(state)
    conditions = [equation for equation in jaxpr.eqns if equation.primitive.name == "cond"]
    products = [[str(branch).count("dot_general") for branch in each.params["branches"]] for each in conditions]
    # Choices by platform have products on each side.
    (computed,) = [counts[1] for counts in products if counts[0] == 0]
    assert computed >= 6  # forward through policy and critic, and back


def test_means_of_the_policy_are_over_updates_that_moved_it():
    zero = Sums.zero(("grad_norm_pi", "loss_pi", "loss_q", "moves_policy"))
    values = jnp.array([[2.0, -1.0, 1.0, 1.0], [0.0, 0.0, 2.0, 0.0], [4.0, -3.0, 6.0, 1.0]])
    row = jb.Transition(jnp.zeros((1, 1)), jnp.zeros((1, 1)), jnp.zeros((1, 1)), *[jnp.zeros((1, 1), bool)] * 2, ())
    means = zero.add(jnp.int32(1), row, updates=Scalars(zero.names, values)).read()
    assert (means["grad_norm_pi"], means["loss_pi"], means["loss_q"]) == (3, -2, 3)
    np.testing.assert_allclose(means["moves_policy"], 2 / 3)
    plain = Sums.zero(("loss_pi",))
    assert plain.add(jnp.int32(1), row, updates=Scalars(plain.names, values[:, 1:2])).read()[
        "loss_pi"
    ] == pytest.approx(-4 / 3)


def test_the_policy_gradient_agrees_with_rlax():
    agent, batch = AGENTS["td3"], sample(jax.random.key(1))
    init, gradients = functions("td3")
    state = init(jax.random.key(0))
    grads, _ = gradients(agent, state, batch, jax.random.key(2))

    @jax.jit
    def oracle(state):
        def value(action):
            return jnp.sum(agent.values(state.params.critic, batch.batch.obs, action)[0])

        def loss(actor):
            of_components = jax.vmap(rlax.dpg_loss)(agent.policy.action(actor, batch.batch.obs), slope)
            return jnp.mean(jnp.sum(of_components, axis=1))

        slope = jax.grad(value)(agent.policy.action(state.params.actor, batch.batch.obs))
        return jax.grad(loss)(state.params.actor)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), grads.actor, oracle(state))
