"""The buffers that people ask for by name, each nothing but a product of storage, sampler and view."""

from __future__ import annotations

from collections.abc import Callable

from jaxrl_buffers.replay import ReplayBuffer
from jaxrl_buffers.samplers import Prioritized, Uniform
from jaxrl_buffers.types import PyTree, Sampler, Scalar
from jaxrl_buffers.views import Hindsight, NStep, Sequence


def uniform(
    length: int, num_envs: int = 1, *, gamma: Scalar = 0.99, method: str = "independent", lockstep: bool = True
) -> ReplayBuffer:
    """Return the classic replay buffer: uniform draws of single transitions.

    Example:
        >>> buffer = uniform(1_000, num_envs=16)
    """
    return ReplayBuffer(Uniform(method=method), NStep(gamma=gamma), length=length, num_envs=num_envs, lockstep=lockstep)


def n_step(
    length: int,
    num_envs: int = 1,
    *,
    n: int,
    gamma: Scalar = 0.99,
    sampler: Sampler = Uniform(),
    lockstep: bool = True,
) -> ReplayBuffer:
    """Return a buffer of n-step transitions.

    Example:
        >>> buffer = n_step(1_000, num_envs=16, n=3)
    """
    return ReplayBuffer(sampler, NStep(n=n, gamma=gamma), length=length, num_envs=num_envs, lockstep=lockstep)


def prioritized(
    length: int,
    num_envs: int = 1,
    *,
    alpha: Scalar = 0.6,
    beta: Scalar = 0.4,
    n: int = 1,
    gamma: Scalar = 0.99,
    lockstep: bool = True,
) -> ReplayBuffer:
    """Return prioritized replay (PER) of single or n-step transitions.

    Example:
        >>> buffer = prioritized(1_000, num_envs=16, n=3)
    """
    return n_step(length, num_envs, n=n, gamma=gamma, sampler=Prioritized(alpha=alpha, beta=beta), lockstep=lockstep)


def hindsight(
    length: int,
    num_envs: int = 1,
    *,
    achieved: str | Callable[[PyTree], PyTree],
    relabel: Callable[[PyTree, PyTree], PyTree],
    strategy: str = "future",
    ratio: Scalar = 0.8,
    n: int = 1,
    gamma: Scalar = 0.99,
    sampler: Sampler = Uniform(),
    lockstep: bool = True,
) -> ReplayBuffer:
    """Return hindsight experience replay (HER) of single or n-step transitions; see `Hindsight`.

    Example:
        >>> relabel = lambda transition, goal: transition._replace(reward=-abs(transition.next_obs - goal))
        >>> buffer = hindsight(1_000, num_envs=16, achieved="next_obs", relabel=relabel)
    """
    view = Hindsight(NStep(n=n, gamma=gamma), achieved=achieved, relabel=relabel, strategy=strategy, ratio=ratio)
    return ReplayBuffer(sampler, view, length=length, num_envs=num_envs, lockstep=lockstep)


def sequences(
    length: int,
    num_envs: int = 1,
    *,
    sequence_length: int,
    burn_in: int = 0,
    period: int = 1,
    gamma: Scalar = 0.99,
    sampler: Sampler = Uniform(),
    lockstep: bool = True,
) -> ReplayBuffer:
    """Return a buffer of sequences, for recurrent agents.

    Example:
        >>> buffer = sequences(1_000, num_envs=16, sequence_length=20, burn_in=10, period=10)
    """
    view = Sequence(sequence_length, burn_in=burn_in, period=period, gamma=gamma)
    return ReplayBuffer(sampler, view, length=length, num_envs=num_envs, lockstep=lockstep)
