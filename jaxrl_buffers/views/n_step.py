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

from jaxrl_buffers._checks import require_integer, require_number
from jaxrl_buffers._fields import named_field
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.storage.reader import Reader
from jaxrl_buffers.types import Batch, PyTree, Scalar


class NStep(Component):
    """View starts as n-step transitions; `n = 1` is the plain transition.

    Args:
        n: how many steps are summed up.
        gamma: the discount of one step.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = jb.ReplayBuffer(view=jb.NStep(n=3, gamma=0.99), length=1_000)
    """

    n: int = field(static=True, default=1)
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
        steps = reader.steps(row, env, self.n)
        reward, discount, num_steps = self._summed(steps.each(), reader.age(row, env))
        last = num_steps - 1 if self.n > 1 else 0
        first_step, last_step = steps.at(0), steps.at(last)
        return Batch(
            obs=named_field(first_step, "obs"),
            action=named_field(first_step, "action"),
            reward=reward,
            discount=discount,
            next_obs=named_field(last_step, "next_obs"),
            mask=reader.is_complete(steps.row_at(last), env),
            extras=optional_extras(first_step),
        )

    def _summed(self, steps: list[PyTree], age: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the reward, the discount of what follows and the number of the steps that are used, `[B]` each.

        Step by step, because compilers make one kernel of it.
        """
        gamma = jnp.asarray(self.gamma, jnp.float32)
        is_used, num_steps = jnp.ones(age.shape, bool), jnp.zeros(age.shape, jnp.int32)
        power, total, discount = jnp.ones((), jnp.float32), 0, jnp.zeros(age.shape, jnp.float32)
        for number, rows in enumerate(steps):
            if number > 0:
                is_used &= number <= age
            reward, terminated = named_field(rows, "reward"), named_field(rows, "terminated").astype(bool)
            reward = reward.astype(jnp.promote_types(reward.dtype, jnp.float32))
            # An unused reward may be anything, also NaN, which a factor of zero would let through.
            is_counted = is_used.reshape(-1, *[1] * (reward.ndim - 1))
            total += jnp.where(is_counted, reward * power.astype(reward.dtype), 0)
            power *= gamma
            discount = jnp.where(is_used, jnp.where(terminated, 0, power), discount)
            num_steps += is_used
            is_used &= ~(terminated | named_field(rows, "truncated").astype(bool))
        return jnp.asarray(total), discount, num_steps


def ended_before(ended: jax.Array) -> jax.Array:
    """Tell for each step of `[B, L]` whether an earlier one ended its episode."""
    return jnp.cumsum(ended, axis=1, dtype=jnp.int32) - ended > 0


def optional_extras(rows: PyTree) -> PyTree:
    """Return the extras of stored rows, `()` if they have none."""
    has_extras = "extras" in rows if isinstance(rows, dict) else hasattr(rows, "extras")
    return named_field(rows, "extras") if has_extras else ()
