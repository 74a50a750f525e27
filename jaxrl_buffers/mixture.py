"""`Mixture`: several buffers used as one, such as a buffer of new rows and one of offline data."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_buffers._checks import check_shape, require_integer, require_number, require_tuple
from jaxrl_buffers._random.hashing import split
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.replay import ReplayBuffer, ReplayState
from jaxrl_buffers.samplers.combined import split_batch
from jaxrl_buffers.types import Handle, PyTree, Sample, Scalar


class MixtureState(NamedTuple):
    """The states of all buffers, in order."""

    parts: tuple[ReplayState, ...]


class MixtureHandle(NamedTuple):
    """Names stored rows, and the buffer that holds them."""

    source: jax.Array  # int32[B]
    env: jax.Array  # int32[B]
    position: jax.Array  # int32[B]


class Mixture(Component):
    """Draw fixed shares of every batch from several buffers.

    A batch holds the samples of the first buffer, then those of the second, and so on. The share of an empty buffer has
    mask False and weight 0; the other shares do not change. Each buffer computes the weights of its own samples. They
    correct the bias of the priorities within that buffer, but not the shares, which are intended. All buffers must give
    batches of the same structure. For operations on one buffer use `mixture.buffers[i]` and `state.parts[i]`.

    To draw from one buffer by several samplers, use the sampler `Combined`.

    Args:
        buffers: the buffers. `add` writes to the first one, unless it is given another `part`.
        ratios: the relative shares, such as `(3, 1)`; equal by default. Shares are rounded to whole samples, in favor
            of the first buffers.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrl_buffers as jb
        >>> mixture = jb.Mixture(buffers=(jb.prioritized(8), jb.uniform(100)), ratios=(3, 1))
        >>> step = jb.Transition(jnp.zeros(3), jnp.int32(0), 0.0, False, False, jnp.zeros(3))
        >>> chunk = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (4, 1, *jnp.shape(leaf))), step)
        >>> state = mixture.init(step)
        >>> state = mixture.add(mixture.add(state, chunk), chunk, part=1)
        >>> sample = mixture.sample(state, jax.random.key(0), batch_size=8)
        >>> state = mixture.update_priorities(state, sample.handle, jnp.ones(8))
        >>> print(sample.handle.source)
        [0 0 0 0 0 0 1 1]
    """

    buffers: tuple[ReplayBuffer, ...]
    ratios: tuple[float, ...] = field(static=True, default=())

    def __post_init__(self) -> None:
        require_tuple("Mixture", "buffers", self.buffers, "buffers")
        require_tuple("Mixture", "ratios", self.ratios, "numbers")
        if not self.buffers:
            raise ValueError("Mixture(buffers=()): there is no buffer to draw from; give at least one.")
        if self.ratios and len(self.ratios) != len(self.buffers):
            raise ValueError(
                f"Mixture(): {len(self.buffers)} buffers have {len(self.ratios)} `ratios`; give one for each, or none."
            )
        for ratio in self.ratios:
            require_number("Mixture", "ratios", ratio, 0)
        if self.ratios and not sum(self.ratios) > 0:
            raise ValueError(f"Mixture(ratios={self.ratios}): nothing would be drawn; raise at least one ratio.")

    @property
    def num_envs(self) -> int:
        """The number of environments of the first buffer, to which `add` writes by default."""
        return self.buffers[0].num_envs

    def init(self, example: PyTree) -> MixtureState:
        """Return empty states for rows like `example`."""
        return MixtureState(tuple(buffer.init(example) for buffer in self.buffers))

    def add(self, state: MixtureState, chunk: PyTree, *, part: int = 0, **options: Any) -> MixtureState:
        """Append rows to buffer number `part`; the options are those of `ReplayBuffer.add`."""
        self._require_part("add", part)
        return self._with_part(state, part, self.buffers[part].add(state.parts[part], chunk, **options))

    def sample(self, state: MixtureState, key: jax.Array, batch_size: int, progress: Scalar = 0.0) -> Sample:
        """Draw a batch from all buffers; consumes `key`. Its handle is a `MixtureHandle`."""
        require_integer("sample", "batch_size", batch_size, 1)
        return self._sample(state, key, int(batch_size), progress)

    @functools.partial(jax.jit, static_argnames="batch_size")
    def _sample(self, state: MixtureState, key: jax.Array, batch_size: int, progress: Scalar) -> Sample:
        keys = split(key, len(self.buffers))
        samples = []
        for source, count in enumerate(self.counts(batch_size)):
            if count:
                sample = self.buffers[source].sample(state.parts[source], keys[source], count, progress)
                handle = MixtureHandle(jnp.full(count, source, jnp.int32), *sample.handle)
                samples.append(sample._replace(handle=handle))
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *samples)

    def read(
        self, state: MixtureState, handle: MixtureHandle, key: jax.Array | None = None, progress: Scalar = 0.0
    ) -> Sample:
        """Return the sample of given starts of any of the buffers, in any order; see `ReplayBuffer.read`."""
        check_shape("read", "handle.source", handle.source, jnp.shape(handle.position))
        keys = [None] * len(self.buffers) if key is None else split(key, len(self.buffers))
        samples = [
            buffer.read(part, self._of_source(handle, source), keys[source], progress)
            for source, (buffer, part) in enumerate(self._pairs(state))
        ]

        def choose(*leaves: jax.Array) -> jax.Array:
            source = handle.source.reshape(-1, *[1] * (leaves[0].ndim - 1))
            return functools.reduce(
                lambda old, new: jnp.where(source == new[0], new[1], old), enumerate(leaves), leaves[0]
            )

        chosen = jax.tree.map(choose, *samples)
        return chosen._replace(handle=MixtureHandle(handle.source, *chosen.handle))

    def _of_source(self, handle: MixtureHandle, source: int) -> Handle:
        """Return handles for one buffer. Entries that belong to other buffers become stale."""
        return Handle(handle.env, jnp.where(handle.source == source, handle.position, -1))

    def counts(self, batch_size: int) -> list[int]:
        """Return how many samples of a batch each buffer gives."""
        ratios = self.ratios or (1,) * len(self.buffers)
        return split_batch(batch_size, [ratio / sum(ratios) for ratio in ratios])[: len(ratios)]

    def update_priorities(
        self, state: MixtureState, handle: MixtureHandle, priorities: jax.Array, mask: jax.Array | None = None
    ) -> MixtureState:
        """Set the priorities of sampled starts, in any order, each in its own buffer."""
        check_shape("update_priorities", "handle.source", handle.source, jnp.shape(handle.position))

        def update(buffer: ReplayBuffer, part: ReplayState, source: int) -> ReplayState:
            return buffer.update_priorities(part, self._of_source(handle, source), priorities, mask)

        return MixtureState(tuple(map(update, self.buffers, state.parts, range(len(self.buffers)))))

    def reprioritize(self, state: MixtureState) -> MixtureState:
        """Apply changed hyper-parameters to every stored priority of every buffer."""
        return MixtureState(tuple(buffer.reprioritize(part) for buffer, part in self._pairs(state)))

    def observe(self, state: MixtureState, mean_return: Scalar) -> MixtureState:
        """Do what `report_return` does; this is its old name."""
        message = "`observe` of a buffer is now called `report_return`; the old name will be removed in version 2."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.report_return(state, mean_return)

    def report_return(self, state: MixtureState, mean_return: Scalar) -> MixtureState:
        """Report to the samplers of all buffers how well the agent does; see `ReplayBuffer.report_return`."""
        return MixtureState(tuple(buffer.report_return(part, mean_return) for buffer, part in self._pairs(state)))

    def clear(self, state: MixtureState, part: int, env_ids: jax.Array | None = None) -> MixtureState:
        """Forget all rows of buffer number `part`, or those of `env_ids` only."""
        self._require_part("clear", part)
        return self._with_part(state, part, self.buffers[part].clear(state.parts[part], env_ids))

    def mark_break(self, state: MixtureState, part: int = 0, env_ids: jax.Array | None = None) -> MixtureState:
        """Close all open episodes of buffer number `part`, or those of `env_ids` only; see `ReplayBuffer`."""
        self._require_part("mark_break", part)
        return self._with_part(state, part, self.buffers[part].mark_break(state.parts[part], env_ids))

    def age(self, state: MixtureState, handle: MixtureHandle) -> jax.Array:
        """Return the age of each named row: how many rows of its environment are newer, in its own buffer."""
        ages = [buffer.age(part, Handle(handle.env, handle.position)) for buffer, part in self._pairs(state)]
        return jnp.select([handle.source == source for source in range(len(ages))], ages)

    def num_valid(self, state: MixtureState) -> jax.Array:
        """Count the legal starts of all buffers."""
        return self._sum(buffer.num_valid(part) for buffer, part in self._pairs(state))

    def can_sample(self, state: MixtureState, at_least: int = 1) -> jax.Array:
        """Return whether all buffers together have `at_least` legal starts."""
        return self.num_valid(state) >= at_least

    def size(self, state: MixtureState) -> jax.Array:
        """Count the stored slots of all buffers."""
        return self._sum(buffer.size(part) for buffer, part in self._pairs(state))

    def stats(self, state: MixtureState, progress: Scalar = 0.0) -> dict[str, jax.Array]:
        """Return the statistics of every buffer, as `"<number>/<name>"`."""
        return {
            f"{number}/{name}": value
            for number, (buffer, part) in enumerate(self._pairs(state))
            for name, value in buffer.stats(part, progress).items()
        }

    def _pairs(self, state: MixtureState) -> list[tuple[ReplayBuffer, ReplayState]]:
        return list(zip(self.buffers, state.parts, strict=True))

    def _sum(self, counts: Iterable[jax.Array]) -> jax.Array:
        return jnp.sum(jnp.stack([*counts]), dtype=jnp.int32)

    def _with_part(self, state: MixtureState, number: int, part: ReplayState) -> MixtureState:
        return MixtureState((*state.parts[:number], part, *state.parts[number + 1 :]))

    def _require_part(self, caller: str, part: int) -> None:
        require_integer(caller, "part", part, 0)
        if part >= len(self.buffers):
            raise ValueError(f"{caller}(part={part}): there are {len(self.buffers)} buffers, numbered from 0.")
