"""Leaves found by prefix sum, or drawn in proportion to their mass.

In narrow rows a search looks at the children of a node one after the other, as columns of a batch, which makes two
kernels of a level on a CPU: a gather and a choice. With a triangular product for the prefix sums there were five
(samples of 256 on two CPU cores: 59 us against 50). Wide rows are looked at as a whole.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl_buffers._xla import keep
from jaxrl_buffers.segment_tree import _places as places
from jaxrl_buffers.segment_tree._places import Place
from jaxrl_buffers.segment_tree._sums import Summary
from jaxrl_buffers.segment_tree.tree import (
    SegmentTree,
    first_small_level,
    masses,
    read,
    root,
    rows_by_level,
    whole_level,
)

FIRST_ROWS = 4  # a search begins at the first level of so few rows
# Places are kept every so many levels: XLA's CPU backend computes others anew from those above. A draw of 256 among
# 2^20 is then 27 kernels of 394k operations in all; 29 of 363k if they are kept every two levels.
LEVELS_TO_KEEP = 3


def find(tree: SegmentTree, thresholds: jax.Array) -> jax.Array:
    """Return the smallest index whose inclusive prefix sum exceeds each threshold.

    Never a zero leaf: a threshold equal to the total finds the last non-zero leaf. A threshold above the total, or
    a tree of zeros, gives -1.
    """
    total = root(tree).total
    indices, _ = _descend(tree, _nodes_to_begin_with(tree)[0], places.at(thresholds))
    return jnp.where((thresholds > total) | (total == 0), -1, indices)


def draw(
    tree: SegmentTree, key: jax.Array, batch_size: int, stratified: bool = True
) -> tuple[jax.Array, jax.Array, Summary]:
    """Draw leaves with probability `leaf / total`; consumes `key`.

    Trees of the same leaves give the same draws whatever their fan-out is, as far as their sums are exact; others
    differ where a place is so close to the border of two leaves that the order of summation decides.

    Args:
        tree: the tree.
        key: a PRNG key.
        batch_size: how many leaves to draw, with replacement.
        stratified: one draw from each of `batch_size` equal parts of the mass instead of independent draws. They are
            kept but for the rounding of sums, by less than 1e-6 of the whole mass.

    Returns:
        Indices `int32[B]`, their leaves `float32[B]` (zero for an empty tree), and the summary of all leaves.
    """
    nodes, total = _nodes_to_begin_with(tree)
    indices, leaves = _descend(tree, nodes, places.draw(key, batch_size, total, stratified))
    return indices, leaves, root(tree)


def pick(masses: jax.Array, place: Place, wide: bool = False) -> tuple[jax.Array, Place]:
    """Return the first child `[B]` of `masses[B, M]` whose prefix exceeds the place, and the place inside it.

    Rounding can put the place past the last child; then the last one with any mass is taken. A child of mass zero is
    never taken unless all are zero.

    Args:
        masses: `[B, M]`; of wide rows also `[1, M]`, the same for all.
        place: `[B]`.
        wide: look at all children at once instead of one after the other.
    """
    return _pick_lane(reach(masses), place) if wide else _pick_column(masses, place)[:2]


def _pick_column(masses: jax.Array, place: Place) -> tuple[jax.Array, Place, jax.Array]:
    """Return the mass of the child, too."""
    children = [masses[:, number] for number in range(masses.shape[-1])]
    prefixes = [*itertools.accumulate(children)]
    # Never past the last child with any mass, which is the first one to reach the sum.
    limit = jnp.minimum(places.before(place), places.previous(prefixes[-1]))
    limit = jnp.where(prefixes[-1] > 0, limit, -1)
    child = sum(((prefix <= limit).astype(jnp.int32) for prefix in prefixes[:-1]), jnp.zeros(limit.shape, jnp.int32))
    child = keep(child)  # else it is computed anew for every use, with all the levels above it
    before, chosen = jnp.zeros_like(limit), children[0]
    for number, mass in enumerate(children[1:], 1):
        before = before + jnp.where(number <= child, children[number - 1], 0)
        chosen = jnp.where(number == child, mass, chosen)
    return child, places.behind(place, before), chosen


def reach(masses: jax.Array) -> jax.Array:
    """Return up to where each of the children `[..., M]` reaches: its inclusive prefix sum, or -1 if it has no mass."""
    return jnp.where(masses > 0, jnp.cumsum(masses, axis=-1), -1)


def _pick_lane(reach: jax.Array, place: Place) -> tuple[jax.Array, Place]:
    """Past the last child, the place is infinity: further down, too, the last one is to be taken."""
    width = reach.shape[-1]
    lane = np.arange(width, dtype=np.int32)[None]
    is_behind = reach > places.before(place)[:, None]
    # The first child that reaches behind the place is best, then the last one with mass.
    rank = jnp.where(is_behind, lane, jnp.where(reach > 0, 2 * width - lane, np.int32(3 * width)))
    best, passed = lax.reduce(
        (rank, jnp.where(is_behind, 0, reach)),
        (np.int32(3 * width), np.float32(0)),
        lambda one, other: (lax.min(one[0], other[0]), lax.max(one[1], other[1])),
        (1,),
    )
    child, rest = jnp.where(best < width, best, jnp.maximum(2 * width - best, 0)), places.behind(place, passed)
    return child, Place(jnp.where(best < width, rest.high, jnp.inf), jnp.where(best < width, rest.low, 0))


def _first_level(tree: SegmentTree) -> int:
    """Return the level at which a search begins."""
    return next(level for level, rows in enumerate(rows_by_level(tree)) if rows <= FIRST_ROWS)


def _nodes_to_begin_with(tree: SegmentTree) -> tuple[dict[int, jax.Array], jax.Array]:
    """Return what a search asks of small levels, by level, and the total.

    Of narrow trees that is the masses of the first level; of wide ones, how far the nodes of each small level reach.
    Levels that are not stored are summed up here, in any order: nobody keeps the sums.
    """
    first = _first_level(tree)
    if not tree.is_wide:
        return {first: whole_level(tree, first)[:, 0].reshape(-1)}, root(tree).total
    nodes = whole_level(tree, first_small_level(tree))[:, 0]
    found = {}
    for level in range(first_small_level(tree), first):
        found[level], sums = reach(nodes), jnp.sum(nodes, axis=-1)
        rows = (-1, tree.fan_out) if level + 1 < first else (1, -1)
        nodes = jnp.pad(sums, (0, -sums.shape[0] % abs(rows[1]))).reshape(rows)
    nodes = nodes.reshape(1, -1)
    return found | {first: reach(nodes)}, jnp.sum(nodes)


def _descend(tree: SegmentTree, nodes: dict[int, jax.Array], place: Place) -> tuple[jax.Array, jax.Array]:
    """Follow places `[B]` from the top to leaves and their masses."""
    # All begin among the same few nodes, which need not be gathered for each of them.
    first = _first_level(tree)
    if tree.is_wide:
        node, place = _pick_lane(nodes[first], place)
        for level in range(first - 1, -1, -1):
            rows = nodes[level].at[node].get(mode="clip") if level in nodes else reach(masses(tree, level, node))
            child, place = _pick_lane(rows, place)
            node = node * tree.fan_out + child
        return node, read(tree, node)
    mass = nodes[first]
    node, place, mass = _pick_column(jnp.broadcast_to(mass, (*place.high.shape, *mass.shape)), place)
    for level in range(first - 1, -1, -1):
        if (first - level) % LEVELS_TO_KEEP == 0:
            place = Place(*(keep(part, unknown=node[0]) for part in place))
        child, place, mass = _pick_column(masses(tree, level, node), place)
        node = node * tree.fan_out + child
    return node, mass
