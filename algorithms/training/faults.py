"""Faults: numbers that are not finite, and episodes that are terminated and truncated in the same step.

The compiled program counts faults. It checks all rows when they are collected, including those before the first update.
It checks losses and gradients in every update. Only the counts are kept. The host reads them between calls of the
program; see `algorithms.runs.watch`.
"""

from __future__ import annotations

import functools
from typing import TypeVar

import jax
import jax.numpy as jnp
import optax

from algorithms.agents import optimization
from algorithms.types import Metrics
from jaxrl_buffers import _mesh as mesh
from jaxrl_buffers._mesh import Axis
from jaxrl_buffers.types import PyTree, Transition

OF_ROWS = ("nonfinite_rewards", "nonfinite_observations", "truncated_episodes", "ended_both_ways")
OF_UPDATES = ("nonfinite_losses", "nonfinite_gradients", "skipped_updates")
NAMES = OF_ROWS + OF_UPDATES
POLICIES = ("warn", "skip", "stop")
State = TypeVar("State")


def of_rows(chunk: Transition) -> tuple[jax.Array, ...]:
    """Return which rows of a chunk `[K, N, ...]` have a fault: `bool[K, N]` for each name in `OF_ROWS`.

    * `nonfinite_rewards`: the reward is not finite.
    * `nonfinite_observations`: some number in `obs` or `next_obs` is not finite.
    * `truncated_episodes`: the row is truncated. This is no fault. It is counted for comparison with `ended_both_ways`.
    * `ended_both_ways`: the row is both truncated and terminated.
    """
    bad_reward = ~jnp.isfinite(chunk.reward)
    bad_obs = jnp.zeros_like(bad_reward)
    for leaf in jax.tree.leaves((chunk.obs, chunk.next_obs)):
        if _can_be_infinite(leaf):
            bad_obs |= jnp.any(~jnp.isfinite(leaf), axis=tuple(range(2, leaf.ndim)))
    return bad_reward, bad_obs, chunk.truncated, chunk.terminated & chunk.truncated


def of_update(grads: PyTree, metrics: Metrics) -> Metrics:
    """Return the faults of one update.

    `nonfinite_losses` is the number of losses that are not finite. `nonfinite_gradients` is 1 if the norm of some
    group's gradients is not finite in float32, else 0.
    """
    lost = [~jnp.isfinite(value) for name, value in metrics.items() if "loss" in name.split("_")]
    # Agents also compute one norm for each group, so the compiler can compute each norm once.
    groups = jax.tree.leaves(grads, is_leaf=lambda node: node is not grads)
    norms = [jnp.asarray(optax.tree.norm(group), jnp.float32) for group in groups]
    is_bad = functools.reduce(jnp.logical_or, [~jnp.isfinite(norm) for norm in norms], jnp.asarray(False))
    return {
        "nonfinite_losses": jnp.asarray(sum(lost), jnp.float32),
        "nonfinite_gradients": is_bad.astype(jnp.float32),
    }


def skip(before: State, after: State, counts: Metrics) -> tuple[State, Metrics]:
    """Undo an update if its gradients are not finite, or if it makes numbers of the agent's state not finite.

    Args:
        before: the agent's state before the update.
        after: the agent's state after the update.
        counts: the result of `of_update`.

    Returns:
        The state `after`, or exactly `before` if the update is undone; and the counts with `skipped_updates` added.
    """
    is_at_fault = (counts["nonfinite_gradients"] > 0) | (num_nonfinite(after) > num_nonfinite(before))
    return optimization.where(is_at_fault, before, after), counts | {"skipped_updates": is_at_fault.astype(jnp.float32)}


def skip_observing(before: State, after: State, chunk: Transition, axis: Axis = None) -> State:
    """Return the state `after` the agent observed a chunk, or `before` if an observation in the chunk is not finite.

    With an `axis` of a mesh, the chunks of all devices along it count.
    """
    num_bad = mesh.total(jnp.sum(of_rows(chunk)[1], dtype=jnp.float32), axis)
    return optimization.where(num_bad > 0, before, after)


def num_nonfinite(tree: PyTree) -> jax.Array:
    """Return how many numbers of a pytree are not finite, `int32[]`."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if _can_be_infinite(leaf)]
    return sum([jnp.sum(~jnp.isfinite(leaf), dtype=jnp.int32) for leaf in leaves], start=jnp.zeros((), jnp.int32))


def _can_be_infinite(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)
