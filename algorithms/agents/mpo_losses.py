"""The mathematics of maximum a posteriori policy optimization, for one state; callers `vmap`.

The improved policy chooses among `C` candidates. A candidate is an action with a prior probability. With discrete
actions, the candidates are all actions, with the probabilities of the target policy. With continuous actions, the
candidates are draws from the target policy, each with the probability `1 / C`. So the same equations hold for both.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from algorithms.networks.distributions import Categorical, Normal
from jaxrl_buffers.types import Scalar

DUAL_MIN = -18.0  # softplus(-18) is 1.5e-8


class Candidates(NamedTuple):
    """The actions to choose from in one state. In a batch, all leaves have a leading axis `B`, one entry a state."""

    policy: Normal | Categorical  # the target policy
    action: jax.Array  # float32[C, A], not clipped, or int32[C]
    log_prior: jax.Array  # float32[C], logarithms of prior probabilities
    objectives: jax.Array  # float32[O, C], to maximize; the first objective is the values of the target critic


def improved_policy(values: jax.Array, log_prior: jax.Array, temperature: jax.Array) -> jax.Array:
    """Return the improved policy, the probabilities `[C]` in proportion to `prior(a) exp(Q(a) / eta)`.

    No gradient passes through them. This is the E-step: Abdolmaleki et al. (2018), https://arxiv.org/abs/1806.06920,
    equation 8.

    Args:
        values: `[C]`, the objective `Q`.
        log_prior: `[C]`, logarithms of prior probabilities.
        temperature: `eta`.

    Example:
        >>> values, log_prior = jnp.log(jnp.array([3.0, 1.0])), jnp.log(jnp.array([0.5, 0.5]))
        >>> print(*(f"{prob:.2f}" for prob in improved_policy(values, log_prior, jnp.float32(1))))
        0.75 0.25
    """
    chex.assert_rank([values, log_prior, temperature], [1, 1, 0])
    chex.assert_type([values, log_prior, temperature], float)
    return jax.lax.stop_gradient(jax.nn.softmax(values / temperature + log_prior))


def temperature_loss(
    values: jax.Array, log_prior: jax.Array, temperature: jax.Array, constraint: jax.Array
) -> jax.Array:
    """Return the dual `g(eta) = eta * (epsilon + log sum_a prior(a) exp(Q(a) / eta))`, which is convex in `eta`.

    Minimize the mean of `g` over states. At the minimum, the mean of `KL(q || prior)` over states is `epsilon`.
    Abdolmaleki et al. (2018), https://arxiv.org/abs/1806.06920, equation 9.

    Args:
        values: `[C]`, the objective `Q`.
        log_prior: `[C]`, logarithms of prior probabilities.
        temperature: `eta`. Gradients reach only this argument.
        constraint: `epsilon`.

    Example:
        >>> values, log_prior = jnp.array([1.0, 1.0]), jnp.log(jnp.array([0.5, 0.5]))
        >>> print(f"{temperature_loss(values, log_prior, jnp.float32(2), jnp.float32(0.1)):.2f}")
        1.20
    """
    chex.assert_rank([values, log_prior, temperature, constraint], [1, 1, 0, 0])
    chex.assert_type([values, log_prior, temperature, constraint], float)
    values, log_prior = jax.lax.stop_gradient((values, log_prior))
    return temperature * (constraint + jax.nn.logsumexp(values / temperature + log_prior))


def decoupled_terms(online: Normal, target: Normal, actions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log-densities `[C]` of actions `[C, A]`, and the divergences `[2, A]` of mean and variance.

    The mean `m` and the deviation `s` of the trained policy learn separately. The log-density is a sum of two. The
    first has the trained mean and the target policy's deviation `s_t`. The second has the target policy's mean `m_t`
    and the trained deviation. Every component of `m` and of `s` has its own divergence:

        log p = log N(a; m, s_t) + log N(a; m_t, s)
        KL_m  = (m - m_t)^2 / (2 s_t^2)
        KL_s  = log(s / s_t) + s_t^2 / (2 s^2) - 1 / 2

    Abdolmaleki et al. (2018), https://arxiv.org/abs/1812.02256, section 4.2.
    """
    moved, resized = Normal(online.mean, target.log_std), Normal(target.mean, online.log_std)
    log_prob = jax.vmap(lambda action: moved.log_prob(action) + resized.log_prob(action))(actions)
    return log_prob, jnp.stack([target.kl(moved), target.kl(resized)])


def categorical_terms(online: Categorical, target: Categorical) -> tuple[jax.Array, jax.Array]:
    """Return the log-probabilities `[A]` of all actions, and the divergence `KL(target || online)` as `[1]`."""
    return online.log_probs, target.kl(online)[None]


def constraint_loss(kl: jax.Array, multipliers: jax.Array, constraints: jax.Array) -> jax.Array:
    """Return `sum_d alpha_d KL_d + sum_d alpha_d (epsilon_d - KL_d)`.

    The first sum trains the policy, and its gradient does not reach `alpha`. The second sum trains the multipliers, and
    its gradient does not reach `KL`. So a divergence above its `epsilon` raises its own multiplier, and no other one.

    Args:
        kl: the divergences `KL_d`.
        multipliers: `alpha_d`, of the same shape.
        constraints: `epsilon_d`, of the same shape.

    Example:
        >>> kl, epsilon = jnp.array([0.5, 0.0]), jnp.array([0.25, 0.25])
        >>> print(jax.grad(constraint_loss, argnums=1)(kl, jnp.ones(2), epsilon))
        [-0.25  0.25]
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
        online: the policy that is trained.
        candidates: `C` actions with `O` objectives. Each objective gives one improved policy. Their sum weights the
            log-probabilities in the loss of the policy.
        temperature: `float32[O]`, `eta` of each objective.
        reach: `float32[O]`, the largest divergence of each improved policy from the prior.
        multipliers: `float32[2, A]` or `float32[1]`, one for each divergence of the trained policy.
        constraints: the largest value of each of these divergences, of the same shape.
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
        raise ValueError(
            f"the policy is a {type(online).__name__}, but the candidates come from a {type(target).__name__}; give "
            "two policies of one kind."
        )
    loss_policy = -jnp.sum(weights * log_prob[None])
    return loss_policy, jnp.sum(loss_temperature), constraint_loss(kl, multipliers, constraints), kl


def dual(raw: jax.Array) -> jax.Array:
    """Return `softplus(raw)`: the positive temperature or multiplier that belongs to the trained number `raw`."""
    return jax.nn.softplus(raw)


def raw_dual(value: Scalar) -> jax.Array:
    """Return the number `raw` for which `dual(raw)` is a given temperature or multiplier: the inverse of `dual`."""
    value = jnp.asarray(value, jnp.float32)
    return jnp.maximum(value + jnp.log(-jnp.expm1(-value)), DUAL_MIN)


def clip_dual(raw: jax.Array, most: Scalar) -> jax.Array:
    """Return `raw`, clipped such that `dual(raw)` is between 1.5e-8 and `most`."""
    return jnp.clip(raw, DUAL_MIN, raw_dual(most))
