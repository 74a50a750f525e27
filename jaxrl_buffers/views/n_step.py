"""Transitions over up to `n` steps.

    reward   = sum_{i < m} gamma^i r_{t+i}
    discount = gamma^m (1 - terminated_{t+m-1})
    next_obs = next_obs_{t+m-1}

where `m <= n` is the number of steps really used: the window stops behind a step that is terminated or truncated, and
at the newest stored row. So a truncated episode bootstraps from its own last observation, and never crosses into the
next one; Sutton (1988), https://doi.org/10.1007/BF00115009.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_buffers import _struct as struct
from jaxrl_buffers._checks import require_integer, require_number
from jaxrl_buffers._fields import named_field
from jaxrl_buffers.storage.ring import Reader
from jaxrl_buffers.types import Batch, PyTree, Scalar


class NStep(struct.PyTreeNode):
    """View starts as n-step transitions; `n = 1` is the plain transition.

    Args:
        n: how many steps are summed up.
        gamma: the discount of one step.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = jb.ReplayBuffer(view=jb.NStep(n=3, gamma=0.99), length=1_000)
    """

    n: int = struct.field(pytree_node=False, default=1)
    gamma: Scalar = 0.99

    def __post_init__(self):
        require_integer("NStep", "n", self.n, 1)
        require_number(self, "gamma", self.gamma, 0)

    lookahead = 0  # windows are shortened at the write head
    lookback = 0
    stride = 1
    needs_episodes = False
    is_random = False
    fields = ("obs", "action", "reward", "terminated", "truncated", "next_obs")

    @property
    def span(self) -> int:
        """How many rows a sample may read."""
        return self.n

    def __call__(self, reader: Reader, slots: jax.Array, key: jax.Array) -> Batch:
        """Return the transitions that begin at `slots[B]`; `key` is not used."""
        row, env = reader.locate(slots)
        offset = jnp.arange(self.n, dtype=jnp.int32)[None]
        rows = reader.later(row[:, None], offset) if self.n > 1 else row[:, None]
        # Only what is used of each read is gathered: XLA drops the other fields.
        steps = reader.read(rows, jnp.broadcast_to(env[:, None], rows.shape))
        terminated = named_field(steps, "terminated").astype(bool)
        ended = terminated | named_field(steps, "truncated").astype(bool)
        used = (offset <= reader.age(row, env)[:, None]) & ~ended_before(ended)
        used = used if self.n > 1 else jnp.ones_like(used)  # known without looking, which saves the work
        last = jnp.sum(used, axis=1, dtype=jnp.int32) - 1
        last_row = reader.later(row, last) if self.n > 1 else row
        first_step, last_step = reader.read(row, env), reader.read(last_row, env)
        reward, discount = _discounted(named_field(steps, "reward"), used, terminated, self.gamma)
        return Batch(
            obs=named_field(first_step, "obs"),
            action=named_field(first_step, "action"),
            reward=reward,
            discount=discount,
            next_obs=named_field(last_step, "next_obs"),
            mask=reader.is_complete(last_row, env),
            extras=optional_extras(first_step),
        )


def _discounted(
    reward: jax.Array, used: jax.Array, terminated: jax.Array, gamma: Scalar
) -> tuple[jax.Array, jax.Array]:
    """Sum up the used rewards `[B, n, ...]` and return the discount of what follows."""
    gamma = jnp.asarray(gamma, jnp.float32)
    powers = jnp.cumprod(jnp.where(jnp.arange(used.shape[1] + 1) == 0, 1, gamma))
    dtype = jnp.promote_types(reward.dtype, jnp.float32)
    used_rewards, factor = (x.reshape(*x.shape, *[1] * (reward.ndim - 2)) for x in (used, powers[None, :-1]))
    # An unused reward may be anything, also NaN, which a factor of zero would let through.
    total = jnp.sum(jnp.where(used_rewards, reward.astype(dtype), 0) * factor.astype(dtype), axis=1)
    bootstraps = ~jnp.any(used & terminated, axis=1)
    return total, jnp.where(bootstraps, powers[jnp.sum(used, axis=1)], 0)


def ended_before(ended: jax.Array) -> jax.Array:
    """Tell for each step of `[B, L]` whether an earlier one ended its episode."""
    return jnp.cumsum(ended, axis=1, dtype=jnp.int32) - ended > 0


def optional_extras(rows: PyTree) -> PyTree:
    """Return the extras of stored rows, `()` if they have none."""
    has_extras = "extras" in rows if isinstance(rows, dict) else hasattr(rows, "extras")
    return named_field(rows, "extras") if has_extras else ()
