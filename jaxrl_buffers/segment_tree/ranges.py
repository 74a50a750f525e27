"""Questions to a segment tree about ranges of leaves, answered from canonical nodes, so that nothing cancels.

Cost for `R` ranges and a batch of `B`: `O((R + B) log N)`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_buffers._random.hashing import unrolled
from jaxrl_buffers.segment_tree._parents import NOTHING
from jaxrl_buffers.segment_tree.search import Room, draw_afresh, fractions, pick, room_of
from jaxrl_buffers.segment_tree.tree import (
    SegmentTree,
    Summary,
    masses,
    num_levels,
    root,
    row_stats,
    rows_by_level,
    summarize,
)

BITS_PER_UNIFORM = 11  # how much of the 23 random bits of a float32 may be used up before a fresh number is drawn


class Cover(NamedTuple):
    """The canonical nodes of ranges, in groups of siblings from left to right; other siblings count as nothing."""

    stats: jax.Array  # float32[R, groups, 3, fan_out]
    first: jax.Array  # int32[R, groups]: the index of the first sibling within its level
    level: jax.Array  # int32[R, groups]


def reduce(tree: SegmentTree, start: jax.Array | int | None = None, stop: jax.Array | int | None = None) -> Summary:
    """Summarize the leaves `start..stop-1` (by default all) from canonical nodes."""
    if start is None and stop is None:
        return root(tree)
    return summarize(jnp.moveaxis(_cover_one(tree, start, stop).stats[0], 0, 1).reshape(3, -1))


def find_between(tree: SegmentTree, start: jax.Array | int, stop: jax.Array | int, thresholds: jax.Array) -> jax.Array:
    """Like `find` among the leaves `start..stop-1`, with prefix sums counted from `start`."""
    nodes = jax.tree.map(lambda part: part[0], _cover_one(tree, start, stop))
    group_masses = jnp.sum(nodes.stats[:, 0], axis=-1)
    shape = (thresholds.shape[0], group_masses.shape[0])
    group, residual, _ = pick(jnp.broadcast_to(group_masses, shape), thresholds.astype(jnp.float32))
    child, residual, _ = pick(nodes.stats[group, 0], residual, tree.is_wide)
    node, level = nodes.first[group] + child, nodes.level[group]
    for parent_level in range(num_levels(tree) - 1, 0, -1):
        child, below, _ = pick(masses(tree, parent_level - 1, node), residual, tree.is_wide)
        inside = level >= parent_level
        node = jnp.where(inside, node * tree.fan_out + child, node)
        residual = jnp.where(inside, below, residual)
    total = jnp.sum(group_masses)
    return jnp.where((thresholds > total) | (total == 0), -1, node)


def cover(tree: SegmentTree, begins: jax.Array, ends: jax.Array) -> Cover:
    """Cover each range of leaves `begins[r]..ends[r]-1` by at most two groups of siblings a level."""
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
    """Cover one range, which by default reaches from the first leaf to the last."""
    begin, end = 0 if start is None else start, tree.capacity if stop is None else stop
    return cover(tree, jnp.asarray(begin)[None], jnp.asarray(end)[None])


def _groups(tree: SegmentTree, level: int, rows: jax.Array, begins: jax.Array, ends: jax.Array) -> Cover:
    """Return, of each of the rows `[R, 2]`, the nodes `begins..ends-1`."""
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
        stratified: one draw from each of `batch_size` equal parts of the mass instead of independent draws.

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
    has_many = begins.shape[0] > 2**BITS_PER_UNIFORM  # to choose among so many ranges wears a number out
    key, key_inside = jax.random.split(unrolled(key)) if has_many else (unrolled(key), None)
    covers = cover(tree, begins, ends)
    summary = _summarize_all(covers)
    height = num_levels(tree)
    uniforms = jax.random.uniform(key, (height, batch_size), jnp.float32)
    places = fractions(uniforms[0], stratified)
    residual, room = places * summary.total, room_of(places, summary.total) if stratified else None
    group_masses = jnp.sum(covers.stats[:, :, 0], axis=-1)
    range_masses = jnp.sum(group_masses, axis=-1)
    chosen, residual = _choose_range(range_masses, residual)
    drawn_for = jnp.broadcast_to(summary.total, residual.shape)
    if key_inside is not None:
        fresh = jax.random.uniform(key_inside, (batch_size,), jnp.float32)
        residual, drawn_for, room = _drawn_afresh(fresh, range_masses[chosen], residual, drawn_for, room)
    group, residual, _ = pick(group_masses[chosen], residual)
    child, residual, mass = pick(covers.stats[chosen, group, 0], residual, tree.is_wide)
    node, level = covers.first[chosen, group] + child, covers.level[chosen, group]
    for parent_level in range(height - 1, 0, -1):
        residual, drawn_for, room = _drawn_afresh(uniforms[parent_level], mass, residual, drawn_for, room)
        child, below, child_mass = pick(masses(tree, parent_level - 1, node), residual, tree.is_wide)
        inside = level >= parent_level
        node = jnp.where(inside, node * tree.fan_out + child, node)
        residual, mass = jnp.where(inside, below, residual), jnp.where(inside, child_mass, mass)
    return node, mass, summary


def _summarize_all(covers: Cover) -> Summary:
    total, least, largest = covers.stats[:, :, 0], covers.stats[:, :, 1], covers.stats[:, :, 2]
    return Summary(jnp.sum(total), jnp.min(least), jnp.max(largest))


def _drawn_afresh(
    fresh: jax.Array, mass: jax.Array, residual: jax.Array, drawn_for: jax.Array, room: Room | None
) -> tuple[jax.Array, jax.Array, Room | None]:
    """Replace the place inside the mass that was reached where the number drawn for a larger mass is used up.

    Given what was reached, the place inside it is uniform again; see `draw`.
    """
    is_worn = mass * 2**BITS_PER_UNIFORM < drawn_for
    drawn, room_there = draw_afresh(fresh, residual, mass, room)
    room = jax.tree.map(lambda new, old: jnp.where(is_worn, new, old), room_there, room)
    return jnp.where(is_worn, drawn, residual), jnp.where(is_worn, mass, drawn_for), room


def _choose_range(range_masses: jax.Array, thresholds: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the range `[B]` in which each threshold falls, and the rest of it there; never an empty range."""
    ends = jnp.cumsum(range_masses)
    last = jnp.max(jnp.where(range_masses > 0, jnp.arange(range_masses.shape[0]), 0))
    chosen = jnp.minimum(jnp.searchsorted(ends, thresholds, side="right"), last).astype(jnp.int32)
    return chosen, thresholds - jnp.where(chosen > 0, ends[jnp.maximum(chosen - 1, 0)], 0)
