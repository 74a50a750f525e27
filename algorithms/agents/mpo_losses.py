"""The mathematics of maximum a posteriori policy optimization for one state; callers `vmap`.

Candidates are `C` actions with a prior over them: all discrete actions with the target policy's probabilities, or draws
from the target policy, each with `1 / C`. So one set of equations serves both.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from algorithms.networks.distributions import Categorical, Normal
from jaxrl_buffers.types import Scalar

DUAL_MIN = -18.0  # softplus of it is 1.5e-8


class Candidates(NamedTuple):
    """Actions under consideration, in one state or with an axis of states before all others."""

    policy: Normal | Categorical  # the target policy
    action: jax.Array  # float32[C, A], not clipped, or int32[C]
    log_prior: jax.Array  # float32[C]
    objectives: jax.Array  # float32[O, C], first of all the target values


def improved_policy(values: jax.Array, log_prior: jax.Array, temperature: jax.Array) -> jax.Array:
    """Return the probabilities `q(a) ~ prior(a) exp(Q(a) / eta)` of candidates `[C]`, without gradient.

    The E-step; Abdolmaleki et al. (2018), https://arxiv.org/abs/1806.06920, equation 8.
    """
    chex.assert_rank([values, log_prior, temperature], [1, 1, 0])
    return jax.lax.stop_gradient(jax.nn.softmax(values / temperature + log_prior))


def temperature_loss(
    values: jax.Array, log_prior: jax.Array, temperature: jax.Array, constraint: jax.Array
) -> jax.Array:
    """Return the dual `g(eta) = eta * (epsilon + log sum_a prior(a) exp(Q(a) / eta))`, convex in `eta`.

    Its minimum is where `KL(q || prior)`, on average over states, is `epsilon`; equation 9 of the same paper.
    """
    chex.assert_rank([values, log_prior, temperature, constraint], [1, 1, 0, 0])
    values, log_prior = jax.lax.stop_gradient((values, log_prior))
    return temperature * (constraint + jax.nn.logsumexp(values / temperature + log_prior))


def decoupled_terms(online: Normal, target: Normal, actions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log-densities `[C]` of actions `[C, A]`, and the divergences `[2, A]` of mean and variance.

    Mean and variance learn apart: `log N(a; m, s_t) + log N(a; m_t, s)`, and with `KL(target || .)` of either factor

        C_m = (m - m_t)^2 / (2 s_t^2),   C_s = log(s / s_t) + s_t^2 / (2 s^2) - 1 / 2

    a component. Abdolmaleki et al. (2018), https://arxiv.org/abs/1812.02256, section 4.2.
    """
    moved, resized = Normal(online.mean, target.log_std), Normal(target.mean, online.log_std)
    log_prob = jax.vmap(lambda action: moved.log_prob(action) + resized.log_prob(action))(actions)
    return log_prob, jnp.stack([target.kl(moved), target.kl(resized)])


def categorical_terms(online: Categorical, target: Categorical) -> tuple[jax.Array, jax.Array]:
    """Return the log-probabilities `[A]` of all actions, and the divergence `KL(target || online)` as `[1]`."""
    return online.log_probs, target.kl(online)[None]


def constraint_loss(kl: jax.Array, multipliers: jax.Array, constraints: jax.Array) -> jax.Array:
    """Return `sum_i alpha_i KL_i`, for the policy, plus `sum_i alpha_i (epsilon_i - KL_i)`, for the multipliers.

    The gradient of either part stops at the other: a divergence above its `epsilon` raises its own multiplier.
    """
    chex.assert_equal_shape([kl, multipliers, constraints])
    penalty = jax.lax.stop_gradient(multipliers) * kl
    return jnp.sum(penalty + multipliers * (constraints - jax.lax.stop_gradient(kl)))


def state_losses(
    online: Normal | Categorical,
    candidates: Candidates,
    temperature: jax.Array,
    reach: jax.Array,
    multipliers: jax.Array,
    constraints: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return the losses of policy, temperature and constraints in one state, and the divergences.

    Args:
        online: the policy that learns.
        candidates: with `C` actions and `O` objectives, whose improved policies are added up.
        temperature: `float32[O]`.
        reach: `float32[O]`, the divergences allowed to the E-step.
        multipliers: `float32[2, A]` or `float32[1]`, like the divergences.
        constraints: the same, the divergences allowed to the M-step.
    """
    each = (0, None, 0)
    given = candidates.objectives, candidates.log_prior, temperature
    weights = jax.vmap(improved_policy, each)(*given)
    loss_temperature = jax.vmap(temperature_loss, (*each, 0))(*given, reach)
    target = candidates.policy
    if isinstance(online, Categorical) and isinstance(target, Categorical):
        log_prob, kl = categorical_terms(online, target)
    elif isinstance(online, Normal) and isinstance(target, Normal):
        log_prob, kl = decoupled_terms(online, target, candidates.action)
    else:
        raise ValueError(f"the policy is {online}, but the candidates come from {target}; both must be of one kind.")
    loss_policy = -jnp.sum(weights * log_prob[None])
    return loss_policy, jnp.sum(loss_temperature), constraint_loss(kl, multipliers, constraints), kl


def dual(raw: jax.Array) -> jax.Array:
    """Return the positive quantity that the trained number `raw` stands for."""
    return jax.nn.softplus(raw)


def raw_dual(value: Scalar) -> jax.Array:
    """Return the inverse of `dual`."""
    value = jnp.asarray(value, jnp.float32)
    return jnp.maximum(value + jnp.log(-jnp.expm1(-value)), DUAL_MIN)


def clip_dual(raw: jax.Array, most: Scalar) -> jax.Array:
    """Keep the quantity behind `raw` between 1.5e-8 and `most`."""
    return jnp.clip(raw, DUAL_MIN, raw_dual(most))
