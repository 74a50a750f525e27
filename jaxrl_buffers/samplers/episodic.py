"""Every stored episode is equally likely, and so is every step of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_buffers import episodes, starts
from jaxrl_buffers.integers import random_below
from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import Draw, Scalar, Window


class Episodic(struct.PyTreeNode):
    """Draw an episode uniformly, then one of its stored steps uniformly: steps of long episodes are drawn less often.

    Episodes count if a legal start of theirs is stored. Weights are ones: the bias is meant.

    Args:
        whole: draw only from episodes that have ended and whose begin is still stored.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = jb.ReplayBuffer(sampler=jb.Episodic(whole=True), length=100, num_envs=4)
    """

    whole: bool = struct.field(pytree_node=False, default=False)

    needs_episodes = True

    def init(self, storage_shape: tuple[int, int]) -> tuple[()]:
        """Return no state."""
        return ()

    def mark(self, state: tuple[()], slots: jax.Array, legal: jax.Array, priorities: Any = None) -> tuple[()]:
        """Do nothing: the index knows the episodes and the window the legal starts."""
        return state

    def draw(
        self, state: tuple[()], storage: Ring, key: jax.Array, batch_size: int, window: Window, progress: Scalar = 0.0
    ) -> Draw:
        """Draw `batch_size` starts; consumes `key`."""
        if window.stride > 1:
            raise ValueError(
                f"Episodic(): some episodes have no start when only every {window.stride}-th row is one; "
                "use a view of period 1."
            )
        key_episode, key_step = jax.random.split(key)
        length, num_envs = ring.shape(storage)
        newest, oldest = (jnp.broadcast_to(bound, num_envs) for bound in (window.newest, window.oldest))
        first, counts = self._episodes(storage, newest, oldest)
        count = jnp.sum(counts, dtype=jnp.int32)
        number = random_below(key_episode, jnp.broadcast_to(jnp.maximum(count, 1), (batch_size,)))
        number, env = starts.number_by_env(counts, number)
        span = episodes.of_number(storage, ring.wrap(first[env] + number, length), env)
        low, high = jnp.maximum(span.end, newest[env]), jnp.minimum(span.begin, oldest[env] - 1)
        num_steps = jnp.maximum(high - low + 1, 1)
        age = jnp.clip(low + random_below(key_step, num_steps), 0, length - 1)
        slots = ring.slot(storage, ring.row_of_age(storage, age, env), env)
        mass = jnp.where(count > 0, 1 / num_steps.astype(jnp.float32), 0)
        # No episode has more steps than a ring has rows. The true least would take a look at every episode.
        least = jnp.where(count > 0, jnp.float32(1 / length), jnp.inf)
        return Draw(slots, mass, least, count.astype(jnp.float32), starts.count(storage, window))

    def _episodes(self, storage: Ring, newest: jax.Array, oldest: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the number of the oldest episode to draw from and how many there are, for each environment."""
        length, num_envs = ring.shape(storage)
        env = jnp.arange(num_envs, dtype=jnp.int32)
        first, last = (
            episodes.number_of_age(storage, jnp.clip(age, 0, length - 1), env) for age in (oldest - 1, newest)
        )
        counts = jnp.where(newest < oldest, ring.wrap(last - first, length) + 1, 0)
        if self.whole:  # only the oldest episode may lack its begin, and only the newest its end
            headless = ~episodes.of_number(storage, first, env).begin_is_stored
            is_open = ~episodes.of_number(storage, last, env).is_ended
            first, counts = ring.wrap(first + headless, length), jnp.maximum(counts - headless - is_open, 0)
        return first, counts

    def weights(self, draw: Draw) -> jax.Array:
        """Return ones."""
        return jnp.ones_like(draw.mass)

    def update(
        self, state: tuple[()], slots: jax.Array, priorities: jax.Array, live: jax.Array, mask: Any = None
    ) -> tuple[()]:
        """Do nothing."""
        return state

    def reprioritize(self, state: tuple[()]) -> tuple[()]:
        """Do nothing."""
        return state
