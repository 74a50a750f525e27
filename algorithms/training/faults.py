"""Faults, counted in the compiled program: numbers that are not finite, and episodes that end in two ways at once.

Rows are checked as they are collected, also the first ones. Losses and gradients are checked at every update. Only
counts are kept. The host looks at them between chunks; see `algorithms.runs.watch`.
"""

from __future__ import annotations

import functools
from typing import TypeVar

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
State = TypeVar("State")


def of_rows(chunk: Transition) -> tuple[jax.Array, ...]:
    """Return which rows of a chunk `[K, N, ...]` have a fault: `bool[K, N]` for each name in `OF_ROWS`.

    These are rows whose reward is not finite; rows with a number in `obs` or `next_obs` that is not finite; rows that
    are truncated, which is no fault but is compared with the next; and rows that are truncated and terminated.
    """
    bad_reward = ~jnp.isfinite(chunk.reward)
    bad_obs = jnp.zeros_like(bad_reward)
    for leaf in jax.tree.leaves((chunk.obs, chunk.next_obs)):
        if _can_be_infinite(leaf):
            bad_obs |= jnp.any(~jnp.isfinite(leaf), axis=tuple(range(2, leaf.ndim)))
    return bad_reward, bad_obs, chunk.truncated, chunk.terminated & chunk.truncated


def of_update(grads: PyTree, metrics: Metrics) -> Metrics:
    """Count the losses that are not finite; gradients count as 1 if their norm is not finite in float32."""
    lost = [~jnp.isfinite(value) for name, value in metrics.items() if "loss" in name.split("_")]
    # Group by group, as agents report and clip norms, so that each is computed once.
    groups = jax.tree.leaves(grads, is_leaf=lambda node: node is not grads)
    norms = [jnp.asarray(optax.tree.norm(group), jnp.float32) for group in groups]
    is_bad = functools.reduce(jnp.logical_or, [~jnp.isfinite(norm) for norm in norms], jnp.asarray(False))
    return {
        "nonfinite_losses": jnp.asarray(sum(lost), jnp.float32),
        "nonfinite_gradients": is_bad.astype(jnp.float32),
    }


def skip(before: State, after: State, counts: Metrics) -> tuple[State, Metrics]:
    """Undo an update whose gradients are not finite, or that makes numbers of the agent's state not finite.

    Args:
        before: the agent's state before the update.
        after: the same after it.
        counts: what `of_update` returned.

    Returns:
        The state `after`, or exactly `before`; and the counts with `skipped_updates`.
    """
    is_at_fault = (counts["nonfinite_gradients"] > 0) | (num_nonfinite(after) > num_nonfinite(before))
    return optimization.where(is_at_fault, before, after), counts | {"skipped_updates": is_at_fault.astype(jnp.float32)}


def skip_observing(before: State, after: State, chunk: Transition) -> State:
    """Return an agent's state `after` it observed a chunk, or `before` if an observation in it is not finite."""
    return optimization.where(jnp.any(of_rows(chunk)[1]), before, after)


def num_nonfinite(tree: PyTree) -> jax.Array:
    """Return how many numbers of a pytree are not finite, `int32[]`."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if _can_be_infinite(leaf)]
    return sum([jnp.sum(~jnp.isfinite(leaf), dtype=jnp.int32) for leaf in leaves], start=jnp.zeros((), jnp.int32))


def _can_be_infinite(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)
