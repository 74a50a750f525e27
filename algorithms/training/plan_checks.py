"""Checks that a plan and a buffer fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_buffers import ReplayBuffer
from jaxrl_buffers.rollouts import Rollout

if TYPE_CHECKING:
    from algorithms.training.plan import Plan


def check_rollout(plan: Plan, rollout: Rollout, by_columns: bool) -> None:
    """Refuse a rollout that is not as long as an iteration, and a number of updates that is not whole epochs."""
    if plan.offline_updates:
        raise ValueError(
            f"Plan(offline_updates={plan.offline_updates}): on-policy agents do not learn from what others "
            "did; set it to 0."
        )
    steps = rollout.length * rollout.num_envs
    if plan.update_every != steps:
        raise ValueError(
            f"Plan(update_every={plan.update_every}): the rollout takes {steps} steps, {rollout.length} in each of "
            f"{rollout.num_envs} environments; both must be the same."
        )
    if plan.start_steps:
        raise ValueError(
            f"Plan(start_steps={plan.start_steps}): on-policy agents do not learn from random steps; set it to 0."
        )
    if plan.num_updates % plan.num_minibatches:
        raise ValueError(
            f"Plan(num_updates={plan.num_updates}): {plan.update_every} steps are {plan.num_minibatches} "
            f"minibatches of {plan.mini_batch_size}, and `num_updates` must be a multiple of that."
        )
    if by_columns and plan.num_minibatches > plan.num_envs:
        raise ValueError(
            f"Plan(mini_batch_size={plan.mini_batch_size}): with a memory minibatches are made of whole "
            f"environments, and {plan.num_envs} of them cannot give {plan.num_minibatches}; take at least "
            f"{rollout.length} steps, or more environments."
        )


def check_replay(plan: Plan, buffer: ReplayBuffer, num_samples: int) -> None:
    """Refuse a buffer from which the first update cannot draw `num_samples` samples."""
    if plan.update_every > buffer.length * plan.num_envs:
        raise ValueError(
            f"Plan(update_every={plan.update_every}): the buffer holds only {buffer.length * plan.num_envs} steps; "
            "collect less at a time or raise its length."
        )
    rows = min(plan.start_steps // plan.num_envs, buffer.length) - buffer.view.lookahead - buffer.lookback
    starts = max(rows // buffer.view.stride, 0) * plan.num_envs
    if starts < num_samples:
        raise ValueError(
            f"Plan(mini_batch_size={plan.mini_batch_size}): only {starts} samples can be drawn after "
            f"{plan.start_steps} first steps; raise `start_steps` or the buffer's length, or take smaller batches."
        )
