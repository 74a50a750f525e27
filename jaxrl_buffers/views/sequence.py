"""Consecutive rows, for recurrent networks and sequence models.

Kapturowski et al., Recurrent Experience Replay in Distributed Reinforcement Learning (R2D2),
https://openreview.net/forum?id=r1lyTjAqYX
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_buffers._checks import require_integer, require_number
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.storage.reader import Reader
from jaxrl_buffers.types import Batch, PyTree, Scalar, Transition
from jaxrl_buffers.views.n_step import ended_before


class Sequence(Component):
    """View starts as `length` consecutive rows `[B, L, ...]`, never across the write head.

    Of transitions it makes a `Batch` with one-step discounts; `mask` is False during the burn-in and behind an episode
    end inside the window, and `extras["carry"]` is that of the first row, `[B, ...]`. Other rows come as they are.

    Args:
        length: rows of a sequence, burn-in included.
        burn_in: first rows without loss, for refreshing a recurrent state.
        period: sequences start at every `period`-th row; the ring's length must be a multiple of it.
        gamma: the discount of one step.
        within_episode: start sequences only where they fit into one episode, so that none holds rows of two. Shorter
            episodes are then never drawn, nor are the last `length - 1` rows of others, other than as a part of a
            sequence. Samplers that draw from recent rows still count all rows.

    Example:
        >>> import jaxrl_buffers as jb
        >>> view = jb.Sequence(length=80, burn_in=40, period=40)
    """

    length: int = field(static=True)
    burn_in: int = field(static=True, default=0)
    period: int = field(static=True, default=1)
    gamma: Scalar = 0.99
    within_episode: bool = field(static=True, default=False)

    def __post_init__(self):
        require_integer("Sequence", "length", self.length, 1)
        require_integer("Sequence", "burn_in", self.burn_in, 0)
        require_integer("Sequence", "period", self.period, 1)
        require_number(self, "gamma", self.gamma, 0)
        if self.burn_in >= self.length:
            raise ValueError(
                f"Sequence(length={self.length}, burn_in={self.burn_in}): the burn-in leaves no step to learn from; "
                "make `burn_in` smaller than `length`."
            )

    lookback = 0
    is_random = False

    @property
    def needs_episodes(self) -> bool:
        """Whether the episode index is asked."""
        return self.within_episode

    @property
    def fields(self) -> tuple[str, ...]:
        """The named fields that stored rows must have."""
        return ("terminated", "truncated") if self.within_episode else ()

    @property
    def lookahead(self) -> int:
        """How many newer rows a start needs."""
        return self.length - 1

    @property
    def span(self) -> int:
        """How many rows a sample reads."""
        return self.length

    @property
    def stride(self) -> int:
        """Only every `period`-th row may start a sequence."""
        return self.period

    def __call__(self, reader: Reader, slots: jax.Array, key: jax.Array) -> PyTree:
        """Return the sequences that begin at `slots[B]`; `key` is not used."""
        row, env = reader.locate(slots)
        offset = jnp.arange(self.length, dtype=jnp.int32)[None]
        rows = reader.later(row[:, None], offset)
        env = jnp.broadcast_to(env[:, None], rows.shape)
        steps = reader.read(rows, env)
        if not isinstance(steps, Transition):
            return steps
        terminated = steps.terminated.astype(bool)
        ended = terminated | steps.truncated.astype(bool)
        return Batch(
            obs=steps.obs,
            action=steps.action,
            reward=steps.reward.astype(jnp.promote_types(steps.reward.dtype, jnp.float32)),
            discount=jnp.where(terminated, 0, jnp.asarray(self.gamma, jnp.float32)),
            next_obs=steps.next_obs,
            mask=(offset >= self.burn_in) & ~ended_before(ended) & reader.is_complete(rows, env),
            extras=_with_first_carry(steps.extras),
        )


def _with_first_carry(extras: PyTree) -> PyTree:
    """Keep of the recurrent states `[B, L, ...]` only the first of each sequence."""
    if not (isinstance(extras, dict) and "carry" in extras):
        return extras
    return extras | {"carry": jax.tree.map(lambda leaf: leaf[:, 0], extras["carry"])}
