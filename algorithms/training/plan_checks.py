"""Checks that a plan and a buffer fit together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxrl_buffers import Combined, Mixture, ReplayBuffer
from jaxrl_buffers.rollouts import Rollout
from jaxrl_buffers.samplers._base import Wrapping
from jaxrl_buffers.samplers.combined import split_batch

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


def check_shares(plan: Plan, buffer: ReplayBuffer | Mixture | Rollout) -> None:
    """Refuse a batch that several buffers or samplers share, if some of them would get no sample on a device."""
    wanted = [count > 0 for count in _shares(buffer, plan.mini_batch_size)]

    def has_all(batch_size: int) -> bool:
        found = [count > 0 for count in _shares(buffer, batch_size)]
        return all(there >= needed for there, needed in zip(found, wanted, strict=True))

    if not has_all(plan.batch_of_device):
        least = next(filter(has_all, itertools.count(plan.batch_of_device)))
        raise ValueError(
            f"Plan(mini_batch_size={plan.mini_batch_size}): on each of {plan.devices} devices, a batch of "
            f"{plan.batch_of_device} has no sample for some of the buffers or samplers that share it; raise it to "
            f"{least * plan.devices}."
        )


def _shares(buffer: ReplayBuffer | Mixture | Rollout, batch_size: int) -> Iterator[int]:
    """Yield how many samples of a batch each buffer of a mixture gives, and each sampler of a `Combined`."""
    if isinstance(buffer, Mixture):
        for part, count in zip(buffer.buffers, buffer.counts(batch_size), strict=True):
            yield count
            yield from _shares(part, count)
    elif isinstance(buffer, ReplayBuffer):
        sampler = buffer.sampler
        while isinstance(sampler, Wrapping) and not isinstance(sampler, Combined):
            sampler = sampler.sampler
        if isinstance(sampler, Combined):
            yield from split_batch(batch_size, sampler.ratios)
