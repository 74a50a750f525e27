"""Several samplers on one ring, each with a fixed share of the batch.

P(i) = sum_c share_c P_c(i)
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_buffers._checks import require_number, require_tuple
from jaxrl_buffers._random.hashing import split
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.samplers._base import Wrapping
from jaxrl_buffers.samplers.uniform import Uniform
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import Draw, PyTree, Sampler, Scalar, Window

SHARE_TOLERANCE = 1e-9  # of a product such as 100 * 0.07, which is a little above 7


class MixState(NamedTuple):
    """The states of the main sampler and of the others."""

    sampler: PyTree
    others: tuple[PyTree, ...]


class Mix(Wrapping, Component):
    """Draw fixed shares of a batch by `others`, and the rest by the main `sampler`.

    Batches hold what the others drew first. A sampler that has nothing to draw is stood in for by the main one, which
    then draws more at once: so its own promises, such as drawing no start twice, hold for all that it draws. Weights
    are formed as the main sampler forms them, but from the probability of a start under the whole mixture, whichever
    sampler it came from. With `weighting="buffer"` the largest weight is a bound, not always reached: the least
    probability of any start is taken to be the sum of the least ones of all samplers that draw from everything.

    Args:
        sampler: the main sampler.
        others: more samplers.
        ratios: the share of each of them, in `[0, 1]`; together at most 1. Shares are rounded up to whole samples.

    Example:
        >>> import jaxrl_buffers as jb
        >>> sampler = jb.Mix(jb.Prioritized(), others=(jb.Uniform(),), ratios=(0.1,))
    """

    sampler: Sampler = Uniform()
    others: tuple[Sampler, ...] = ()
    ratios: tuple[float, ...] = field(static=True, default=())

    def __post_init__(self):
        require_tuple("Mix", "others", self.others, "samplers")
        require_tuple("Mix", "ratios", self.ratios, "numbers")
        for ratio in self.ratios:
            require_number("Mix", "ratios", ratio, 0, 1)
        if sum(self.ratios) > 1 + SHARE_TOLERANCE:
            raise ValueError(f"Mix(ratios={self.ratios}): the shares make up more than the batch; lower them.")
        if len(self.others) != len(self.ratios):
            raise ValueError(
                f"Mix(): {len(self.others)} other samplers have {len(self.ratios)} `ratios`; give one ratio for each."
            )

    def init(self, storage_shape: tuple[int, int], platform: str | None = None) -> MixState:
        """Return the states of all samplers."""
        others = tuple(other.init(storage_shape, platform) for other in self.others)
        return MixState(self.sampler.init(storage_shape, platform), others)

    def each(self, state: MixState, operation: Callable[[Sampler, PyTree], PyTree]) -> MixState:
        """Return the states of all samplers after an operation."""
        return MixState(operation(self.sampler, state.sampler), tuple(map(operation, self.others, state.others)))

    def draw(
        self, state: MixState, storage: Ring, key: jax.Array, batch_size: int, window: Window, progress: Scalar
    ) -> Draw:
        """Draw `batch_size` starts; consumes `key`."""
        *counts, rest = split_batch(batch_size, self.ratios)
        numbers = [number for number, count in enumerate(counts) if count]
        cases = [*itertools.product((False, True), repeat=len(numbers))]
        keys = iter(split(key, len(numbers) + len(cases)))

        def drawn(sampler: Sampler, state: PyTree, count: int) -> Draw:
            return sampler.draw(state, storage, next(keys), count, window, progress)

        parts = [drawn(self.others[number], state.others[number], counts[number]) for number in numbers]
        nothing = jnp.zeros(rest, jnp.int32), jnp.zeros(rest, jnp.float32)
        slots, mass = (jnp.concatenate(part) for part in zip(*(part[:2] for part in parts), nothing, strict=True))
        # How many are left to the main sampler is known at run time only, but it must draw them in one go: else it
        # could draw a start twice where it never does, or spread its draws unevenly over the environments.
        for is_empty in cases:
            is_main = np.repeat([*is_empty, True], [*(counts[number] for number in numbers), rest])
            if is_main.any():
                main = drawn(self.sampler, state.sampler, int(is_main.sum()))
                is_case = [(part.total > 0) != empty for part, empty in zip(parts, is_empty, strict=True)]
                taken = functools.reduce(jnp.logical_and, is_case, jnp.asarray(is_main))
                place = np.maximum(np.cumsum(is_main) - 1, 0)
                slots, mass = jnp.where(taken, main.slots[place], slots), jnp.where(taken, main.mass[place], mass)
        mixture = self._mixture(state, storage, slots, window, progress, [*counts, rest])
        mass = jnp.where(mass > 0, mixture.mass, 0)
        # Samplers that draw from different sets of starts may have missed the least probability of all.
        least = jnp.minimum(mixture.least, jnp.min(jnp.where(mass > 0, mass, jnp.inf)))
        return mixture._replace(slots=jnp.where(mass > 0, slots, 0), mass=mass, least=least)

    def measure(self, state: MixState, storage: Ring, slots: jax.Array, window: Window, progress: Scalar = 0.0) -> Draw:
        """Return what `draw` would tell of given slots."""
        return self._mixture(state, storage, slots, window, progress, [*self.ratios, max(1 - sum(self.ratios), 0)])

    def _mixture(
        self, state: MixState, storage: Ring, slots: jax.Array, window: Window, progress: Scalar, amounts: list[float]
    ) -> Draw:
        """Return the probabilities of slots when the samplers draw the given amounts, the main one last."""
        told = [
            sampler.measure(sampler_state, storage, slots, window, progress)
            for sampler, sampler_state in zip((*self.others, self.sampler), (*state.others, state.sampler), strict=True)
        ]
        least, totals, num_starts = (jnp.stack(parts) for parts in zip(*(draw[2:] for draw in told), strict=True))
        share = jnp.array(amounts, jnp.float32) / sum(amounts)
        stood_in_for = jnp.sum(jnp.where(totals > 0, 0, share))
        share = jnp.where(totals > 0, share.at[-1].add(stood_in_for), 0)
        # First divided by the total: a share of the inverse of a large total would be too small for a float32.
        divisor = jnp.where(totals > 0, totals, 1)
        probability = jnp.stack([draw.mass for draw in told]) / divisor[:, None]
        mass = jnp.sum(share[:, None] * probability, axis=0)
        num_starts = jnp.where(share > 0, num_starts, 0)
        draws_from_all = (share > 0) & (num_starts == jnp.max(num_starts))
        least = jnp.sum(jnp.where(draws_from_all, share * (least / divisor), 0))
        least = jnp.maximum(least, jnp.finfo(jnp.float32).tiny)  # zero would make every weight vanish
        least = jnp.where(jnp.any(share > 0), least, jnp.inf)
        return Draw(slots, mass, least, jnp.sum(share), jnp.max(num_starts))

    def observe(self, state: MixState, mean_return: Scalar) -> MixState:
        """Tell all samplers."""
        return self.each(state, lambda sampler, inner: sampler.observe(inner, mean_return))


def split_batch(batch_size: int, ratios: Sequence[float]) -> list[int]:
    """Return how many of `batch_size` each ratio amounts to, rounded up as long as there are any left, and the rest.

    Example:
        >>> split_batch(10, (0.25, 0.5))
        [3, 5, 2]
    """
    reached = (math.ceil(batch_size * end - SHARE_TOLERANCE) for end in itertools.accumulate(ratios))
    ends = [0, *(min(end, batch_size) for end in reached), batch_size]
    return [end - begin for begin, end in itertools.pairwise(ends)]
