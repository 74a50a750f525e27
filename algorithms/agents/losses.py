"""The mathematics of the algorithms for one unbatched sample; callers `vmap`.

`discount` already holds `gamma**k` for the steps really used, and is zero where the task ended, so no function here
knows about episode ends. Targets carry no gradient.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def td_target(reward: jax.Array, discount: jax.Array, next_value: jax.Array) -> jax.Array:
    """Return `y = r + discount * V(s')`, without gradient."""
    chex.assert_rank([reward, discount, next_value], 0)
    return jax.lax.stop_gradient(reward + discount * next_value)


def double_q_value(q_online: jax.Array, q_target: jax.Array) -> jax.Array:
    """Return `V(s') = Q_target(s', argmax_a Q_online(s', a))` from values `[A]` of all actions.

    Double Q-learning: one network chooses the action, the other one tells its value; van Hasselt et al. (2016),
    https://arxiv.org/abs/1509.06461.
    """
    chex.assert_rank([q_online, q_target], 1)
    return q_target[jnp.argmax(q_online)]


def smoothed_action(action: jax.Array, noise: jax.Array, limit: jax.Array) -> jax.Array:
    """Return `clip(a + clip(noise, -limit, limit), -1, 1)` for an action `[A]` and noise for each of its components.

    Target policy smoothing; Fujimoto et al. (2018), https://arxiv.org/abs/1802.09477, section 5.3.
    """
    chex.assert_rank([action, noise, limit], [1, 1, 0])
    chex.assert_equal_shape([action, noise])
    return jnp.clip(action + jnp.clip(noise, -limit, limit), -1, 1)


def exact_expectations(q_values: jax.Array, log_probs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return `E_a[min_j Q_j(s, a)]` and `E_a[log pi(a | s)]` over all discrete actions.

    Soft actor-critic with discrete actions; Christodoulou (2019), https://arxiv.org/abs/1910.07207, equations 10 to 12.

    Args:
        q_values: `[C, A]` of critics.
        log_probs: `[A]`, normalized.
    """
    chex.assert_rank([q_values, log_probs], [2, 1])
    probs = jnp.exp(log_probs)
    return jnp.sum(probs * jnp.min(q_values, axis=0)), jnp.sum(probs * log_probs)


def soft_value(value: jax.Array, log_prob: jax.Array, alpha: jax.Array) -> jax.Array:
    """Return `V(s') = min_j Q_j(s', a') - alpha * log pi(a' | s')`, of one drawn action or in expectation.

    Soft actor-critic; Haarnoja et al. (2018), https://arxiv.org/abs/1812.05905, equations 3 and 5.

    Args:
        value: of the most pessimistic critic, `min_j Q_j(s', a')`.
        log_prob: of the same action.
        alpha: the temperature.
    """
    chex.assert_rank([value, log_prob, alpha], 0)
    return value - alpha * log_prob


def soft_policy_loss(value: jax.Array, log_prob: jax.Array, alpha: jax.Array) -> jax.Array:
    """Return `alpha * log pi(a | s) - min_j Q_j(s, a)`, reparameterized or in expectation; equation 9 of that paper."""
    chex.assert_rank([value, log_prob, alpha], 0)
    return jax.lax.stop_gradient(alpha) * log_prob - value


def temperature_loss(log_alpha: jax.Array, log_prob: jax.Array, target_entropy: jax.Array) -> jax.Array:
    """Return `-log_alpha * (log pi(a | s) + H)`, which raises the temperature while the entropy is below `H`."""
    chex.assert_rank([log_alpha, log_prob, target_entropy], 0)
    return -log_alpha * jax.lax.stop_gradient(log_prob + target_entropy)


def clipped_surrogate_loss(
    log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, clip_range: jax.Array
) -> jax.Array:
    """Return `-min(r A, clip(r, 1 - c, 1 + c) A)` with the ratio `r = pi(a | s) / pi_old(a | s)`.

    Proximal policy optimization; Schulman et al. (2017), https://arxiv.org/abs/1707.06347, equation 7.
    """
    chex.assert_rank([log_prob, old_log_prob, advantage, clip_range], 0)
    old_log_prob, advantage = jax.lax.stop_gradient((old_log_prob, advantage))
    ratio = jnp.exp(log_prob - old_log_prob)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip_range, 1 + clip_range) * advantage)
