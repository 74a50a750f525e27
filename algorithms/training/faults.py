"""What should not be, counted in the compiled program: numbers that are not finite, and episodes with two ends.

Rows are counted as they are collected, also in the warm-up; losses and gradients at every update. Only small arrays are
summed up for it. The host looks at the sums between chunks; see `watch`.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from algorithms.agents import optimization
from algorithms.types import Metrics
from jaxrl_buffers.types import PyTree, Transition

OF_ROWS = ("nonfinite_rewards", "nonfinite_observations", "truncated_episodes", "ended_both_ways")
OF_UPDATES = ("nonfinite_losses", "nonfinite_gradients", "skipped_updates")
NAMES = OF_ROWS + OF_UPDATES
POLICIES = ("warn", "skip", "stop")


def of_rows(chunk: Transition) -> tuple[jax.Array, ...]:
    """Find faults in a chunk `[K, N, ...]`, in the order of `OF_ROWS`: four times `bool[K, N]`.

    Rows whose reward is not finite; rows with such a number in `obs` or `next_obs`; rows that are `truncated`; and rows
    that are `terminated` as well.
    """
    bad_reward = ~jnp.isfinite(chunk.reward)
    bad_obs = jnp.zeros_like(bad_reward)
    for leaf in jax.tree.leaves((chunk.obs, chunk.next_obs)):
        if _can_be_infinite(leaf):
            bad_obs |= jnp.any(~jnp.isfinite(leaf), axis=tuple(range(2, leaf.ndim)))
    return bad_reward, bad_obs, chunk.truncated, chunk.terminated & chunk.truncated


def of_update(grads: PyTree, metrics: Metrics) -> Metrics:
    """Count losses that are not finite, and gradients, as 1 if their norm is not: then a float32 cannot tell it."""
    lost = [~jnp.isfinite(value) for name, value in metrics.items() if "loss" in name.split("_")]
    # Group by group, as agents report and clip norms, so that each is computed once.
    groups = jax.tree.leaves(grads, is_leaf=lambda node: node is not grads)
    norms = [jnp.asarray(optax.tree.norm(group), jnp.float32) for group in groups]
    is_bad = functools.reduce(jnp.logical_or, [~jnp.isfinite(norm) for norm in norms], jnp.asarray(False))
    return {
        "nonfinite_losses": jnp.asarray(sum(lost), jnp.float32),
        "nonfinite_gradients": is_bad.astype(jnp.float32),
    }


def skip(before: Any, after: Any, counts: Metrics) -> tuple[Any, Metrics]:
    """Return an agent's state after an update, or the one before it, exactly, if the update was at fault.

    It was if its gradients were not finite, or if it would leave more numbers in the state that are not.

    Returns:
        The state, and the counts with `skipped_updates`.
    """
    is_at_fault = (counts["nonfinite_gradients"] > 0) | (num_nonfinite(after) > num_nonfinite(before))
    return optimization.where(is_at_fault, before, after), counts | {"skipped_updates": is_at_fault.astype(jnp.float32)}


def skip_observing(before: Any, after: Any, chunk: Transition) -> Any:
    """Return an agent's state after it took note of a chunk, or the one before if an observation was not finite."""
    return optimization.where(jnp.any(of_rows(chunk)[1]), before, after)


def num_nonfinite(tree: PyTree) -> jax.Array:
    """Count the numbers that are not finite: `int32[]`."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if _can_be_infinite(leaf)]
    return sum([jnp.sum(~jnp.isfinite(leaf), dtype=jnp.int32) for leaf in leaves], start=jnp.zeros((), jnp.int32))


def _can_be_infinite(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)
