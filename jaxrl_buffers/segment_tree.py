"""Segment trees as array operations: sum, least and largest leaf of any range, and search by prefix sum.

One tree answers all three questions. Leaves stand in rows of eight; each row has one parent, which holds the row's
`(sum, least non-zero, largest)`; parents stand in rows of eight again, up to a single row. A parent is always
recomputed from its children, never adjusted by a difference, so nothing drifts, a leaf is exactly what was written,
and writing a parent twice is harmless.

Cost of a batch of `B`: `O(B log N)` for writes and searches, in place under donation and inside loops.

Why this shape (prototypes, 2^20 leaves, batches of 256, least of nine runs on two CPU cores, microseconds inside
`scan` with the random numbers included): fan-out
4 / 8 / 16 / 32 with parents written level by level and small levels recomputed whole: update 103 / 87 / 88 / 103,
search 69 / 51 / 83 / 108. The same update as one sequential loop over the batch: 430 for fan-out 8. Three binary trees
instead of one: over 600. flashbax (sums only, differences): update 100, search 87.

A search looks at the eight children one after the other, as columns of a batch, which makes two kernels of a level: a
gather and a choice. With a triangular product for the prefix sums there were five (samples of 256: 59 against 50).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from jaxrl_buffers.materialized import materialized
from jaxrl_buffers.scatter import set_last_wins

FAN_OUT = 8
LEVELS_PER_UNIFORM = 4  # a float32 uniform has 23 bits; four levels of eight use 12, which leaves 11 to be fair with
NOTHING = (0.0, float("inf"), 0.0)  # the sum, least and largest of no leaves
MOST_STRATA = 2**12  # more of them leave too few of the bits of a float32 to tell places within each apart
FIRST_ROWS = 4  # a search begins at the first level of so few rows
SMALL_LEVEL = 256  # levels of at most this many rows are recomputed whole: cheaper than a gather and a scatter


class SegmentTree(struct.PyTreeNode):
    """Non-negative leaves and what is known of their ranges; leaves behind `capacity` are zero.

    Parents stand level by level from the bottom. The small levels at the top are an array of their own, made anew by
    every write: were they written in place, XLA would fuse that write into later reads and copy all of `inner`.
    """

    leaves: jax.Array  # float32[rows * 8]
    inner: jax.Array  # float32[rows, 3, 8]: sum, least, largest of the levels above large ones
    top: jax.Array  # float32[rows, 3, 8]: the same of the levels above small ones
    capacity: int = struct.field(pytree_node=False)


class Summary(NamedTuple):
    """What a range of leaves amounts to."""

    total: jax.Array  # float32[], zero for an empty range
    least: jax.Array  # float32[], the smallest non-zero leaf; inf when there is none
    largest: jax.Array  # float32[], zero when there is none


def init(capacity: int) -> SegmentTree:
    """Return a tree of `capacity` zero leaves.

    Example:
        >>> tree = write(init(10), jnp.array([3, 7]), jnp.array([1.0, 2.0]))
        >>> print(find(tree, jnp.array([0.5, 1.5])), reduce(tree).total)
        [3 7] 3.0
    """
    if capacity < 1:
        raise ValueError(f"a segment tree needs a capacity of at least 1, got {capacity}.")
    rows = _rows_by_level(capacity)
    nothing = jnp.array(NOTHING, jnp.float32)[None, :, None]
    inner, top = (
        jnp.broadcast_to(nothing, (sum(rows[begin:end]), 3, FAN_OUT))
        for begin, end in ((1, _first_top_level(rows)), (_first_top_level(rows), None))
    )
    return SegmentTree(jnp.zeros(rows[0] * FAN_OUT, jnp.float32), inner, top, capacity)


@jax.jit
def from_leaves(leaves: jax.Array) -> SegmentTree:
    """Build the tree of given leaves in `O(N)`."""
    tree = init(leaves.shape[0])
    tree = tree.replace(leaves=tree.leaves.at[: tree.capacity].set(leaves.astype(jnp.float32)))
    return _recompute_parents(tree, jnp.arange(_rows_by_level(tree.capacity)[0], dtype=jnp.uint32))


def read(tree: SegmentTree, indices: jax.Array) -> jax.Array:
    """Return the leaves at `indices`; zero outside the tree."""
    return tree.leaves.at[jnp.where(indices < 0, tree.capacity, indices)].get(mode="fill", fill_value=0)


def write(tree: SegmentTree, indices: jax.Array, values: jax.Array, where: jax.Array | bool = True) -> SegmentTree:
    """Set leaves; of duplicates in one call the last wins.

    Entries are left out where `where` is False, where the index is outside the tree, and where the value is negative
    or not finite.

    Args:
        tree: the tree.
        indices: `int32[B]`.
        values: `float32[B]`.
        where: `bool[B]`, or one for all.
    """
    if indices.size == 0:
        return tree
    values = values.astype(jnp.float32)
    valid = where & (indices >= 0) & (indices < tree.capacity) & jnp.isfinite(values) & (values >= 0)
    # Always true, but it orders this write behind the reads with which an earlier write recomputed its parents; else
    # XLA would keep those reads right by copying all leaves.
    valid = valid & (reduce(tree).total >= 0)
    leaves = set_last_wins(tree.leaves, indices, values, valid)
    # Recomputing the parents of a leaf that was left out changes nothing, so row 0 can stand in for those.
    rows = materialized(jnp.where(valid, indices, 0).astype(jnp.uint32) // FAN_OUT, unknown=indices[0])
    return _recompute_parents(tree.replace(leaves=leaves), rows)


def reduce(tree: SegmentTree, start: jax.Array | int | None = None, stop: jax.Array | int | None = None) -> Summary:
    """Summarize the leaves `start..stop-1` (by default all) from canonical nodes, so that nothing cancels."""
    if start is None and stop is None:
        return _summarize(_row(tree, len(_rows_by_level(tree.capacity)) - 1, jnp.int32(0)))
    return _summarize(jnp.moveaxis(_cover_one(tree, start, stop).stats[0], 0, 1).reshape(3, -1))


def count_nonzero(tree: SegmentTree) -> jax.Array:
    """Count the non-zero leaves in `O(N)`."""
    return jnp.count_nonzero(tree.leaves).astype(jnp.int32)


def find(tree: SegmentTree, thresholds: jax.Array) -> jax.Array:
    """Return the smallest index whose inclusive prefix sum exceeds each threshold.

    Never a zero leaf: a threshold equal to the total finds the last non-zero leaf. A threshold above the total, or
    a tree of zeros, gives -1.
    """
    total = reduce(tree).total
    indices, _ = _descend(tree, thresholds.astype(jnp.float32))
    return jnp.where((thresholds > total) | (total == 0), -1, indices)


def find_between(tree: SegmentTree, start: jax.Array | int, stop: jax.Array | int, thresholds: jax.Array) -> jax.Array:
    """Like `find` among the leaves `start..stop-1`, with prefix sums counted from `start`."""
    nodes = jax.tree.map(lambda part: part[0], _cover_one(tree, start, stop))
    group_masses = jnp.sum(nodes.stats[:, 0], axis=-1)
    shape = (thresholds.shape[0], group_masses.shape[0])
    group, residual, _ = pick(jnp.broadcast_to(group_masses, shape), thresholds.astype(jnp.float32))
    child, residual, _ = pick(nodes.stats[group, 0], residual)
    node, level = nodes.first[group] + child, nodes.level[group]
    for parent_level in range(len(_rows_by_level(tree.capacity)) - 1, 0, -1):
        child, below, _ = pick(masses(tree, parent_level - 1, node), residual)
        inside = level >= parent_level
        node = jnp.where(inside, node * FAN_OUT + child, node)
        residual = jnp.where(inside, below, residual)
    total = jnp.sum(group_masses)
    return jnp.where((thresholds > total) | (total == 0), -1, node)


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
    num_redraws = (_first_level(tree) + 1) // LEVELS_PER_UNIFORM
    keys = jax.random.split(key, 1 + num_redraws)
    uniforms = [jax.random.uniform(key, (batch_size,), jnp.float32) for key in keys]
    summary = reduce(tree)
    places = fractions(uniforms[0], stratified)
    indices, leaves = _descend(
        tree, places * summary.total, uniforms[1:], room_of(places, summary.total) if stratified else None
    )
    return indices, leaves, summary


def fractions(uniforms: jax.Array, stratified: bool) -> jax.Array:
    """Return the places `[B]` in `[0, 1)` at which to draw: as given, or one in each of `B` equal parts."""
    if not stratified:
        return uniforms
    stratum = np.arange(uniforms.shape[0], dtype=np.float32)
    # Rounding must not carry a draw over into the next stratum.
    last_inside = np.nextafter(stratum + 1, np.float32(0))
    places = jnp.minimum(stratum + uniforms, last_inside) / uniforms.shape[0]
    # It also keeps XLA from dividing the mass, which the places are multiplied by, into parts that may be too small
    # for a float32: all draws would then be the first leaf.
    return jnp.minimum(places, np.nextafter(np.float32(1), np.float32(0)))


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
    drawn = materialized(begin + uniforms * (end - begin), unknown=(mass[0] > 0).astype(jnp.int32))
    return drawn, Room(room.before + (drawn - residual), room.behind - (drawn - residual))


def num_levels(tree: SegmentTree) -> int:
    """Return the number of levels, that of the leaves included."""
    return len(_rows_by_level(tree.capacity))


def _rows_by_level(capacity: int) -> list[int]:
    """Return how many rows of eight nodes each level has, leaves first."""
    rows = [-(-capacity // FAN_OUT)]
    while rows[-1] > 1:
        rows.append(-(-rows[-1] // FAN_OUT))
    return rows


def _first_level(tree: SegmentTree) -> int:
    """Return the level at which a search begins."""
    return next(level for level, rows in enumerate(_rows_by_level(tree.capacity)) if rows <= FIRST_ROWS)


def _first_top_level(rows_by_level: list[int]) -> int:
    """Return the first level whose rows summarize a level of few rows."""
    return next((level for level, rows in enumerate(rows_by_level[:-1], 1) if rows <= SMALL_LEVEL), 1)


def _level_of_parents(tree: SegmentTree, level: int) -> tuple[jax.Array, int]:
    """Return the array that holds a level above the leaves, and the row at which the level begins there."""
    rows_by_level = _rows_by_level(tree.capacity)
    first_top = _first_top_level(rows_by_level)
    if level < first_top:
        return tree.inner, sum(rows_by_level[1:level])
    return tree.top, sum(rows_by_level[first_top:level])


def _row(tree: SegmentTree, level: int, row: jax.Array) -> jax.Array:
    """Return the `(sum, least, largest)` of the eight nodes of rows of a level: `float32[..., 3, 8]`."""
    if level == 0:
        return _leaf_stats(tree.leaves.reshape(-1, FAN_OUT).at[row].get(mode="clip"))
    parents, offset = _level_of_parents(tree, level)
    return parents.at[row + offset].get(mode="clip")


def masses(tree: SegmentTree, level: int, row: jax.Array) -> jax.Array:
    """Return only the sums of `_row`, without reading the rest."""
    if level == 0:
        return tree.leaves.reshape(-1, FAN_OUT).at[row].get(mode="clip")
    parents, offset = _level_of_parents(tree, level)
    return parents.at[row + offset, 0].get(mode="clip")


def _whole_level(tree: SegmentTree, level: int) -> jax.Array:
    """Return all rows of a level: `float32[rows, 3, 8]`."""
    if level == 0:
        return _leaf_stats(tree.leaves.reshape(-1, FAN_OUT))
    parents, offset = _level_of_parents(tree, level)
    return lax.slice_in_dim(parents, offset, offset + _rows_by_level(tree.capacity)[level])


def _leaf_stats(leaves: jax.Array) -> jax.Array:
    return jnp.stack([leaves, jnp.where(leaves > 0, leaves, jnp.inf), leaves], axis=-2)


def _summarize(stats: jax.Array) -> Summary:
    """Summarize nodes `[..., 3, M]` over the last axis."""
    return Summary(_ordered_sum(stats[..., 0, :]), jnp.min(stats[..., 1, :], -1), jnp.max(stats[..., 2, :], -1))


def _ordered_sum(values: jax.Array) -> jax.Array:
    """Sum the last axis in a fixed order.

    XLA orders the additions of `jnp.sum` differently from program to program; a tree rebuilt from its leaves would then
    differ from the written one in the last bit.
    """
    while (width := values.shape[-1]) > 1:
        half = width // 2
        folded = values[..., :half] + values[..., half : 2 * half]
        values = jnp.concatenate([folded, values[..., 2 * half :]], axis=-1) if width % 2 else folded
    return values[..., 0]


def _recompute_parents(tree: SegmentTree, rows: jax.Array) -> SegmentTree:
    """Recompute everything above the given leaf rows."""
    rows_by_level = _rows_by_level(tree.capacity)
    first_top = _first_top_level(rows_by_level)
    # XLA turns a scatter of one row into a slice update, fuses that into later gathers, and copies all inner nodes.
    rows = jnp.concatenate([rows, rows]) if rows.shape[0] == 1 else rows
    for level in range(1, first_top):
        inner, offset = _level_of_parents(tree, level)
        if rows.shape[0] >= rows_by_level[level - 1]:
            block = _parents(_whole_level(tree, level - 1))
            inner = lax.dynamic_update_slice_in_dim(inner, block, offset, axis=0)
        else:
            parents = jnp.stack(_summarize(_row(tree, level - 1, rows)), axis=-1)
            # Duplicates write the same numbers, so their order does not matter.
            inner = inner.at[offset + rows // FAN_OUT, :, rows % FAN_OUT].set(parents, mode="drop")
        tree, rows = tree.replace(inner=inner), rows // FAN_OUT
    if len(rows_by_level) == 1:
        return tree
    levels = [_whole_level(tree, first_top - 1)]
    while len(levels) <= len(rows_by_level) - first_top:
        levels.append(_parents(levels[-1]))
    return tree.replace(top=jnp.concatenate(levels[1:]))


def _parents(children: jax.Array) -> jax.Array:
    """Summarize all rows `[R, 3, 8]` of a level into the rows `[ceil(R / 8), 3, 8]` of the level above."""
    missing = -children.shape[0] % FAN_OUT
    parts = [
        jnp.pad(part, (0, missing), constant_values=nothing).reshape(-1, FAN_OUT)
        for part, nothing in zip(_summarize(children), NOTHING, strict=True)
    ]
    return jnp.stack(parts, axis=1)


def pick(masses: jax.Array, residual: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the first child `[B]` of `masses[B, M]` whose prefix exceeds the residual, what is left of it, its mass.

    Rounding can put the residual past the last child; then the last one with any mass is taken. A child of mass zero
    is never taken unless all are zero.
    """
    children = [masses[:, number] for number in range(masses.shape[-1])]
    square, prefix, found = jnp.zeros_like(residual), jnp.zeros_like(residual), jnp.zeros(residual.shape, bool)
    for number, mass in enumerate(children):
        is_better = (mass > 0) & ~found
        square = jnp.where(is_better, float(number**2), square)
        prefix = prefix + mass
        found = found | (is_better & (prefix > residual))
    # XLA's CPU backend computes a square root once; anything cheaper it would compute anew for every use, with all
    # the levels above it.
    child = jnp.sqrt(square).astype(jnp.int32)
    before, chosen = jnp.zeros_like(residual), jnp.zeros_like(residual)
    for number, mass in enumerate(children):
        before = before + jnp.where(number < child, mass, 0)
        chosen = jnp.where(number == child, mass, chosen)
    return child, residual - before, chosen


def _descend(
    tree: SegmentTree, residual: jax.Array, uniforms: list[jax.Array] | None = None, room: Room | None = None
) -> tuple[jax.Array, jax.Array]:
    """Follow residuals `[B]` from the top to leaves; `uniforms`, `[B]` each, redraw them on the way within `room`."""
    # All begin among the same few nodes, which need not be gathered for each of them.
    first = _first_level(tree)
    nodes = _whole_level(tree, first)[:, 0].reshape(-1)
    node, residual, mass = pick(jnp.broadcast_to(nodes, (residual.shape[0], nodes.shape[0])), residual)
    for depth, level in enumerate(range(first - 1, -1, -1), 2):  # the first step may stand for two
        stage, levels_into_stage = divmod(depth, LEVELS_PER_UNIFORM)
        if uniforms is not None and levels_into_stage == 0:
            residual, room = draw_afresh(uniforms[stage - 1], residual, mass, room)
        child, residual, mass = pick(masses(tree, level, node), residual)
        node = node * FAN_OUT + child
    return node, mass


class Cover(NamedTuple):
    """The canonical nodes of ranges, in groups of siblings from left to right; other siblings count as nothing."""

    stats: jax.Array  # float32[R, groups, 3, 8]
    first: jax.Array  # int32[R, groups]: the index of the first sibling within its level
    level: jax.Array  # int32[R, groups]


def cover(tree: SegmentTree, begins: jax.Array, ends: jax.Array) -> Cover:
    """Cover each range of leaves `begins[r]..ends[r]-1` by at most two groups of siblings a level."""
    begin = jnp.clip(begins.astype(jnp.int32), 0, tree.capacity)
    end = jnp.clip(ends.astype(jnp.int32), begin, tree.capacity)
    top = num_levels(tree) - 1
    pairs = []  # the left and the right group of each level
    for level in range(top + 1):
        up, down = -(-begin // FAN_OUT), end // FAN_OUT
        within_one_row = (up > down) | (level == top)
        left_end = jnp.where(within_one_row, end, up * FAN_OUT)
        right_begin = jnp.where(within_one_row, end, down * FAN_OUT)
        sides = (begin // FAN_OUT, down), (begin, right_begin), (left_end, end)
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
    rows = jnp.clip(rows, 0, _rows_by_level(tree.capacity)[level] - 1)
    index = rows[..., None] * FAN_OUT + jnp.arange(FAN_OUT, dtype=jnp.int32)[None, None]
    inside = (index >= begins[..., None]) & (index < ends[..., None])
    nothing = jnp.array(NOTHING, jnp.float32)[None, None, :, None]
    stats = jnp.where(inside[..., None, :], _row(tree, level, rows), nothing)
    return Cover(stats, index[..., 0], jnp.full_like(rows, level))
