"""Transitions over up to `n` steps.

    reward   = sum_{i < m} gamma^i r_{t+i}
    discount = gamma^m (1 - terminated_{t+m-1})
    next_obs = next_obs_{t+m-1}

where `m <= n` is the number of steps really used: the sum stops after a step that is terminated or truncated, and after
the newest stored row. So a truncated episode bootstraps from its own last observation, and its targets never include
steps of the next episode. The targets `reward + discount * V(next_obs)` are:

    m = 1    r_t + gamma V_{t+1}
    m = 2    r_t + gamma r_{t+1} + gamma^2 V_{t+2}
    m = 3    r_t + gamma r_{t+1} + gamma^2 r_{t+2} + gamma^3 V_{t+3}

If the task ended, the last term is zero. With a larger `n`, the values of earlier steps learn of a reward sooner. But
more of the rewards come from an older policy, and this is not corrected. Sutton (1988),
https://doi.org/10.1007/BF00115009.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_buffers._checks import require_integer, require_number
from jaxrl_buffers._fields import has_field, named_field
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.storage.reader import Reader
from jaxrl_buffers.types import Batch, PyTree, Scalar
from jaxrl_buffers.views._targets import as_float, sum_steps

FIELDS = ("obs", "action", "reward", "terminated", "truncated", "next_obs")  # the fields that a target is computed from


class NStep(Component):
    """Turn starts into n-step transitions `[B, ...]`; `n = 1` gives single transitions.

    Args:
        n: how many steps are summed up.
        gamma: the discount of one step.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = jb.ReplayBuffer(view=jb.NStep(n=3, gamma=0.99), length=1_000)
    """

    n: int = field(static=True, default=1)
    gamma: Scalar = 0.99

    def __post_init__(self) -> None:
        require_integer("NStep", "n", self.n, 1)
        require_number(self, "gamma", self.gamma, 0)

    lookahead = 0  # at the newest row, targets use fewer than `n` steps
    lookback = 0
    stride = 1
    needs_episodes = False
    is_random = False

    @property
    def fields(self) -> tuple[str, ...]:
        """The named fields that stored rows must have."""
        return FIELDS

    @property
    def span(self) -> int:
        """How many rows a sample may read."""
        return self.n

    def __call__(self, reader: Reader, slots: jax.Array, key: jax.Array) -> Batch:
        """Return the transitions that begin at `slots[B]`; `key` is not used."""
        row, env = reader.locate(slots)
        steps = reader.steps(row, env, self.n)
        reward, discount, num_steps = self._target(steps.each(), reader.age(row, env))
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

    def _target(self, steps: list[PyTree], age: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the reward, the discount of `V(next_obs)` and the number of steps that are used, `[B]` each."""
        terminated = [named_field(rows, "terminated").astype(bool) for rows in steps]
        ended = [one | named_field(rows, "truncated").astype(bool) for one, rows in zip(terminated, steps, strict=True)]
        return sum_steps(
            rewards=[as_float(named_field(rows, "reward")) for rows in steps],
            discounts=[jnp.where(one, 0, jnp.asarray(self.gamma, jnp.float32)) for one in terminated],
            follows=[~before & (number <= age) for number, before in enumerate(ended[:-1], 1)],
        )


def optional_extras(rows: PyTree) -> PyTree:
    """Return the extras of stored rows, `()` if they have none."""
    return named_field(rows, "extras") if has_field(rows, "extras") else ()
