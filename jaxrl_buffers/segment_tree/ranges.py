"""Sums, searches and draws in ranges of leaves, answered from canonical nodes.

The canonical nodes of a range are the few nodes whose leaves together are exactly the range. The mass of a range is the
sum of their masses. Subtracting two prefix sums would lose precision for a small range beside large leaves. With a
fan-out of 4, the range 2..13 has these canonical nodes:

    level 1                    4-7     8-11
    level 0          2, 3                        12, 13

Cost for `R` ranges and a batch of `B`: `O((R + B) log N)`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_buffers.segment_tree import _places as places
from jaxrl_buffers.segment_tree._parents import NOTHING, Summary, summarize
from jaxrl_buffers.segment_tree._places import Place
from jaxrl_buffers.segment_tree.search import pick
from jaxrl_buffers.segment_tree.tree import (
    NOT_FOUND,
    SegmentTree,
    masses,
    num_levels,
    read,
    root,
    row_stats,
    rows_by_level,
)


class Cover(NamedTuple):
    """The canonical nodes of ranges, in groups of siblings from left to right."""

    stats: jax.Array  # float32[R, groups, 3, fan_out]; siblings that are not canonical count as having no leaves
    first: jax.Array  # int32[R, groups]: the index of the first sibling on its level
    level: jax.Array  # int32[R, groups]


def reduce(tree: SegmentTree, start: jax.Array | int | None = None, stop: jax.Array | int | None = None) -> Summary:
    """Summarize the leaves `start..stop-1`; by default all.

    Example:
        >>> import jaxrl_buffers as jb
        >>> print(reduce(jb.segment_tree.from_leaves(jnp.array([1.0, 5.0, 2.0, 1.0])), 1, 3).total)
        7.0
    """
    if start is None and stop is None:
        return root(tree)
    return summarize(jnp.moveaxis(_cover_one(tree, start, stop).stats[0], 0, 1).reshape(3, -1))


def find_between(tree: SegmentTree, start: jax.Array | int, stop: jax.Array | int, thresholds: jax.Array) -> jax.Array:
    """Do what `find` does, but only among the leaves `start..stop-1`. The prefix sums begin at `start`.

    Example:
        >>> import jaxrl_buffers as jb
        >>> tree = jb.segment_tree.from_leaves(jnp.array([1.0, 5.0, 2.0, 1.0]))
        >>> print(find_between(tree, 1, 3, jnp.array([4.5, 5.5])))
        [1 2]
    """
    nodes = jax.tree.map(lambda part: part[0], _cover_one(tree, start, stop))
    group_masses = jnp.sum(nodes.stats[:, 0], axis=-1)
    shape = (thresholds.shape[0], group_masses.shape[0])
    group, place = pick(jnp.broadcast_to(group_masses, shape), places.at(thresholds))
    node = _descend(tree, nodes.stats[group, 0], nodes.first[group], nodes.level[group], place)
    total = jnp.sum(group_masses)
    return jnp.where((thresholds > total) | (total == 0), NOT_FOUND, node)


def cover(tree: SegmentTree, begins: jax.Array, ends: jax.Array) -> Cover:
    """Return the canonical nodes of the ranges `begins[r]..ends[r]-1`: two groups of siblings on each level."""
    begin = jnp.clip(begins.astype(jnp.int32), 0, tree.capacity)
    end = jnp.clip(ends.astype(jnp.int32), begin, tree.capacity)
    top = num_levels(tree) - 1
    pairs = []  # the left and the right group of each level
    for level in range(top + 1):
        up, down = -(-begin // tree.fan_out), end // tree.fan_out
        within_one_row = (up > down) | (level == top)
        left_end = jnp.where(within_one_row, end, up * tree.fan_out)
        right_begin = jnp.where(within_one_row, end, down * tree.fan_out)
        sides = (begin // tree.fan_out, down), (begin, right_begin), (left_end, end)
        pairs.append(_groups(tree, level, *(jnp.stack(side, axis=1) for side in sides)))
        begin, end = jnp.where(within_one_row, 0, up), jnp.where(within_one_row, 0, down)
    parts = (jnp.stack(part, axis=1) for part in zip(*pairs, strict=True))  # [R, levels, 2, ...]
    return Cover(*(jnp.concatenate([part[:, :, 0], part[:, ::-1, 1]], axis=1) for part in parts))


def _cover_one(tree: SegmentTree, start: jax.Array | int | None, stop: jax.Array | int | None) -> Cover:
    """Return the canonical nodes of one range, by default of all leaves."""
    begin, end = 0 if start is None else start, tree.capacity if stop is None else stop
    return cover(tree, jnp.asarray(begin)[None], jnp.asarray(end)[None])


def _groups(tree: SegmentTree, level: int, rows: jax.Array, begins: jax.Array, ends: jax.Array) -> Cover:
    """Return the nodes `begins..ends-1` of rows `[R, 2]` of a level, as groups of siblings."""
    rows = jnp.clip(rows, 0, rows_by_level(tree)[level] - 1)
    index = rows[..., None] * tree.fan_out + jnp.arange(tree.fan_out, dtype=jnp.int32)[None, None]
    inside = (index >= begins[..., None]) & (index < ends[..., None])
    nothing = jnp.array(NOTHING, jnp.float32)[None, None, :, None]
    stats = jnp.where(inside[..., None, :], row_stats(tree, level, rows), nothing)
    return Cover(stats, index[..., 0], jnp.full_like(rows, level))


def reduce_ranges(tree: SegmentTree, begins: jax.Array, ends: jax.Array) -> Summary:
    """Summarize the leaves of the ranges `begins[r]..ends[r]-1`, which must not overlap."""
    return _summarize_all(cover(tree, begins, ends))


def draw_ranges(
    tree: SegmentTree, key: jax.Array, batch_size: int, begins: jax.Array, ends: jax.Array, stratified: bool = True
) -> tuple[jax.Array, jax.Array, Summary]:
    """Draw leaves inside ranges with probability `leaf / total of the ranges`; consumes `key`.

    Args:
        tree: the tree.
        key: a PRNG key.
        batch_size: how many leaves to draw, with replacement.
        begins: `int32[R]`.
        ends: `int32[R]`; the ranges `begins[r]..ends[r]-1` must not overlap.
        stratified: draw one leaf from each of `batch_size` equal parts of the mass, instead of independently.

    Returns:
        Indices `int32[B]`, their leaves `float32[B]` (zero for empty ranges), and the summary of the ranges.

    Example:
        >>> import jaxrl_buffers as jb
        >>> tree = jb.segment_tree.from_leaves(jnp.array([1.0, 5.0, 2.0, 1.0]))
        >>> begins, ends = jnp.array([3, 0]), jnp.array([4, 1])
        >>> indices, leaves, summary = jax.jit(draw_ranges, static_argnums=2)(tree, jax.random.key(0), 2, begins, ends)
        >>> print(indices, leaves, summary.total)
        [3 0] [1. 1.] 2.0
    """
    covers = cover(tree, begins, ends)
    summary = _summarize_all(covers)
    group_masses = jnp.sum(covers.stats[:, :, 0], axis=-1)
    range_masses = jnp.sum(group_masses, axis=-1)
    chosen, place = _choose_range(range_masses, places.draw(key, batch_size, summary.total, stratified))
    group, place = pick(group_masses[chosen], place)
    first, level = covers.first[chosen, group], covers.level[chosen, group]
    node = _descend(tree, covers.stats[chosen, group, 0], first, level, place)
    return node, jnp.where(summary.total > 0, read(tree, node), 0), summary


def _descend(tree: SegmentTree, siblings: jax.Array, first: jax.Array, level: jax.Array, place: Place) -> jax.Array:
    """Follow places down to leaves, from siblings `first[B], ...` of any level with masses `[B, fan_out]`."""
    child, place = pick(siblings, place, tree.is_wide)
    node = first + child
    for parent_level in range(num_levels(tree) - 1, 0, -1):
        child, below = pick(masses(tree, parent_level - 1, node), place, tree.is_wide)
        inside = level >= parent_level
        node = jnp.where(inside, node * tree.fan_out + child, node)
        place = jax.tree.map(functools.partial(jnp.where, inside), below, place)
    return node


def _summarize_all(covers: Cover) -> Summary:
    total, least, largest = covers.stats[:, :, 0], covers.stats[:, :, 1], covers.stats[:, :, 2]
    return Summary(jnp.sum(total), jnp.min(least), jnp.max(largest))


def _choose_range(range_masses: jax.Array, place: Place) -> tuple[jax.Array, Place]:
    """Return for each place the range that contains it, which is never empty, and its offset in that range."""
    ends = jnp.cumsum(range_masses)
    last = jnp.max(jnp.where(range_masses > 0, jnp.arange(range_masses.shape[0]), 0))
    chosen = jnp.searchsorted(ends, places.before(place), side="right")
    chosen = jnp.minimum(chosen, last).astype(jnp.int32)
    return chosen, places.minus(place, jnp.where(chosen > 0, ends[jnp.maximum(chosen - 1, 0)], 0))
