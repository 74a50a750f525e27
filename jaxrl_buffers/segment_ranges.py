"""Questions to a segment tree about several ranges of leaves taken together, answered from canonical nodes.

Part of `segment_tree`, kept apart for its length. Cost for `R` ranges and a batch of `B`: `O((R + B) log N)`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_buffers import segment_tree
from jaxrl_buffers.segment_tree import FAN_OUT, Room, SegmentTree, Summary

BITS_PER_UNIFORM = 11  # how much of the 23 random bits of a float32 may be used up before a fresh number is drawn


def reduce(tree: SegmentTree, begins: jax.Array, ends: jax.Array) -> Summary:
    """Summarize the leaves of the ranges `begins[r]..ends[r]-1`, which must not overlap."""
    return _summarize(segment_tree.cover(tree, begins, ends))


def draw(
    tree: SegmentTree, key: jax.Array, batch_size: int, begins: jax.Array, ends: jax.Array, stratified: bool = True
) -> tuple[jax.Array, jax.Array, Summary]:
    """Draw leaves inside ranges with probability `leaf / total of the ranges`; consumes `key`.

    Args:
        tree: the tree.
        key: a PRNG key.
        batch_size: how many leaves to draw, with replacement.
        begins: `int32[R]`.
        ends: `int32[R]`; the ranges `begins[r]..ends[r]-1` must not overlap.
        stratified: one draw from each of `batch_size` equal parts of the mass, in the order of the ranges, instead of
            independent draws; see `segment_tree.draw`.

    Returns:
        Indices `int32[B]`, their leaves `float32[B]` (zero for empty ranges), and the summary of the ranges.

    Example:
        >>> tree = segment_tree.from_leaves(jnp.array([1.0, 5.0, 2.0, 1.0]))
        >>> begins, ends = jnp.array([3, 0]), jnp.array([4, 1])
        >>> indices, leaves, summary = jax.jit(draw, static_argnums=2)(tree, jax.random.key(0), 2, begins, ends)
        >>> print(indices, leaves, summary.total)
        [3 0] [1. 1.] 2.0
    """
    has_many = begins.shape[0] > 2**BITS_PER_UNIFORM  # to choose among so many ranges wears a number out
    key, key_inside = jax.random.split(key) if has_many else (key, None)
    covers = segment_tree.cover(tree, begins, ends)
    summary = _summarize(covers)
    num_levels = segment_tree.num_levels(tree)
    uniforms = jax.random.uniform(key, (num_levels, batch_size), jnp.float32)
    places = segment_tree.fractions(uniforms[0], stratified)
    residual, room = places * summary.total, segment_tree.room_of(places, summary.total) if stratified else None
    group_masses = jnp.sum(covers.stats[:, :, 0], axis=-1)
    range_masses = jnp.sum(group_masses, axis=-1)
    chosen, residual = _choose_range(range_masses, residual)
    drawn_for = jnp.broadcast_to(summary.total, residual.shape)
    if key_inside is not None:
        fresh = jax.random.uniform(key_inside, (batch_size,), jnp.float32)
        residual, drawn_for, room = _drawn_afresh(fresh, range_masses[chosen], residual, drawn_for, room)
    group, residual, _ = segment_tree.pick(group_masses[chosen], residual)
    child, residual, mass = segment_tree.pick(covers.stats[chosen, group, 0], residual)
    node, level = covers.first[chosen, group] + child, covers.level[chosen, group]
    for parent_level in range(num_levels - 1, 0, -1):
        residual, drawn_for, room = _drawn_afresh(uniforms[parent_level], mass, residual, drawn_for, room)
        child, below, child_mass = segment_tree.pick(segment_tree.masses(tree, parent_level - 1, node), residual)
        inside = level >= parent_level
        node = jnp.where(inside, node * FAN_OUT + child, node)
        residual, mass = jnp.where(inside, below, residual), jnp.where(inside, child_mass, mass)
    return node, mass, summary


def _summarize(covers: segment_tree.Cover) -> Summary:
    total, least, largest = covers.stats[:, :, 0], covers.stats[:, :, 1], covers.stats[:, :, 2]
    return Summary(jnp.sum(total), jnp.min(least), jnp.max(largest))


def _drawn_afresh(
    fresh: jax.Array, mass: jax.Array, residual: jax.Array, drawn_for: jax.Array, room: Room | None
) -> tuple[jax.Array, jax.Array, Room | None]:
    """Replace the place inside the mass that was reached where the number drawn for a larger mass is used up.

    Given what was reached, the place inside it is uniform again; see `segment_tree.draw`.
    """
    is_worn = mass * 2**BITS_PER_UNIFORM < drawn_for
    drawn, room_there = segment_tree.draw_afresh(fresh, residual, mass, room)
    room = jax.tree.map(lambda new, old: jnp.where(is_worn, new, old), room_there, room)
    return jnp.where(is_worn, drawn, residual), jnp.where(is_worn, mass, drawn_for), room


def _choose_range(masses: jax.Array, thresholds: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the range `[B]` in which each threshold falls, and the rest of it there; never an empty range."""
    ends = jnp.cumsum(masses)
    last = jnp.max(jnp.where(masses > 0, jnp.arange(masses.shape[0]), 0))
    chosen = jnp.minimum(jnp.searchsorted(ends, thresholds, side="right"), last).astype(jnp.int32)
    return chosen, thresholds - jnp.where(chosen > 0, ends[jnp.maximum(chosen - 1, 0)], 0)
