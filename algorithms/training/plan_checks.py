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
            f"Plan(offline_updates={plan.offline_updates}): on-policy agents learn only from their own "
            "new steps; set it to 0."
        )
    steps = rollout.length * rollout.num_envs
    if plan.update_every != steps:
        raise ValueError(
            f"Plan(update_every={plan.update_every}): the rollout takes {steps} steps, {rollout.length} in each of "
            f"{rollout.num_envs} environments; set `update_every` to {steps}, or change the rollout."
        )
    if plan.start_steps:
        raise ValueError(
            f"Plan(start_steps={plan.start_steps}): on-policy agents do not learn from random steps; set it to 0."
        )
    if plan.num_updates % plan.num_minibatches:
        raise ValueError(
            f"Plan(num_updates={plan.num_updates}): {plan.update_every} steps are {plan.num_minibatches} "
            f"minibatches of {plan.mini_batch_size}, and `num_updates` must be a multiple of {plan.num_minibatches}."
        )
    if by_columns and plan.num_minibatches > plan.envs_of_device:
        raise ValueError(
            f"Plan(mini_batch_size={plan.mini_batch_size}): with a memory, a minibatch holds whole environments, and "
            f"{plan.envs_of_device} environments cannot fill {plan.num_minibatches} minibatches; raise it to at least "
            f"{rollout.length * plan.devices}, or use more environments."
        )


def check_replay(plan: Plan, buffer: ReplayBuffer, num_samples: int) -> None:
    """Refuse a buffer from which the first update cannot draw `num_samples` samples."""
    if plan.update_every > buffer.length * plan.num_envs:
        raise ValueError(
            f"Plan(update_every={plan.update_every}): the buffer holds only {buffer.length * plan.num_envs} steps; "
            "lower `update_every`, or raise the buffer's length."
        )
    rows = min(plan.start_steps // plan.num_envs, buffer.length) - buffer.view.lookahead - buffer.lookback
    starts = max(rows // buffer.view.stride, 0) * plan.num_envs
    if starts < num_samples:
        raise ValueError(
            f"Plan(mini_batch_size={plan.mini_batch_size}): only {starts} samples can be drawn after "
            f"{plan.start_steps} first steps; raise `start_steps` or the buffer's length, or use smaller batches."
        )
