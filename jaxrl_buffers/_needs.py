"""What the samplers and views of a buffer declare that they need."""

from __future__ import annotations

from jaxrl_buffers.types import NeedsEpisodes, NeedsEveryEnv, Sampler, StaysWithinEpisode, View


def episodes(part: Sampler | View) -> bool:
    """Return whether a part reads the episode index."""
    return isinstance(part, NeedsEpisodes) and part.needs_episodes


def every_env(sampler: Sampler) -> bool:
    """Return whether a sampler draws from every environment, so that each must hold a start.

    Example:
        >>> import jaxrl_buffers as jb
        >>> every_env(jb.Recent(jb.Uniform(balanced=True)))
        True
    """
    return isinstance(sampler, NeedsEveryEnv) and sampler.needs_every_env


def one_episode(view: View) -> bool:
    """Return whether all rows of a sample must be in one episode."""
    return isinstance(view, StaysWithinEpisode) and view.within_episode
