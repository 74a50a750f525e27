"""Leaves found by prefix sum, or drawn in proportion to their mass.

In narrow rows a search looks at the children of a node one after the other, as columns of a batch, which makes two
kernels of a level on a CPU: a gather and a choice. With a triangular product for the prefix sums there were five
(samples of 256 on two CPU cores: 59 us against 50). Wide rows are looked at as a whole.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_buffers._random.hashing import unrolled
from jaxrl_buffers._xla import as_fraction, keep
from jaxrl_buffers.segment_tree.tree import SegmentTree, Summary, masses, root, rows_by_level, whole_level

FIRST_ROWS = 4  # a search begins at the first level of so few rows
FIRST_BITS = 6  # what the choice among them is taken to use up of a random number, at least
MOST_STRATA = 2**12  # more of them leave too few of the bits of a float32 to tell places within each apart
SEARCH_BITS = 13  # a float32 uniform has 23 bits; a search uses so many of them, which leaves ten to be fair with


def find(tree: SegmentTree, thresholds: jax.Array) -> jax.Array:
    """Return the smallest index whose inclusive prefix sum exceeds each threshold.

    Never a zero leaf: a threshold equal to the total finds the last non-zero leaf. A threshold above the total, or
    a tree of zeros, gives -1.
    """
    total = root(tree).total
    indices, _ = _descend(tree, thresholds.astype(jnp.float32))
    return jnp.where((thresholds > total) | (total == 0), -1, indices)


def draw(
    tree: SegmentTree, key: jax.Array, batch_size: int, stratified: bool = True
) -> tuple[jax.Array, jax.Array, Summary]:
    """Draw leaves with probability `leaf / total`; consumes `key`.

    Given the node that was reached, the place inside it is uniform again, so it is drawn afresh every few levels:
    one float32 number could not tell more than 2^24 leaves apart.

    Args:
        tree: the tree.
        key: a PRNG key.
        batch_size: how many leaves to draw, with replacement.
        stratified: one draw from each of `batch_size` equal parts of the mass instead of independent draws. Up to
            4096 parts are kept but for rounding, by less than 1e-6 of the whole mass. Of more parts, those that lie
            within a node at which a number is drawn afresh share their draws; such nodes exist above 2048 leaves.

    Returns:
        Indices `int32[B]`, their leaves `float32[B]` (zero for an empty tree), and the summary of all leaves.
    """
    uniforms = _uniforms(tree, key, batch_size)
    summary = root(tree)
    places = fractions(uniforms[0], stratified)
    room = room_of(places, summary.total) if stratified else None
    indices, leaves = _descend(tree, places * summary.total, uniforms[1:], room)
    return indices, leaves, summary


def fractions(uniforms: jax.Array, stratified: bool) -> jax.Array:
    """Return the places `[B]` in `[0, 1)` at which to draw: as given, or one in each of `B` equal parts."""
    if not stratified:
        return uniforms
    stratum = np.arange(uniforms.shape[0], dtype=np.float32)
    # Rounding must not carry a draw over into the next stratum.
    last_inside = np.nextafter(stratum + 1, np.float32(0))
    return as_fraction(jnp.minimum(stratum + uniforms, last_inside) / uniforms.shape[0])


class Room(NamedTuple):
    """How far draws are from the ends of their strata: the same inside every node on the way down."""

    before: jax.Array  # float32[B]
    behind: jax.Array  # float32[B]


def room_of(places: jax.Array, total: jax.Array) -> Room | None:
    """Return the room of stratified places, as masses; none for too many strata."""
    if places.shape[0] > MOST_STRATA:
        return None
    ends = np.arange(places.shape[0] + 1, dtype=np.float32) / np.float32(places.shape[0])
    return Room((places - ends[:-1]) * total, (jnp.asarray(ends[1:]) - places) * total)


def draw_afresh(
    uniforms: jax.Array, residual: jax.Array, mass: jax.Array, room: Room | None
) -> tuple[jax.Array, Room | None]:
    """Draw another place inside the mass that was reached, and inside the stratum; return the room there, too."""
    if room is None:
        return uniforms * mass, None
    begin = jnp.clip(residual - room.before, 0, mass)
    end = jnp.clip(residual + room.behind, begin, mass)
    # Kept, else all levels above are computed anew below: a draw of 256 among 2^20 took 59 microseconds, not 54.
    drawn = keep(begin + uniforms * (end - begin))
    return drawn, Room(room.before + (drawn - residual), room.behind - (drawn - residual))


def pick(masses: jax.Array, residual: jax.Array, wide: bool = False) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the first child `[B]` of `masses[B, M]` whose prefix exceeds the residual, what is left of it, its mass.

    Rounding can put the residual past the last child; then the last one with any mass is taken. A child of mass zero
    is never taken unless all are zero.

    Args:
        masses: `[B, M]`; of wide rows also `[1, M]`, the same for all.
        residual: `[B]`.
        wide: look at all children at once instead of one after the other.
    """
    return _pick_lane(masses, residual) if wide else _pick_column(masses, residual)


def _pick_column(masses: jax.Array, residual: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    children = [masses[:, number] for number in range(masses.shape[-1])]
    child = jnp.zeros(residual.shape, jnp.int32)
    prefix, found = jnp.zeros_like(residual), jnp.zeros(residual.shape, bool)
    for number, mass in enumerate(children):
        is_better = (mass > 0) & ~found
        child = jnp.where(is_better, number, child)
        prefix = prefix + mass
        found = found | (is_better & (prefix > residual))
    child = keep(child)  # else it is computed anew for every use, with all the levels above it
    before, chosen = jnp.zeros_like(residual), jnp.zeros_like(residual)
    for number, mass in enumerate(children):
        before = before + jnp.where(number < child, mass, 0)
        chosen = jnp.where(number == child, mass, chosen)
    return child, residual - before, chosen


def _pick_lane(masses: jax.Array, residual: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Past the last child, infinity is left of the residual: further down, too, the last one is to be taken."""
    width = masses.shape[-1]
    lane, residuals = jnp.arange(width, dtype=jnp.int32)[None], residual[:, None]
    prefix = jnp.cumsum(masses, axis=-1)
    # The first child that exceeds the residual is best, then the last one with mass.
    rank = jnp.where(masses > 0, jnp.where(prefix > residuals, lane, 2 * width - lane), 3 * width)
    best = jnp.min(rank, axis=-1)
    child = jnp.where(best < width, best, jnp.maximum(2 * width - best, 0))
    before = jnp.max(jnp.where(lane < child[:, None], prefix, 0), axis=-1)
    chosen = jnp.max(jnp.where(lane == child[:, None], masses, 0), axis=-1)
    return child, jnp.where(best < width, residual - before, jnp.inf), chosen


def _uniforms(tree: SegmentTree, key: jax.Array, batch_size: int) -> list[jax.Array]:
    """Return the numbers `[B]` that a draw takes, the first for the top; it is the same for every fan-out."""
    key, count = unrolled(key), 1 + len(_levels_to_redraw(tree))
    if tree.is_wide:  # in one go
        key = jax.random.split(key, 1)[0]
        return jnp.split(jax.random.uniform(key, (count * batch_size,), jnp.float32), count)
    return [jax.random.uniform(key, (batch_size,), jnp.float32) for key in jax.random.split(key, count)]


def _first_level(tree: SegmentTree) -> int:
    """Return the level at which a search begins."""
    return next(level for level, rows in enumerate(rows_by_level(tree)) if rows <= FIRST_ROWS)


def _levels_to_redraw(tree: SegmentTree) -> list[int]:
    """Return the levels before which the random number of a draw is used up, from the top."""
    num_rows, first = rows_by_level(tree), _first_level(tree)
    bits_a_level = (tree.fan_out - 1).bit_length()
    num_nodes = num_rows[first - 1] if first > 0 else tree.capacity
    used, levels = max(FIRST_BITS, (num_nodes - 1).bit_length()), []
    for level in range(first - 1, -1, -1):
        used += bits_a_level
        if used > SEARCH_BITS:
            used = bits_a_level
            levels.append(level)
    return levels


def _descend(
    tree: SegmentTree, residual: jax.Array, uniforms: list[jax.Array] | None = None, room: Room | None = None
) -> tuple[jax.Array, jax.Array]:
    """Follow residuals `[B]` from the top to leaves; `uniforms`, `[B]` each, redraw them on the way within `room`."""
    # All begin among the same few nodes, which need not be gathered for each of them.
    first = _first_level(tree)
    nodes = whole_level(tree, first)[:, 0].reshape(-1)
    shape = (1 if tree.is_wide else residual.shape[0], nodes.shape[0])
    node, residual, mass = pick(jnp.broadcast_to(nodes, shape), residual, tree.is_wide)
    redraws = {} if uniforms is None else dict(zip(_levels_to_redraw(tree), uniforms, strict=True))
    for level in range(first - 1, -1, -1):
        if level in redraws:
            residual, room = draw_afresh(redraws[level], residual, mass, room)
        child, residual, mass = pick(masses(tree, level, node), residual, tree.is_wide)
        node = node * tree.fan_out + child
    return node, mass
