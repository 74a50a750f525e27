"""Every legal start is equally likely."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_buffers import starts
from jaxrl_buffers._checks import require_choice
from jaxrl_buffers._random.hashing import split, unrolled
from jaxrl_buffers._random.integers import permute, random_below, round_keys
from jaxrl_buffers.component import field
from jaxrl_buffers.samplers._base import Stateless
from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import Draw, Scalar, Window

METHODS = ("independent", "stratified", "distinct")


class Uniform(Stateless):
    """Draw legal starts uniformly.

    Args:
        method: `"independent"` draws with replacement. `"stratified"` draws one start from each of `B` equal parts of
            the starts; if there are `B` starts, each is drawn once. `"distinct"` draws without replacement, so no start
            occurs twice in a batch; if there are too few starts, the rest of the batch has mask False and weight 0.
        balanced: give every environment the same share of the batch, in the order `0..N-1, 0..N-1, ...`. If `N` does
            not divide `B`, the last samples come from distinct random environments. The method then applies within each
            environment.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = jb.ReplayBuffer(sampler=jb.Uniform(method="distinct"), length=100, num_envs=4)
    """

    method: str = field(static=True, default="independent")
    balanced: bool = field(static=True, default=False)

    def __post_init__(self) -> None:
        require_choice("Uniform", "method", self.method, METHODS)

    @property
    def needs_every_env(self) -> bool:
        """Whether a batch holds draws from every environment."""
        return self.balanced

    def draw(
        self, state: tuple[()], storage: Ring, key: jax.Array, batch_size: int, window: Window, progress: Scalar = 0.0
    ) -> Draw:
        """Draw `batch_size` starts; consumes `key`."""
        if self.balanced:  # environments have equal shares, which their starts divide equally
            key_group, key_number = split(key)
            sizes = starts.count_of_every_env(storage, window)
            group = _environments(key_group, sizes.shape[0], batch_size)
            number, valid = _NUMBERS[self.method](key_number, group, sizes[group.member])
            slots = starts.slot_in_env(storage, window, jnp.where(valid, number, 0), group.member)
        else:
            size = jnp.broadcast_to(starts.count(storage, window), (batch_size,))
            number, valid = _NUMBERS[self.method](key, _everything(batch_size), size)
            slots = starts.slot_of_number(storage, window, jnp.where(valid, number, 0))
        if window.fit:  # starts were counted for the view when rows were added; the view may have changed
            valid &= starts.is_legal_slot(storage, window, slots)
        return self._measured(storage, window, slots, valid)

    def measure(
        self, state: tuple[()], storage: Ring, slots: jax.Array, window: Window, progress: Scalar = 0.0
    ) -> Draw:
        """Return the `Draw` of `slots`, as if they had been drawn. A slot that cannot be drawn has a mass of zero."""
        return self._measured(storage, window, slots, starts.is_legal_slot(storage, window, slots))

    def _measured(self, storage: Ring, window: Window, slots: jax.Array, valid: jax.Array) -> Draw:
        """Return the `Draw` of these slots, with a mass of zero where they are not valid."""
        count = starts.count(storage, window)
        if self.balanced:
            sizes = starts.count_of_every_env(storage, window)
            _, env = ring.unravel(storage, slots)
            mass, least, total = 1 / sizes[env], 1 / jnp.max(sizes), jnp.sum(sizes > 0)
        else:
            mass, least, total = 1, jnp.where(count > 0, 1, jnp.inf), count
        mass, least, total = (x.astype(jnp.float32) for x in (jnp.where(valid, mass, 0), least, total))
        return Draw(slots, mass, least, total, count)


class _Group(NamedTuple):
    """How draws are grouped: one group for all, or one for each environment. Each group has its own set of starts."""

    member: jax.Array  # int32[B]: the group that each draw belongs to
    rank: jax.Array  # int32[B]: its rank among the draws of its group
    quota: jax.Array  # int32[B]: how many draws its group has
    num_groups: int


def _everything(batch_size: int) -> _Group:
    zeros = jnp.zeros(batch_size, jnp.int32)
    return _Group(zeros, jnp.arange(batch_size, dtype=jnp.int32), zeros + batch_size, 1)


def _environments(key: jax.Array, num_envs: int, batch_size: int) -> _Group:
    share, rest = divmod(batch_size, num_envs)
    every = jnp.tile(jnp.arange(num_envs, dtype=jnp.int32), share)
    others = jax.random.permutation(unrolled(key), num_envs)[:rest].astype(jnp.int32)  # these get one draw more
    member = jnp.concatenate([every, others])
    rank = jnp.arange(batch_size, dtype=jnp.int32) // num_envs
    quota = jnp.full(num_envs, share, jnp.int32).at[others].add(1)[member]
    return _Group(member, rank, quota, num_envs)


def _independent(key: jax.Array, group: _Group, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    return random_below(key, jnp.maximum(size, 1)), size > 0


def _stratified(key: jax.Array, group: _Group, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draw one number from each stratum of integers.

    If the quota does not divide the size, some strata are longer by one. A random rotation of all strata makes every
    number equally likely in this case too.
    """
    key_offset, key_rotation = split(key)
    size_or_one = jnp.maximum(size, 1)
    width, longer = size_or_one // group.quota, size_or_one % group.quota
    # With more draws than numbers, strata have the length 1 and repeat.
    begin = jnp.where(width > 0, group.rank * width + jnp.minimum(group.rank, longer), group.rank % size_or_one)
    width = jnp.maximum(width + (group.rank < longer), 1)
    size_by_group = jnp.zeros(group.num_groups, jnp.int32).at[group.member].set(size_or_one)
    rotation = random_below(key_rotation, jnp.maximum(size_by_group, 1))[group.member]
    number = (begin + random_below(key_offset, width)) % size_or_one - (size_or_one - rotation)
    return jnp.where(number < 0, number + size_or_one, number), size > 0


def _distinct(key: jax.Array, group: _Group, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Send the ranks of each group through a random permutation of its numbers."""
    words = round_keys(key, group.num_groups)
    if group.num_groups > 1:
        words = words[:, :, group.member]
    return permute(words, group.rank, size), group.rank < size


_NUMBERS = {"independent": _independent, "stratified": _stratified, "distinct": _distinct}
