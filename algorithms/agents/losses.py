"""The mathematics of the algorithms, for one unbatched sample; callers `vmap`.

Three things hold for all functions here:

* `discount` is `gamma**k`, where `k` is the number of steps in the target. It is 0 if the task ended within these
  steps. So no function needs to know where episodes end.
* No gradient passes through targets.
* Ranks and types of arguments are checked when a program is traced, so that nothing broadcasts by mistake.

Shapes: `A` is the number of discrete actions, or of components of a continuous action. `C` is the number of critics.
Arguments without a shape are scalars.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def td_target(reward: jax.Array, discount: jax.Array, next_value: jax.Array) -> jax.Array:
    """Return the target of a value, `y = r + discount * V(s')`.

    Args:
        reward: the reward of a step, or the discounted sum over several steps.
        discount: the factor on `V(s')`.
        next_value: `V(s')`, the value of the observation after these steps.

    Example:
        >>> print(td_target(jnp.float32(1), jnp.float32(0.5), jnp.float32(4)))
        3.0
    """
    chex.assert_rank([reward, discount, next_value], 0)
    chex.assert_type([reward, discount, next_value], float)
    return jax.lax.stop_gradient(reward + discount * next_value)


def double_q_value(q_online: jax.Array, q_target: jax.Array) -> jax.Array:
    """Return `V(s') = Q_target(s', argmax_a Q_online(s', a))`.

    Double Q-learning: one network chooses the action, and the other network values it. A single network would choose
    actions that it overestimates. Van Hasselt et al. (2016), https://arxiv.org/abs/1509.06461.

    Args:
        q_online: `[A]`, the values of all actions by the trained network.
        q_target: `[A]`, the values of all actions by the target network.

    Example:
        >>> print(double_q_value(jnp.array([1.0, 2.0]), jnp.array([30.0, 10.0])))
        10.0
    """
    chex.assert_rank([q_online, q_target], 1)
    chex.assert_type([q_online, q_target], float)
    return q_target[jnp.argmax(q_online)]


def smoothed_action(action: jax.Array, noise: jax.Array, limit: jax.Array) -> jax.Array:
    """Return `clip(a + clip(noise, -limit, limit), -1, 1)`.

    Target policy smoothing: similar actions get similar values. Fujimoto et al. (2018),
    https://arxiv.org/abs/1802.09477, section 5.3.

    Args:
        action: `[A]`, the target policy's action in `[-1, 1]`.
        noise: `[A]`, one random number for each component.
        limit: the largest magnitude of the noise that is added to a component.

    Example:
        >>> print(smoothed_action(jnp.array([0.0, 0.9]), jnp.array([-2.0, 0.3]), jnp.float32(0.5)))
        [-0.5  1. ]
    """
    chex.assert_rank([action, noise, limit], [1, 1, 0])
    chex.assert_type([action, noise, limit], float)
    chex.assert_equal_shape([action, noise])
    return jnp.clip(action + jnp.clip(noise, -limit, limit), -1, 1)


def exact_expectations(q_values: jax.Array, log_probs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return `E_a[min_j Q_j(s, a)]` and `E_a[log pi(a | s)]`, computed as sums over all discrete actions.

    Soft actor-critic with discrete actions: Christodoulou (2019), https://arxiv.org/abs/1910.07207, equations 10 to 12.

    Args:
        q_values: `[C, A]`, the values of all actions by each critic.
        log_probs: `[A]`, the logarithms of the policy's probabilities. The probabilities sum to 1.

    Example:
        >>> value, log_prob = exact_expectations(jnp.array([[1.0, 4.0], [3.0, 2.0]]), jnp.log(jnp.array([0.5, 0.5])))
        >>> print(value, -log_prob)  # the latter is the entropy, log 2
        1.5 0.6931472
    """
    chex.assert_rank([q_values, log_probs], [2, 1])
    chex.assert_type([q_values, log_probs], float)
    probs = jnp.exp(log_probs)
    return jnp.sum(probs * jnp.min(q_values, axis=0)), jnp.sum(probs * log_probs)


def soft_value(value: jax.Array, log_prob: jax.Array, alpha: jax.Array) -> jax.Array:
    """Return `V(s) = min_j Q_j(s, a) - alpha * log pi(a | s)`, the value of a state plus an entropy bonus.

    Soft actor-critic: Haarnoja et al. (2018), https://arxiv.org/abs/1812.05905, equations 3 and 5.

    Args:
        value: `min_j Q_j(s, a)` of an action drawn from the policy, or its expectation over actions.
        log_prob: `log pi(a | s)` of the same action, or its expectation over actions.
        alpha: the temperature.

    Example:
        >>> print(soft_value(jnp.float32(1), jnp.float32(-2), jnp.float32(0.5)))
        2.0
    """
    chex.assert_rank([value, log_prob, alpha], 0)
    chex.assert_type([value, log_prob, alpha], float)
    return value - alpha * log_prob


def soft_policy_loss(value: jax.Array, log_prob: jax.Array, alpha: jax.Array) -> jax.Array:
    """Return `alpha * log pi(a | s) - min_j Q_j(s, a)`, the loss of the policy.

    Soft actor-critic: Haarnoja et al. (2018), https://arxiv.org/abs/1812.05905, equation 9. No gradient reaches the
    temperature.

    Args:
        value: as in `soft_value`. Gradients reach the policy through the action.
        log_prob: as in `soft_value`.
        alpha: the temperature.

    Example:
        >>> print(soft_policy_loss(jnp.float32(1), jnp.float32(-2), jnp.float32(0.5)))
        -2.0
    """
    chex.assert_rank([value, log_prob, alpha], 0)
    chex.assert_type([value, log_prob, alpha], float)
    return jax.lax.stop_gradient(alpha) * log_prob - value


def temperature_loss(log_alpha: jax.Array, log_prob: jax.Array, target_entropy: jax.Array) -> jax.Array:
    """Return `-log_alpha * (log pi(a | s) + H)`. A gradient step raises `alpha` while the entropy is below `H`.

    Soft actor-critic: Haarnoja et al. (2018), https://arxiv.org/abs/1812.05905, equation 18, with `log_alpha` instead
    of `alpha`, as in the authors' code.

    Args:
        log_alpha: the logarithm of the temperature.
        log_prob: as in `soft_value`. No gradient reaches it.
        target_entropy: `H`, the wanted entropy of the policy.

    Example:
        >>> print(jax.grad(temperature_loss)(jnp.float32(0), jnp.float32(1), jnp.float32(2)))  # a step raises log_alpha
        -3.0
    """
    chex.assert_rank([log_alpha, log_prob, target_entropy], 0)
    chex.assert_type([log_alpha, log_prob, target_entropy], float)
    return -log_alpha * jax.lax.stop_gradient(log_prob + target_entropy)


def clipped_surrogate_loss(
    log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, clip_range: jax.Array
) -> jax.Array:
    """Return `-min(r A, clip(r, 1 - c, 1 + c) A)` with the ratio `r = pi(a | s) / pi_old(a | s)`.

    Proximal policy optimization: Schulman et al. (2017), https://arxiv.org/abs/1707.06347, equation 7. The
    gradient becomes zero when the ratio has moved by more than `c` in the direction that the advantage favors.

    Args:
        log_prob: `log pi(a | s)` of the policy that is trained.
        old_log_prob: `log pi_old(a | s)` of the policy that acted.
        advantage: `A`, how much better the action was than the average action.
        clip_range: `c`.

    Example:
        >>> loss = clipped_surrogate_loss(jnp.log(0.9), jnp.log(0.5), jnp.float32(1), jnp.float32(0.25))
        >>> print(loss)
        -1.25
    """
    chex.assert_rank([log_prob, old_log_prob, advantage, clip_range], 0)
    chex.assert_type([log_prob, old_log_prob, advantage, clip_range], float)
    old_log_prob, advantage = jax.lax.stop_gradient((old_log_prob, advantage))
    ratio = jnp.exp(log_prob - old_log_prob)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip_range, 1 + clip_range) * advantage)
