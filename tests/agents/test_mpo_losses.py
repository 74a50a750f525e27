"""The losses of MPO: duals, divergences, the improved policy."""

from __future__ import annotations

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.agents import mpo_losses
from algorithms.agents.mpo_losses import Candidates
from algorithms.networks.distributions import Categorical, Normal

# Objectives of 20 states with 6 candidates, and a prior over these.
VALUES = 3 * jax.random.normal(jax.random.key(0), (20, 6))
LOG_PRIOR = jax.nn.log_softmax(jax.random.normal(jax.random.key(1), (20, 6)))
EPSILON = jnp.float32(0.1)
ONE, OTHER = (
    Normal(jnp.array([0.3, -1.0]), jnp.array([0.1, -0.5])),
    Normal(jnp.array([0.0, 0.5]), jnp.array([-0.7, 0.2])),
)


def mean_dual(temperature):
    loss = jax.vmap(mpo_losses.temperature_loss, in_axes=(0, 0, None, None))
    return jnp.mean(loss(VALUES, LOG_PRIOR, temperature, EPSILON))


def test_the_dual_is_least_where_the_constraint_is_met():
    """At the minimizer of a grid, the mean divergence of `q` from the prior is epsilon."""
    grid = jnp.linspace(0.5, 30, 3_000)
    best = grid[jnp.argmin(jax.jit(jax.vmap(mean_dual))(grid))]
    q = jax.vmap(mpo_losses.improved_policy, in_axes=(0, 0, None))(VALUES, LOG_PRIOR, best)
    divergence = jnp.mean(jnp.sum(q * (jnp.log(q) - LOG_PRIOR), axis=1))
    np.testing.assert_allclose(divergence, EPSILON, rtol=0.02)
    np.testing.assert_allclose(jax.grad(mean_dual)(best), 0, atol=1e-3)


def test_the_improved_policy_weighs_the_prior():
    """Q is proportional to `prior * exp(Q / eta)`, and no gradient passes."""
    prior, values = np.array([0.7, 0.2, 0.1]), np.array([1.0, 2.0, 3.0])
    expected = prior * np.exp(values / 0.5)
    q = mpo_losses.improved_policy(*map(jnp.float32, (values, np.log(prior), 0.5)))
    np.testing.assert_allclose(q, expected / expected.sum(), rtol=1e-5)
    slope = jax.grad(lambda t: mpo_losses.improved_policy(VALUES[0], LOG_PRIOR[0], t)[0])(jnp.float32(1))
    assert slope == 0


def test_the_dual_with_samples_is_that_of_the_original():
    """The shift by the greatest value and the mean over samples come to the same."""
    values, eta = np.asarray(VALUES[0]), 0.8
    expected = eta * 0.1 + values.max() + eta * np.log(np.mean(np.exp((values - values.max()) / eta)))
    log_prior = jnp.full(6, -np.log(6), jnp.float32)
    loss = mpo_losses.temperature_loss(VALUES[0], log_prior, jnp.float32(eta), EPSILON)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_divergences_of_gaussians():
    """None between identical Gaussians, else the analytic ones, together the whole of distrax."""
    _, zero = mpo_losses.decoupled_terms(ONE, ONE, jnp.zeros((1, 2)))
    np.testing.assert_array_equal(zero, 0)
    _, kl = mpo_losses.decoupled_terms(ONE, OTHER, jnp.zeros((1, 2)))
    mean, std, target_mean, target_std = ONE.mean, jnp.exp(ONE.log_std), OTHER.mean, jnp.exp(OTHER.log_std)
    np.testing.assert_allclose(kl[0], (mean - target_mean) ** 2 / (2 * target_std**2), rtol=1e-5)
    np.testing.assert_allclose(kl[1], jnp.log(std / target_std) + target_std**2 / (2 * std**2) - 0.5, rtol=1e-5)
    ours, theirs = (distrax.Normal(normal.mean, jnp.exp(normal.log_std)) for normal in (ONE, OTHER))
    np.testing.assert_allclose(OTHER.kl(ONE), theirs.kl_divergence(ours), rtol=1e-5)
    moved = distrax.Normal(mean, target_std)
    np.testing.assert_allclose(kl[0], theirs.kl_divergence(moved), rtol=1e-5)


def test_normal_and_categorical_agree_with_distrax():
    actions = jnp.array([[0.2, -0.7], [1.5, 0.0]])
    oracle = distrax.MultivariateNormalDiag(ONE.mean, jnp.exp(ONE.log_std))
    for action in actions:
        np.testing.assert_allclose(ONE.log_prob(action), oracle.log_prob(action), rtol=1e-5)
    np.testing.assert_allclose(ONE.entropy(), oracle.entropy(), rtol=1e-5)
    one, other = Categorical(LOG_PRIOR[0]), Categorical(LOG_PRIOR[1])
    theirs = distrax.Categorical(LOG_PRIOR[0])
    np.testing.assert_allclose(one.entropy(), theirs.entropy(), rtol=1e-5)
    np.testing.assert_allclose(one.log_prob(jnp.int32(4)), theirs.log_prob(4), rtol=1e-5)
    np.testing.assert_allclose(one.kl(other), theirs.kl_divergence(distrax.Categorical(LOG_PRIOR[1])), rtol=1e-4)


def test_mean_and_variance_are_decoupled():
    """The mean learns as if the variance were the target's, and the other way round."""
    actions = jnp.array([[0.2, -0.7]])
    slope = jax.grad(lambda online: mpo_losses.decoupled_terms(online, OTHER, actions)[0][0])(ONE)
    np.testing.assert_allclose(slope.mean, (actions[0] - ONE.mean) / jnp.exp(2 * OTHER.log_std), rtol=1e-5)
    expected = ((actions[0] - OTHER.mean) / jnp.exp(ONE.log_std)) ** 2 - 1
    np.testing.assert_allclose(slope.log_std, expected, rtol=1e-4)


def test_policies_of_two_kinds_are_refused():
    rest = jnp.ones((1, 5)), jnp.ones(1), EPSILON[None], jnp.ones(1), jnp.ones(1)
    for online, target in ((ONE, Categorical(LOG_PRIOR[0])), (Categorical(LOG_PRIOR[0]), ONE)):
        with pytest.raises(ValueError, match="of one kind"):
            mpo_losses.state_losses(online, Candidates(target, jnp.zeros(5), jnp.zeros(5), rest[0]), *rest[1:])


def test_every_multiplier_follows_its_own_divergence():
    """Only the divergence of the variance is too large, and only its multiplier rises."""
    kl, limits = jnp.array([[0.0], [5.0]]), jnp.array([[0.01], [0.001]])
    of_kl, of_multipliers = jax.grad(mpo_losses.constraint_loss, argnums=(0, 1))(kl, jnp.full((2, 1), 3.0), limits)
    np.testing.assert_allclose(of_multipliers, [[0.01], [-4.999]], rtol=1e-5)
    np.testing.assert_allclose(of_kl, [[3.0], [3.0]])
