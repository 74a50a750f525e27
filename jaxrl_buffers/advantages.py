"""Returns and advantages of on-policy rollouts, by one scan backwards in time.

Axis 0 is time; all other axes, such as environments, are independent. Time is divided into paths: a path ends where
`is_end` is True, and at the last row. The value of what follows the end of a path is `last_value`. It is zero if the
task is over, and the value of the final observation if the path was only cut off.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_buffers import _mesh as mesh
from jaxrl_buffers._mesh import Axis
from jaxrl_buffers.types import Scalar


def discount_cumsum(values: jax.Array, discount: Scalar) -> jax.Array:
    """Return `y_t = x_t + discount_t * y_{t+1}`, where `y` is zero after the last row.

    A discount of zero hides all that follows, NaN and infinity included.

    Args:
        values: `float32[K, ...]`.
        discount: one number, or `float32[K, ...]`.

    Example:
        >>> print(discount_cumsum(jnp.array([1.0, 2.0, 3.0]), 0.5))
        [2.75 3.5  3.  ]
    """
    values = jnp.asarray(values, jnp.float32)
    discount = jnp.broadcast_to(jnp.asarray(discount, jnp.float32), values.shape)

    def step(later: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        value, discount = inputs
        # A product alone would let a NaN of the next path through, because zero times NaN is NaN.
        total = value + jnp.where(discount == 0, 0, discount * later)
        return total, total

    last = mesh.vary_like(jnp.zeros_like(values[0]), (values, discount))
    return lax.scan(step, last, (values, discount), reverse=True)[1]


def generalized_advantages(
    reward: jax.Array,
    value: jax.Array,
    is_end: jax.Array,
    last_value: jax.Array,
    gamma: Scalar,
    gae_lambda: Scalar,
) -> jax.Array:
    """Return the advantages `float32[K, ...]` of GAE(lambda).

        delta_t = r_t + gamma V_{t+1} - V_t,   A_t = delta_t + gamma lambda A_{t+1}

    At the end of a path `V_{t+1}` is `last_value` and `A_{t+1}` is zero. Two cases show what `lambda` trades off:

        lambda = 0    A_t = r_t + gamma V_{t+1} - V_t            little variance, biased by errors of V
        lambda = 1    A_t = rewards_to_go_t - V_t                no such bias, more variance

    Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation,
    https://arxiv.org/abs/1506.02438

    Args:
        reward: `float32[K, ...]`.
        value: `float32[K, ...]`, the critic's value of the observation of each row.
        is_end: `bool[K, ...]`, whether a path ends with the row.
        last_value: `float32[K, ...]`, read only where a path ends.
        gamma: the discount of one step.
        gae_lambda: how far to trust rewards over the critic: 0 uses one reward and then the critic, 1 all rewards.

    Example:
        >>> ends, last = jnp.array([False, False, True]), jnp.array([0.0, 0.0, 2.0])
        >>> reward, value = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.0, 0.5, 1.0])
        >>> print(generalized_advantages(reward, value, ends, last, gamma=0.5, gae_lambda=0.5))
        [1.9375 2.75   3.    ]
    """
    is_end = is_end.at[-1].set(True)
    gamma, gae_lambda = jnp.asarray(gamma, jnp.float32), jnp.asarray(gae_lambda, jnp.float32)
    next_value = jnp.where(is_end, last_value, jnp.roll(value, -1, axis=0))
    return discount_cumsum(reward + gamma * next_value - value, jnp.where(is_end, 0, gamma * gae_lambda))


def rewards_to_go(reward: jax.Array, is_end: jax.Array, last_value: jax.Array, gamma: Scalar) -> jax.Array:
    """Return the discounted sum `float32[K, ...]` of the rewards from each row to the end of its path.

        G_t = r_t + gamma G_{t+1}

    At the end of a path `G_{t+1}` is `last_value`.

    Args:
        reward: `float32[K, ...]`.
        is_end: `bool[K, ...]`, whether a path ends with the row.
        last_value: `float32[K, ...]`, read only where a path ends.
        gamma: the discount of one step.

    Example:
        >>> ends, last = jnp.array([False, False, True]), jnp.array([0.0, 0.0, 2.0])
        >>> print(rewards_to_go(jnp.array([1.0, 2.0, 3.0]), ends, last, gamma=0.5))
        [3. 4. 4.]
    """
    is_end = is_end.at[-1].set(True)
    gamma = jnp.asarray(gamma, jnp.float32)
    return discount_cumsum(reward + jnp.where(is_end, gamma * last_value, 0), jnp.where(is_end, 0, gamma))


def normalize(values: jax.Array, mask: jax.Array, epsilon: Scalar, axis: Axis = None) -> jax.Array:
    """Return `(x - mean) / (std + epsilon)` where the mask is True, and zero elsewhere.

    The mean and the standard deviation are taken over the entries that are finite and have mask True. An entry with
    mask True that is not finite stays not finite.

    Args:
        values: `float32[...]`, such as advantages.
        mask: `bool[...]`, the entries that count.
        epsilon: added to the standard deviation, so that equal values are not divided by zero.
        axis: inside of `shard_map`, an axis of the mesh: the mean and the standard deviation are those of the entries
            of all devices along it.

    Example:
        >>> print(normalize(jnp.array([1.0, 3.0, 100.0]), jnp.array([True, True, False]), epsilon=0.0))
        [-1.  1.  0.]
    """
    counts = mask & jnp.isfinite(values)
    count, sum_of_values = mesh.total((jnp.sum(counts, dtype=jnp.float32), jnp.sum(jnp.where(counts, values, 0))), axis)
    count = jnp.maximum(count, 1)
    centered = jnp.where(mask, values - sum_of_values / count, 0)
    deviation = jnp.sqrt(mesh.total(jnp.sum(jnp.where(counts, centered, 0) ** 2), axis) / count)
    return centered / (deviation + jnp.asarray(epsilon, jnp.float32))
