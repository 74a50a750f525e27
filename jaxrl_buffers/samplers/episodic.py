"""Every stored episode is equally likely, and so is every step of one episode."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_buffers import starts
from jaxrl_buffers._random.hashing import split
from jaxrl_buffers._random.integers import random_below
from jaxrl_buffers.component import field
from jaxrl_buffers.samplers._base import Stateless
from jaxrl_buffers.storage import episodes, ring
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import Draw, Scalar, Window


class Episodic(Stateless):
    """Draw an episode uniformly, then one of its stored steps uniformly. A step of a long episode is drawn less often.

    Only episodes with at least one stored legal start are drawn. All weights are one, because the preference for steps
    of short episodes is intended. With `whole=True`, samples have mask False and weight 0 while no whole episode is
    stored. `can_sample` may still be True then, because it counts starts and not episodes.

    Args:
        whole: draw only from episodes that have ended and whose first step is still stored.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = jb.ReplayBuffer(sampler=jb.Episodic(whole=True), length=100, num_envs=4)
    """

    whole: bool = field(static=True, default=False)

    needs_episodes = True

    def draw(
        self, state: tuple[()], storage: Ring, key: jax.Array, batch_size: int, window: Window, progress: Scalar = 0.0
    ) -> Draw:
        """Draw `batch_size` starts; consumes `key`."""
        key_episode, key_step = split(key)
        length, _ = ring.shape(storage)
        first, counts = self._episodes(storage, window)
        count = jnp.sum(counts, dtype=jnp.int32)
        number = random_below(key_episode, jnp.broadcast_to(jnp.maximum(count, 1), (batch_size,)))
        number, env = starts.number_by_env(counts, number)
        newest, num_steps = _steps(
            episodes.of_number(storage, ring.wrap(first[env] + number, length), env), window, env
        )
        age = jnp.clip(newest + random_below(key_step, num_steps), 0, length - 1)
        slots = ring.slot(storage, ring.row_of_age(storage, age, env), env)
        return self._measured(storage, window, slots, count)

    def measure(
        self, state: tuple[()], storage: Ring, slots: jax.Array, window: Window, progress: Scalar = 0.0
    ) -> Draw:
        """Return the `Draw` of `slots`, as if they had been drawn. A slot that cannot be drawn has a mass of zero."""
        return self._measured(storage, window, slots, jnp.sum(self._episodes(storage, window)[1], dtype=jnp.int32))

    def _measured(self, storage: Ring, window: Window, slots: jax.Array, count: jax.Array) -> Draw:
        """Return the `Draw` of these slots, if there are `count` episodes to draw from."""
        row, env = ring.unravel(storage, slots)
        span = episodes.of_rows(storage, row, env)
        valid = (count > 0) & starts.is_legal(storage, window, ring.age_of_row(storage, row, env), env)
        if self.whole:
            valid &= span.begin_is_stored & span.is_ended
        _, num_steps = _steps(span, window, env)
        mass = jnp.where(valid, 1 / num_steps.astype(jnp.float32), 0)
        # This is a lower bound: no episode has more steps than the ring has rows. To find the exact least mass, every
        # episode would have to be read.
        least = jnp.where(count > 0, jnp.float32(1 / ring.shape(storage)[0]), jnp.inf)
        return Draw(slots, mass, least, count.astype(jnp.float32), starts.count(storage, window))

    def _episodes(self, storage: Ring, window: Window) -> tuple[jax.Array, jax.Array]:
        """Return the number of the oldest episode to draw from and how many there are, for each environment."""
        if window.stride > 1:
            raise ValueError(
                f"Episodic(): only one row in {window.stride} is a start, so some episodes have none; use a view of "
                "period 1."
            )
        if window.fit:
            raise ValueError(
                f"Episodic(): episodes of fewer than {window.fit + 1} rows have no start when samples must fit into "
                "one; use a view without `within_episode`, whose mask is False after the end of an episode."
            )
        length, num_envs = ring.shape(storage)
        first, counts = episodes.between(storage, window.newest, window.oldest)
        if not self.whole:
            return first, counts
        env = jnp.arange(num_envs, dtype=jnp.int32)
        last = ring.wrap(first + counts - 1, length)
        # Only the oldest episode may lack its first row, and only the newest episode may lack its end.
        headless = ~episodes.of_number(storage, first, env).begin_is_stored
        is_open = ~episodes.of_number(storage, last, env).is_ended
        return ring.wrap(first + headless, length), jnp.maximum(counts - headless - is_open, 0)


def _steps(span: episodes.Span, window: Window, env: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the age of the newest legal start of each episode, and how many legal starts it has (at least 1)."""
    newest = jnp.maximum(span.end, ring.of_env(window.newest, env))
    oldest = jnp.minimum(span.begin, ring.of_env(window.oldest, env) - 1)
    return newest, jnp.maximum(oldest - newest + 1, 1)
