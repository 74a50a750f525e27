"""MPO against closed forms, distrax, a grid over the temperature, and a quadratic whose optimum is known."""

from __future__ import annotations

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.agents import AGENTS, BOX, sample

import jaxrl_buffers as jb
from algorithms import MPO, RewardPrediction, Torso
from algorithms.agents import mpo_losses, optimization
from algorithms.agents.mpo_losses import Candidates
from algorithms.networks.distributions import Normal

OBS = jax.ShapeDtypeStruct((4,), jnp.float32)
EPSILON = jnp.float32(0.1)


def start(agent):
    """Return the state of an agent, and a sample; of vectors only, which compile fast."""
    drawn = sample(agent, jax.random.key(2))
    batch = drawn.batch._replace(obs=drawn.batch.obs["x"], next_obs=drawn.batch.next_obs["x"])
    return agent.init(jax.random.key(0), OBS, agent.action_space.example), drawn._replace(batch=batch)


def test_the_trained_temperature_is_that_of_the_grid():
    """Steps along the agent's own gradients end where a brute-force search does."""
    agent = AGENTS["mpo_discrete"](learning_rate_q=0.0, learning_rate_pi=0.0, learning_rate_dual=0.02, polyak=1.0)

    @jax.jit
    def search():
        state, batch = start(agent)
        candidates = agent.networks.candidates(state.target, batch.batch.obs, jax.random.key(4))
        grid = jnp.geomspace(1e-3, 10, 4_000)
        loss = jax.vmap(mpo_losses.temperature_loss, in_axes=(0, 0, None, None))
        duals = jax.vmap(lambda t: jnp.mean(loss(candidates.objectives[:, 0], candidates.log_prior, t, EPSILON)))(grid)

        def step(state, key):
            return agent.apply(state, agent.gradients(state, batch, key)[0]), None

        state = jax.lax.scan(step, state, jax.random.split(jax.random.key(5), 1_500))[0]
        return grid[jnp.argmin(duals)], mpo_losses.dual(state.params.temperature[0])

    np.testing.assert_allclose(*search(), rtol=0.02)


def test_duals_are_positive_and_bounded():
    values = jnp.array([1e-6, 0.1, 1.0, 10.0, 1_000.0])
    np.testing.assert_allclose(mpo_losses.dual(mpo_losses.raw_dual(values)), values, rtol=1e-2)
    clipped = mpo_losses.dual(mpo_losses.clip_dual(jnp.array([-1e6, 0.0, 1e6]), 7.0))
    np.testing.assert_allclose(clipped, [1.5e-8, jnp.log(2), 7], rtol=0.02)
    agent = AGENTS["mpo"](max_multiplier=2.0, learning_rate_dual=1e3)
    temperature, multipliers = jnp.array([1.0, -1.0]), jnp.array([[1.0, 1.0], [-1.0, -1.0]])

    @jax.jit
    def step():
        state, _ = start(agent)
        grads = state.params._replace(temperature=temperature, multipliers=multipliers)
        return agent.apply(state, grads).params

    after = step()
    np.testing.assert_allclose(mpo_losses.dual(after.temperature), [1.5e-8, 2], rtol=0.02)
    np.testing.assert_allclose(mpo_losses.dual(after.multipliers), [[1.5e-8] * 2, [2] * 2], rtol=0.02)


def test_mean_variance_and_temperature_may_have_bounds_and_steps_of_their_own():
    own = AGENTS["mpo"](max_multiplier=2.0, max_variance_multiplier=3.0, max_temperature=4.0, learning_rate_dual=1e3)
    slow, plain = AGENTS["mpo"](variance_dual_scale=0.25), AGENTS["mpo"]()

    @jax.jit
    def step(agent, direction):
        state, _ = start(agent)
        grads = jax.tree.map(lambda leaf: jnp.full_like(leaf, direction), state.params)
        return state.params, agent.apply(state, grads).params

    _, after = step(own, -1.0)
    np.testing.assert_allclose(mpo_losses.dual(after.multipliers), [[2] * 2, [3] * 2], rtol=0.02)
    np.testing.assert_allclose(mpo_losses.dual(after.temperature), [4] * 2, rtol=0.02)
    before, whole = step(plain, 1.0)
    _, part = step(slow, 1.0)
    moved, slowed = whole.multipliers - before.multipliers, part.multipliers - before.multipliers
    np.testing.assert_allclose(slowed, moved * jnp.array([[1.0], [0.25]]), rtol=1e-3)
    np.testing.assert_array_equal(whole.temperature, part.temperature)
    discrete = AGENTS["mpo_discrete"](variance_dual_scale=0.25)
    assert step(discrete, 1.0)[1].multipliers.shape == (1,)


def test_a_quadratic_is_climbed():
    """Whole steps on `Q(a) = -(a - 0.5)^2 / 0.1`: the mean moves to the optimum and the variance shrinks."""
    limits = jnp.array([[0.01], [0.001]])

    def step(carry, key):
        params, target, optimizer = carry
        action = jax.tree.map(lambda leaf: jnp.tile(leaf, (20, 1)), target).sample(key)
        values = -10 * (action[:, 0] - 0.5) ** 2
        candidates = Candidates(target, action, jnp.full(20, -np.log(20), jnp.float32), values[None])

        def loss(params):
            online, raw_temperature, raw_multipliers = params
            duals = mpo_losses.dual(raw_temperature), EPSILON[None], mpo_losses.dual(raw_multipliers), limits
            return sum(mpo_losses.state_losses(online, candidates, *duals)[:3])

        params, optimizer = optimization.step_adam(params, jax.grad(loss)(params), optimizer, 1e-2)
        target = optimization.polyak(target, params[0], 0.95, jnp.asarray(True))
        return (params, target, optimizer), (params[0].mean[0], params[0].log_std[0])

    @jax.jit
    def climb():
        start = Normal(jnp.array([-0.8]), jnp.array([0.0]))
        params = start, mpo_losses.raw_dual(jnp.ones(1)), mpo_losses.raw_dual(jnp.ones((2, 1)))
        carry = params, start, optimization.ADAM.init(params)
        return jax.lax.scan(step, carry, jax.random.split(jax.random.key(0), 2_000))[1]

    mean, log_std = climb()
    np.testing.assert_allclose(mean[-200:].mean(), 0.5, atol=0.05)
    assert log_std[-1] < log_std[200] < 0
    assert jnp.exp(log_std[-1]) < 0.4


@pytest.mark.parametrize("name", ["mpo", "mpo_discrete"])
def test_passes_step_the_policy_over_fixed_candidates(name):
    """As an agent with one pass does whose critic, temperature and targets are kept as they were before the update."""
    options = {"polyak": 0.0, "learning_rate_pi": 1e-3, "addons": (RewardPrediction(),)}
    agent, single = (AGENTS[name](num_passes=num_passes, **options) for num_passes in (3, 1))
    groups = ("actor", "multipliers", "addons")

    def keep(before, after):
        """Return a state in which only the policy, its multipliers and the add-ons have moved."""
        of_passes = [{group: getattr(tree, group) for group in groups} for tree in (after.params, after.optimizer)]
        params, optimizer = before.params._replace(**of_passes[0]), before.optimizer._replace(**of_passes[1])
        return before._replace(params=params, optimizer=optimizer)

    @jax.jit
    def both(key):
        before, batch = start(agent)
        grads, info = agent.gradients(before, batch, key)
        states, expected = [before], []
        for _ in range(3):
            expected.append(single.gradients(states[-1], batch, key))
            states.append(keep(before, single.apply(states[-1], expected[-1][0])))
        return (grads, info, agent.apply(before, grads)), (expected, states, single.apply(before, expected[0][0]))

    (grads, info, after), (expected, states, once) = jax.device_get(both(jax.random.key(1)))
    close = functools.partial(chex.assert_trees_all_close, rtol=1e-4, atol=1e-6)
    for group in groups:
        passes = jax.tree.map(lambda *leaves: np.stack(leaves), *(getattr(one, group) for one, _ in expected))
        close(getattr(grads, group), passes)
        close(getattr(after.params, group), getattr(states[-1].params, group))
        close(getattr(after.optimizer, group), getattr(states[-1].optimizer, group))
    for group in ("critic", "temperature"):
        close(getattr(grads, group), getattr(expected[0][0], group))
        close(getattr(after.params, group), getattr(once.params, group))
        close(getattr(after.optimizer, group), getattr(once.optimizer, group))
    close(tuple(after.target), (after.params.actor, after.params.critic))
    assert after.num_updates == 1
    close(info.priorities, expected[0][1].priorities)
    close(info.metrics, expected[-1][1].metrics)
    losses = [each.metrics["loss_pi"] for _, each in expected]
    assert losses[0] > losses[1] > losses[2]  # of one fixed problem, so every step shows


@pytest.mark.parametrize("name", ["mpo", "mpo_discrete"])
def test_every_hyper_parameter_takes_effect(name):
    agent = AGENTS[name](max_multiplier=5.0)
    unused = (
        ("noise", "kl_constraint")
        if name == "mpo"
        else ("noise", "kl_mean", "kl_variance", "penalty", "initial_variance")
    )
    leaves = {key: value for key, value in jb.parameters(agent).items() if not key.startswith(unused)}
    changed = {"polyak": 0.5, "target_update_interval": 2, "max_grad_norm": 1e-9, "max_multiplier": 0.1}
    table = {
        key: [changed.get(key, 2 * value) if key == other else value for other in (None, *leaves)]
        for key, value in leaves.items()
    }

    def train(values):
        variant = agent.replace(**values)
        state, batch = start(variant)

        def step(state, key):
            return variant.apply(state, variant.gradients(state, batch, key)[0]), None

        return jax.lax.scan(step, state, jax.random.split(jax.random.key(0), 3))[0]

    states = jax.device_get(jax.jit(jax.vmap(train))({key: jnp.array(column) for key, column in table.items()}))
    for index, key in enumerate(leaves, start=1):
        assert any(np.any(leaf[index] != leaf[0]) for leaf in jax.tree.leaves(states)), key


def test_targets_are_expected_values():
    """`y = r + discount * sum_a pi_t(a | s') Q_t(s', a)`, from one critic; priorities are `|Q(s, a) - y|`."""
    agent = AGENTS["mpo_discrete"]()

    @jax.jit
    def targets():
        state, drawn = start(agent)
        batch = drawn.batch
        probs = jnp.exp(agent.policy.distribution(state.target.actor, batch.next_obs).log_probs)
        q = jax.vmap(agent.networks.critic.apply, in_axes=(None, 0))(state.target.critic, batch.next_obs)
        expected = batch.reward + batch.discount * jnp.sum(probs * q, axis=1)
        q = jax.vmap(agent.networks.critic.apply, in_axes=(None, 0))(state.params.critic, batch.obs)
        error = jnp.abs(jnp.take_along_axis(q, batch.action[:, None], axis=1)[:, 0] - expected)
        told = agent.gradients(state, drawn, jax.random.key(1))[1].priorities
        return (
            (expected, agent.networks.td_target(state.target, batch, jax.random.key(0))),
            (error, told),
            state.params.critic,
        )

    target, error, critic = targets()
    np.testing.assert_allclose(*target, rtol=1e-5)
    np.testing.assert_allclose(*error, rtol=1e-5)
    chex.assert_shape(critic["params"]["Dense_0"]["kernel"], (8, 3))  # no axis of critics


def test_the_penalty_draws_the_policy_back_into_the_bounds():
    """Where nothing is to be gained by values, the mean of a policy outside of the bounds moves inwards."""
    outside = jnp.array([1.3, -1.3])

    @functools.partial(jax.jit, static_argnums=0)
    def slope(penalized):
        agent = MPO(BOX, Torso(()), num_samples=500, penalized=penalized, initial_temperature=0.05)
        state, batch = start(agent)
        flat = jax.tree.map(jnp.zeros_like, (state.params.actor, state.params.critic))
        actor = jax.tree_util.tree_map_with_path(
            lambda path, leaf: jnp.append(outside, jnp.full(2, -1.5)) if "bias" in str(path) else leaf, flat[0]
        )
        params = state.params._replace(actor=actor, critic=flat[1])
        state = state._replace(params=params, target=state.target._replace(actor=actor, critic=flat[1]))
        candidates = agent.networks.candidates(state.target, batch.batch.obs, jax.random.key(1))
        grads, _ = agent.gradients(state, batch, jax.random.key(1))
        return candidates, jax.tree.leaves(grads.actor)[0][:2], params.temperature

    candidates, inwards, temperature = slope(True)
    beyond = np.maximum(np.abs(candidates.action) - 1, 0)
    np.testing.assert_allclose(candidates.objectives[:, 1], -np.sqrt(np.sum(beyond**2, axis=-1)), atol=1e-5)
    assert temperature.shape == (2,)
    candidates, free, temperature = slope(False)
    assert candidates.objectives.shape[1] == 1
    assert temperature.shape == (1,)
    assert np.all(np.sign(inwards) == np.sign(outside))  # steps go against it
    assert np.all(np.abs(free) < 0.1 * np.abs(inwards))
