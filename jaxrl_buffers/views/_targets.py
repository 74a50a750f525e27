"""The sums of every n-step target, for single transitions and for sequences."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def sum_steps(
    rewards: list[jax.Array], discounts: list[jax.Array], follows: list[jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sum up the rewards of targets that span up to `n` steps.

        reward   = sum_{i < m} (prod_{j < i} d_j) r_i
        discount = prod_{i < m} d_i

    `m <= n` is the number of steps that a target uses. A target stops before the first step that does not continue it.

    Args:
        rewards: `n` arrays of one shape; the targets' axes come first.
        discounts: `n` arrays `float32` with the targets' axes: `gamma (1 - terminated)` of each step.
        follows: `n - 1` arrays `bool` with the targets' axes: whether step `i + 1` continues the target of step `i`.

    Returns:
        `reward`, `discount` and `m`, each with the targets' axes.

    Example:
        >>> rewards = [jnp.array([1.0, 1.0]), jnp.array([4.0, 4.0])]
        >>> discounts = [jnp.array([0.5, 0.5])] * 2
        >>> reward, discount, num_steps = sum_steps(rewards, discounts, [jnp.array([True, False])])
        >>> print(reward, discount, num_steps)
        [3. 1.] [0.25 0.5 ] [2 1]
    """
    # The sum is made step by step, because compilers turn that into one kernel.
    total, product = rewards[0], discounts[0]
    is_used, num_steps = jnp.ones(product.shape, bool), jnp.ones(product.shape, jnp.int32)
    for reward, discount, is_next in zip(rewards[1:], discounts[1:], follows, strict=True):
        is_used &= is_next
        # An unused reward may be NaN. A factor of zero would not remove it, because zero times NaN is NaN.
        total += jnp.where(_beside(is_used, reward), reward * _beside(product, reward).astype(reward.dtype), 0)
        product = jnp.where(is_used, product * discount, product)
        num_steps += is_used
    return total, product, num_steps


def as_float(reward: jax.Array) -> jax.Array:
    """Return rewards as float32, or as they are if they are more precise."""
    return reward.astype(jnp.promote_types(reward.dtype, jnp.float32))


def _beside(values: jax.Array, reward: jax.Array) -> jax.Array:
    """Append axes of size 1 to values, so that they broadcast against rewards that are vectors."""
    return values.reshape(*values.shape, *[1] * (reward.ndim - values.ndim))
