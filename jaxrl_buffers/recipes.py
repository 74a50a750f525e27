"""Well-known buffers by name. Each one is just a combination of a storage, a sampler and a view.

A name in lower case makes a buffer: `jb.prioritized(1_000)`. A class with a similar name, such as `jb.Prioritized()`,
is a sampler or a view for any buffer. All functions but `rollout` also take the options that `StorageOptions` lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypedDict, Unpack

from jaxrl_buffers.replay import ReplayBuffer
from jaxrl_buffers.rollouts import Rollout
from jaxrl_buffers.samplers import Combined, LastN, Prioritized, Recent, Uniform
from jaxrl_buffers.storage import Frames
from jaxrl_buffers.storage.returns import EpisodicReturns
from jaxrl_buffers.types import PyTree, Sampler, Scalar
from jaxrl_buffers.views import Hindsight, NStep, Sequence


class StorageOptions(TypedDict, total=False):
    """How a buffer stores its rows. These are parameters of `ReplayBuffer`.

    Example:
        >>> from jaxrl_buffers import EpisodicReturns, Frames
        >>> options = StorageOptions(frames=Frames(stack=4), returns=EpisodicReturns())
        >>> buffer = prioritized(1_000, num_envs=16, **options)
    """

    lockstep: bool  # whether all environments are written together, through one cursor; True by default
    returns: EpisodicReturns | None  # how to record episodic returns
    frames: Frames | None  # how to store each frame of an observation once
    keep_episodes: bool  # whether to keep the episode index even if no other part needs it
    platform: Literal["cpu", "gpu", "tpu"] | None  # where the buffer will be used; by default the platform of JAX


class RolloutOptions(TypedDict, total=False):
    """What a rollout computes. These are parameters of `Rollout`."""

    gamma: Scalar
    gae_lambda: Scalar
    epsilon: Scalar
    normalize: bool
    returns: Literal["lambda", "rewards_to_go"]


def uniform(
    length: int,
    num_envs: int = 1,
    *,
    gamma: Scalar = 0.99,
    method: str = "independent",
    **storage: Unpack[StorageOptions],
) -> ReplayBuffer:
    """Return the classic replay buffer: uniform draws of single transitions.

    A sample has leaves `[B, ...]`, for the target `reward + discount * V(next_obs)`. `method` is that of `Uniform`.

    Example:
        >>> buffer = uniform(1_000, num_envs=16)
    """
    return ReplayBuffer(Uniform(method=method), NStep(gamma=gamma), length=length, num_envs=num_envs, **storage)


def n_step(
    length: int,
    num_envs: int = 1,
    *,
    n: int,
    gamma: Scalar = 0.99,
    sampler: Sampler = Uniform(),
    **storage: Unpack[StorageOptions],
) -> ReplayBuffer:
    """Return a buffer of n-step transitions; see `NStep`.

        target = r_t + gamma r_{t+1} + ... + gamma^(n-1) r_{t+n-1} + gamma^n V(next_obs)

    Example:
        >>> buffer = n_step(1_000, num_envs=16, n=3)
    """
    return ReplayBuffer(sampler, NStep(n=n, gamma=gamma), length=length, num_envs=num_envs, **storage)


def prioritized(
    length: int,
    num_envs: int = 1,
    *,
    alpha: Scalar = 0.6,
    beta: Scalar = 0.4,
    n: int = 1,
    gamma: Scalar = 0.99,
    **storage: Unpack[StorageOptions],
) -> ReplayBuffer:
    """Return prioritized replay (PER) of single or n-step transitions; see `Prioritized`.

    Multiply the loss of each sample by `sample.weights`, and pass new priorities to `buffer.update_priorities`.

    Its sampler, `Prioritized`, has more settings, and can be used in other buffers too. For example,
    `sequences(..., sampler=Prioritized())` draws sequences by priority.

    Example:
        >>> buffer = prioritized(1_000, num_envs=16, n=3)
    """
    return n_step(length, num_envs, n=n, gamma=gamma, sampler=Prioritized(alpha=alpha, beta=beta), **storage)


def emphasize_recent(
    length: int,
    num_envs: int = 1,
    *,
    eta: Scalar = 0.996,
    c_min: Scalar = 5_000.0,
    adaptive: bool = False,
    n: int = 1,
    gamma: Scalar = 0.99,
    sampler: Sampler = Uniform(),
    **storage: Unpack[StorageOptions],
) -> ReplayBuffer:
    """Return replay that emphasizes recent experience (ERE); see `Recent`.

    Recent rows are drawn uniformly, or by priority with `sampler=Prioritized()`.

    Example:
        >>> buffer = emphasize_recent(100_000, num_envs=16, eta=0.996)
    """
    recent = Recent(sampler, eta=eta, c_min=c_min, adaptive=adaptive)
    return n_step(length, num_envs, n=n, gamma=gamma, sampler=recent, **storage)


def guarantee_recent(
    length: int,
    num_envs: int = 1,
    *,
    ratio: float,
    num_starts: Scalar,
    n: int = 1,
    gamma: Scalar = 0.99,
    sampler: Sampler = Uniform(),
    **storage: Unpack[StorageOptions],
) -> ReplayBuffer:
    """Return replay in which at least `ratio` of a batch comes from the newest `num_starts` starts of each environment.

    The rest of the batch is drawn by `sampler` from all starts. While the newest starts are at least `ratio` of all
    starts, `sampler` draws the whole batch.

    Example:
        >>> buffer = guarantee_recent(100_000, num_envs=16, ratio=0.25, num_starts=1_000)
    """
    inside = sampler if isinstance(sampler, Uniform) else Uniform("stratified")
    newest = LastN(num_starts, inside, max_share=ratio)
    mix = Combined(sampler, others=(newest,), ratios=(ratio,))
    return n_step(length, num_envs, n=n, gamma=gamma, sampler=mix, **storage)


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
    **storage: Unpack[StorageOptions],
) -> ReplayBuffer:
    """Return hindsight experience replay (HER) of single or n-step transitions; see `Hindsight`.

    Example:
        >>> relabel = lambda transition, goal: transition._replace(reward=-abs(transition.next_obs - goal))
        >>> buffer = hindsight(1_000, num_envs=16, achieved="next_obs", relabel=relabel)
    """
    view = Hindsight(NStep(n=n, gamma=gamma), achieved=achieved, relabel=relabel, strategy=strategy, ratio=ratio)
    return ReplayBuffer(sampler, view, length=length, num_envs=num_envs, **storage)


def sequences(
    length: int,
    num_envs: int = 1,
    *,
    sequence_length: int,
    burn_in: int = 0,
    period: int = 1,
    gamma: Scalar = 0.99,
    within_episode: bool = False,
    n: int = 1,
    sampler: Sampler = Uniform(),
    **storage: Unpack[StorageOptions],
) -> ReplayBuffer:
    """Return a buffer of sequences with leaves `[B, sequence_length, ...]`, for recurrent agents; see `Sequence`.

    Example:
        >>> buffer = sequences(1_000, num_envs=16, sequence_length=20, burn_in=10, period=10)
    """
    view = Sequence(sequence_length, burn_in, period, gamma, within_episode=within_episode, n=n)
    return ReplayBuffer(sampler, view, length=length, num_envs=num_envs, **storage)


def rollout(length: int, num_envs: int = 1, **options: Unpack[RolloutOptions]) -> Rollout:
    """Return on-policy rollouts with advantages, for PPO; see `Rollout`.

    Example:
        >>> buffer = rollout(128, num_envs=8, gamma=0.99, gae_lambda=0.95)
    """
    return Rollout(length, num_envs, **options)
