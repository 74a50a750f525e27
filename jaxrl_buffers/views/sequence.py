"""Consecutive rows, for recurrent networks and sequence models.

A target of row `i` sums up the rewards of up to `n` rows, as in `NStep`:

    reward_i   = sum_{j < m} gamma^j r_{i+j}
    discount_i = gamma^m (1 - terminated_{i+m-1})
    next_obs_i = next_obs of row i + m - 1

where `m <= n` is the number of rows really used: the sum stops at the end of the episode and of the sequence.

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
from jaxrl_buffers.views._targets import as_float, sum_steps
from jaxrl_buffers.views.n_step import FIELDS


class Sequence(Component):
    """Turn starts into sequences of `length` consecutive rows `[B, L, ...]`. No sequence crosses the write head.

    Transitions become a `Batch`. Its `mask` is False during the burn-in, and after the end of an episode inside the
    sequence. Its `extras["carry"]` is the carry of the first row, `[B, ...]`. Rows that are not a `Transition` are
    returned as they are stored.

    Args:
        length: how many rows a sequence has, burn-in included.
        burn_in: how many rows at the beginning have mask False; a learner uses them only to refresh a recurrent state.
        period: sequences start at every `period`-th row; the ring's length must be a multiple of it.
        gamma: the discount of one step.
        within_episode: start sequences only where they fit into one episode, so that no sequence holds rows of two
            episodes. Then episodes shorter than `length` are never drawn, and no sequence starts at the last
            `length - 1` rows of an episode. Samplers that draw from recent rows still count all rows.
        n: how many rewards the target of a row sums up at most. With `n > 1`, `Batch.num_steps` is the number that was
            really summed up. A network with a memory sees `next_obs[:, i]` after the rows up to
            `i + num_steps[:, i] - 1`.

    Example:
        >>> import jaxrl_buffers as jb
        >>> view = jb.Sequence(length=80, burn_in=40, period=40, n=5)
    """

    length: int = field(static=True)
    burn_in: int = field(static=True, default=0)
    period: int = field(static=True, default=1)
    gamma: Scalar = 0.99
    within_episode: bool = field(static=True, default=False)
    n: int = field(static=True, default=1)

    def __post_init__(self) -> None:
        require_integer("Sequence", "length", self.length, 1)
        require_integer("Sequence", "burn_in", self.burn_in, 0)
        require_integer("Sequence", "period", self.period, 1)
        require_integer("Sequence", "n", self.n, 1)
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
        """Whether the view needs the episode index."""
        return self.within_episode

    @property
    def fields(self) -> tuple[str, ...]:
        """The named fields that stored rows must have."""
        ends = ("terminated", "truncated") if self.within_episode else ()
        return ends if self.n == 1 else FIELDS

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
            if self.n > 1:
                raise ValueError(
                    f"Sequence(n={self.n}) sums up the rewards of a Transition, but the rows are "
                    f"{type(steps).__name__}; store a Transition, or leave `n` at 1."
                )
            return steps
        terminated = steps.terminated.astype(bool)
        ended = terminated | steps.truncated.astype(bool)
        batch = Batch(
            obs=steps.obs,
            action=steps.action,
            reward=as_float(steps.reward),
            discount=jnp.where(terminated, 0, jnp.asarray(self.gamma, jnp.float32)),
            next_obs=steps.next_obs,
            mask=(offset >= self.burn_in) & ~_ended_before(ended) & reader.is_complete(rows, env),
            extras=_with_first_carry(steps.extras),
        )
        return sum_rows(batch, self.n)


def sum_rows(batch: Batch, n: int) -> Batch:
    """Return sequences `[B, L]` of single steps with targets of up to `n` steps instead.

    A target includes the following rows as long as their mask is True: up to the end of the episode or of the sequence.

    Example:
        >>> rows, mask = jnp.arange(4.0)[None], jnp.array([[True, True, True, False]])
        >>> batch = sum_rows(Batch(rows, rows, jnp.ones((1, 4)), jnp.full((1, 4), 0.5), rows + 1, mask), n=2)
        >>> print(batch.reward[0, :3], batch.discount[0, :3], batch.next_obs[0, :3], batch.num_steps[0, :3])
        [1.5 1.5 1. ] [0.25 0.25 0.5 ] [2. 3. 3.] [2 2 1]
    """
    if n == 1:
        return batch
    num_rows = min(n, batch.mask.shape[1])
    rewards, discounts, masks = (
        [_shifted(values, number) for number in range(num_rows)]
        for values in (batch.reward, batch.discount, batch.mask)
    )
    reward, discount, num_steps = sum_steps(rewards, discounts, masks[1:])
    last = jnp.arange(batch.mask.shape[1], dtype=jnp.int32)[None] + num_steps - 1
    next_obs = jax.tree.map(lambda leaf: jax.vmap(lambda rows, index: rows[index])(leaf, last), batch.next_obs)
    return batch._replace(reward=reward, discount=discount, next_obs=next_obs, num_steps=num_steps)


def _shifted(values: jax.Array, number: int) -> jax.Array:
    """Return the values `number` rows later, `[B, L, ...]`; zero or False after the last row."""
    return jnp.pad(values, [(0, 0), (0, number), *[(0, 0)] * (values.ndim - 2)])[:, number:]


def _ended_before(ended: jax.Array) -> jax.Array:
    """Return for each step of `[B, L]` whether an earlier step of its sequence ended an episode."""
    return jnp.cumsum(ended, axis=1, dtype=jnp.int32) - ended > 0


def _with_first_carry(extras: PyTree) -> PyTree:
    """Keep only the first recurrent state of each sequence: `[B, L, ...]` becomes `[B, ...]`."""
    if not (isinstance(extras, dict) and "carry" in extras):
        return extras
    return extras | {"carry": jax.tree.map(lambda leaf: leaf[:, 0], extras["carry"])}
