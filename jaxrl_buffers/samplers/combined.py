"""Several samplers on one ring, each with a fixed share of every batch.

    P(i) = sum_c share_c P_c(i)

Sampler `c` draws `share_c` of the batch, and draws start `i` with probability `P_c(i)`.
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

from jaxrl_buffers import _mesh as mesh
from jaxrl_buffers._checks import require_number, require_tuple
from jaxrl_buffers._mesh import Axis
from jaxrl_buffers._random.hashing import split
from jaxrl_buffers.component import MESH_AXIS, Component, field
from jaxrl_buffers.samplers._base import Wrapping
from jaxrl_buffers.samplers.uniform import Uniform
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import Draw, PyTree, Sampler, Scalar, Window

SHARE_TOLERANCE = 1e-9  # 100 * 0.07 is a little above 7 in floating point, and must not be rounded up to 8


class CombinedState(NamedTuple):
    """The states of the main sampler and of the others."""

    sampler: PyTree
    others: tuple[PyTree, ...]


class Combined(Wrapping, Component):
    """Draw fixed shares of a batch by `others`, and the rest by the main `sampler`.

    A batch begins with the draws of the others, in their order. The draws of the main sampler follow. If one of the
    others has nothing to draw, the main sampler also draws its share. The main sampler draws all its starts in one
    call. Therefore guarantees of the main sampler, such as distinct starts, hold for all of its draws in a batch.

    The main sampler computes the weights from `P(i)`, the probability of a start under all samplers together. It does
    not matter which sampler drew the start. With `weighting="buffer"`, no weight is above 1, but the largest weight may
    be below 1. The reason is that the least `P(i)` of all starts would be costly to find, so a lower bound of it is
    used.

    To draw from several buffers, use `Mixture`.

    Args:
        sampler: the main sampler.
        others: the other samplers.
        ratios: the share of the batch that each of the others draws, in `[0, 1]`. Their sum is at most 1. Shares are
            rounded up to whole samples.

    Example:
        >>> import jaxrl_buffers as jb
        >>> sampler = jb.Combined(jb.Prioritized(), others=(jb.Uniform(),), ratios=(0.1,))
    """

    sampler: Sampler = Uniform()
    others: tuple[Sampler, ...] = ()
    ratios: tuple[float, ...] = field(static=True, default=())
    axis: Axis = field(static=True, default=None, kw_only=True, repr=False, metadata=MESH_AXIS)

    def __post_init__(self) -> None:
        require_tuple("Combined", "others", self.others, "samplers")
        require_tuple("Combined", "ratios", self.ratios, "numbers")
        for ratio in self.ratios:
            require_number("Combined", "ratios", ratio, 0, 1)
        if sum(self.ratios) > 1 + SHARE_TOLERANCE:
            raise ValueError(f"Combined(ratios={self.ratios}): the shares make up more than the batch; lower them.")
        if len(self.others) != len(self.ratios):
            raise ValueError(
                f"Combined(): got {len(self.others)} `others` and {len(self.ratios)} `ratios`; give one ratio for each."
            )

    @property
    def inner(self) -> tuple[Sampler, ...]:
        """The samplers inside."""
        return (self.sampler, *self.others)

    def init(self, storage_shape: tuple[int, int], platform: str | None = None) -> CombinedState:
        """Return the states of all samplers."""
        others = tuple(other.init(storage_shape, platform) for other in self.others)
        return CombinedState(self.sampler.init(storage_shape, platform), others)

    def each(self, state: CombinedState, operation: Callable[[Sampler, PyTree], PyTree]) -> CombinedState:
        """Return the states of all samplers after an operation."""
        return CombinedState(operation(self.sampler, state.sampler), tuple(map(operation, self.others, state.others)))

    def draw(
        self, state: CombinedState, storage: Ring, key: jax.Array, batch_size: int, window: Window, progress: Scalar
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
        # It is known only at run time which of the others have nothing to draw. But the main sampler must draw all its
        # starts in one call, and their number must be known when compiling. So it draws once for each case, and the
        # case that holds at run time is chosen. There are 2^c cases for c other samplers; c is 1 or 2 in practice.
        for is_empty in cases:
            is_main = np.repeat([*is_empty, True], [*(counts[number] for number in numbers), rest])
            if is_main.any():
                main = drawn(self.sampler, state.sampler, int(is_main.sum()))
                is_case = [(part.total > 0) != empty for part, empty in zip(parts, is_empty, strict=True)]
                taken = functools.reduce(jnp.logical_and, is_case, jnp.asarray(is_main))
                # The k-th place of the batch that the main sampler fills gets its k-th draw.
                place = np.maximum(np.cumsum(is_main) - 1, 0)
                slots, mass = jnp.where(taken, main.slots[place], slots), jnp.where(taken, main.mass[place], mass)
        mixture = self._mixture(state, storage, slots, window, progress, [*counts, rest])
        mass = jnp.where(mass > 0, mixture.mass, 0)
        # If samplers draw from different sets of starts, the bound may be above the least probability of all starts. It
        # must not be above the probability of a drawn start, because the weight of that start would then be above 1.
        least_drawn = mesh.smallest(jnp.min(jnp.where(mass > 0, mass, jnp.inf)), self.axis)
        least = jnp.minimum(mixture.least, least_drawn)
        return mixture._replace(slots=jnp.where(mass > 0, slots, 0), mass=mass, least=least)

    def measure(
        self, state: CombinedState, storage: Ring, slots: jax.Array, window: Window, progress: Scalar = 0.0
    ) -> Draw:
        """Return the `Draw` of `slots`, as if they had been drawn. A slot that cannot be drawn has a mass of zero."""
        return self._mixture(state, storage, slots, window, progress, [*self.ratios, max(1 - sum(self.ratios), 0)])

    def _mixture(
        self,
        state: CombinedState,
        storage: Ring,
        slots: jax.Array,
        window: Window,
        progress: Scalar,
        amounts: list[float],
    ) -> Draw:
        """Return the probabilities of slots if each sampler draws its amount. The main sampler's amount is the last."""
        measured = [
            sampler.measure(sampler_state, storage, slots, window, progress)
            for sampler, sampler_state in zip((*self.others, self.sampler), (*state.others, state.sampler), strict=True)
        ]
        least, totals, num_starts = (jnp.stack(parts) for parts in zip(*(draw[2:5] for draw in measured), strict=True))
        masses = jnp.stack([draw.mass for draw in measured])
        share, mass = _shared(masses, totals, amounts)
        factor = 1.0
        if self.axis is not None:  # the probability of a slot among the slots of all devices counts
            here, least = mass, mesh.smallest(least, self.axis)
            totals, num_starts = mesh.total((totals, num_starts.astype(jnp.float32)), self.axis)
            share, mass = _shared(masses, totals, amounts)
            factor = mesh.num_devices(self.axis) * mass / jnp.where(here > 0, here, 1)
        divisor = jnp.where(totals > 0, totals, 1)
        num_starts = jnp.where(share > 0, num_starts, 0)
        # The samplers that can draw every start each have a least probability. The sum of these is a lower bound for
        # every start. Samplers that draw from a part of the starts may add nothing to it.
        draws_from_all = (share > 0) & (num_starts == jnp.max(num_starts))
        least = jnp.sum(jnp.where(draws_from_all, share * (least / divisor), 0))
        least = jnp.maximum(least, jnp.finfo(jnp.float32).tiny)  # zero would make every weight vanish
        least = jnp.where(jnp.any(share > 0), least, jnp.inf)
        return Draw(slots, mass, least, jnp.sum(share), jnp.max(num_starts), factor)

    def report_return(self, state: CombinedState, mean_return: Scalar) -> CombinedState:
        """Pass the report on to all samplers."""
        return self.each(state, lambda sampler, inner: sampler.report_return(inner, mean_return))


def _shared(masses: jax.Array, totals: jax.Array, amounts: list[float]) -> tuple[jax.Array, jax.Array]:
    """Return the share of each sampler `[C]`, and the probabilities `[B]` of slots under all samplers together.

    Args:
        masses: `[C, B]`, the mass that each sampler gives to each slot.
        totals: `[C]`, the mass of all starts of each sampler.
        amounts: how much each sampler draws; the main sampler is the last.
    """
    share = jnp.array(amounts, jnp.float32) / sum(amounts)
    # The main sampler also draws the shares of the samplers that have nothing to draw.
    share_of_empty = jnp.sum(jnp.where(totals > 0, 0, share))
    share = jnp.where(totals > 0, share.at[-1].add(share_of_empty), 0)
    # The mass is divided by the total first: share / total may be too small for a float32 if the total is large.
    probability = masses / jnp.where(totals > 0, totals, 1)[:, None]
    return share, jnp.sum(share[:, None] * probability, axis=0)


def split_batch(batch_size: int, ratios: Sequence[float]) -> list[int]:
    """Split a batch by ratios: return one count for each ratio, and the rest as the last count.

    The sum of the counts up to each ratio is rounded up, and is at most `batch_size`.

    Example:
        >>> split_batch(10, (0.25, 0.5))
        [3, 5, 2]
    """
    reached = (math.ceil(batch_size * end - SHARE_TOLERANCE) for end in itertools.accumulate(ratios))
    ends = [0, *(min(end, batch_size) for end in reached), batch_size]
    return [end - begin for begin, end in itertools.pairwise(ends)]
