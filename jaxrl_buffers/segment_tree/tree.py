"""The tree: how its leaves and their parents are stored, made, read and written.

Why parents are written level by level, and small levels are recomputed whole: these are times of prototypes in
microseconds, for 2^20 leaves and batches of 256, inside `scan` and with the random numbers included. Each is the least
of nine runs on two CPU cores.

    fan-out                                           4      8     16     32
    update                                          103     87     88    103
    search                                           69     51     83    108

    update in one sequential loop over the batch           430
    update of three binary trees instead of one            over 600
    flashbax (sums only, adjusted by differences)          update 100, search 87

Why accelerators get wider rows: the programs were compiled but not run, by jaxlib 0.10.2 and libtpu 0.0.51, for a TPU
v5e and an H100. A step adds 128 transitions, draws 256 and updates their priorities, with 2^20 slots and rows packed
into words. On a TPU a fan-out of 128 takes 106k cycles by its compiler's estimate; for other widths the compiler copies
the tree into another layout.

    fan-out                                           8     16     32     64    128    256
    kernels on a GPU                                 46     41     37     30     32     34
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_buffers._checks import check_shape
from jaxrl_buffers._xla import keep, order_after, set_last_wins
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.segment_tree import _parents as parents
from jaxrl_buffers.segment_tree._parents import NOTHING, WIDE, Summary, summarize

FAN_OUT = 8  # children of a node, by default
FAN_OUTS = {"cpu": FAN_OUT, "gpu": 64, "tpu": 128}  # the best fan-out for each platform
NOT_FOUND = -1  # the index that a search returns if there is no such leaf
SMALL_LEVEL = 256  # levels of at most this many rows are recomputed whole, which is cheaper than a gather and a scatter


class SegmentTree(Component):
    """Non-negative leaves and their parents, which are stored level by level from the bottom.

    The small levels at the top have an array of their own. Every write computes this whole array again. If the small
    levels were written in place, XLA would fuse that write into later reads and copy all of `inner`. Wide trees do not
    store the small levels. They compute these levels when they are needed, because a few wide rows are summed quickly.

    In the shapes below, `R` is the number of rows of leaves or parents, and `F` is the fan-out. The axis of 3 holds the
    sum, the least positive and the largest leaf below a node.
    """

    leaves: jax.Array  # float32[R * F]: zero from `capacity` on
    inner: jax.Array  # float32[R, 3, F], flat if wide: the parents of large levels
    top: jax.Array  # float32[R, 3, F], empty if wide: the parents of small levels
    capacity: int = field(static=True)  # the number of leaves
    fan_out: int = field(static=True, default=FAN_OUT)  # the number of children of a node

    @property
    def is_wide(self) -> bool:
        """Whether a row is read as a whole instead of node by node."""
        return self.fan_out >= WIDE


def init(capacity: int, fan_out: int = FAN_OUT) -> SegmentTree:
    """Return a tree of `capacity` zero leaves.

    Args:
        capacity: the number of leaves.
        fan_out: how many children a node has. It changes only the speed and the order of summation. On CPUs 8 is best.
            On TPUs 128 is best, the width of a vector register.

    Example:
        >>> import jaxrl_buffers as jb
        >>> tree = write(init(10), jnp.array([3, 7]), jnp.array([1.0, 2.0]))
        >>> print(jb.segment_tree.find(tree, jnp.array([0.5, 1.5])), root(tree).total)
        [3 7] 3.0
    """
    if capacity < 1:
        raise ValueError(f"a segment tree needs a capacity of at least 1, got {capacity}.")
    if not 2 <= fan_out <= SMALL_LEVEL:
        raise ValueError(f"a segment tree needs a fan-out of 2 to {SMALL_LEVEL}, got {fan_out}.")
    num_rows = _rows_by_level(capacity, fan_out)
    first_top = _first_top_level(num_rows)
    inner = parents.empty(sum(num_rows[1:first_top]), fan_out)
    top = parents.empty(0 if fan_out >= WIDE else sum(num_rows[first_top:]), fan_out)
    return SegmentTree(jnp.zeros(num_rows[0] * fan_out, jnp.float32), inner, top, capacity, fan_out)


@functools.partial(jax.jit, static_argnames="fan_out")
def from_leaves(leaves: jax.Array, fan_out: int = FAN_OUT) -> SegmentTree:
    """Return the tree of the given leaves `[N]`, in `O(N)`.

    Example:
        >>> print(root(from_leaves(jnp.array([1.0, 0.0, 3.0]))).total)
        4.0
    """
    tree = init(leaves.shape[0], fan_out)
    tree = tree.replace(leaves=tree.leaves.at[: tree.capacity].set(leaves.astype(jnp.float32)))
    return recompute_parents(tree, jnp.arange(rows_by_level(tree)[0], dtype=jnp.uint32))


def read(tree: SegmentTree, indices: jax.Array) -> jax.Array:
    """Return the leaves at `indices`; zero outside the tree."""
    leaves = tree.leaves.at[jnp.where(indices < 0, tree.capacity, indices)].get(mode="fill", fill_value=0)
    return keep(leaves)  # otherwise XLA reads a single leaf again after a later write, and copies all leaves for this


def write(
    tree: SegmentTree,
    indices: jax.Array,
    values: jax.Array,
    where: jax.Array | bool = True,
    unique: bool = False,
) -> SegmentTree:
    """Return the tree with some leaves set. If an index occurs several times, the last entry wins.

    An entry is left out if `where` is False, if its index is outside the tree, or if its value is negative or not
    finite.

    Args:
        tree: the tree.
        indices: `int32[B]`.
        values: `float32[B]`.
        where: `bool[B]`, or one bool for all.
        unique: True promises that no index occurs twice, which saves the search for duplicates.

    Example:
        >>> tree = write(init(4), jnp.array([2, 2, 9]), jnp.array([1.0, 5.0, 7.0]))
        >>> print(read(tree, jnp.arange(4)))
        [0. 0. 5. 0.]
    """
    check_shape("write", "indices", indices, (indices.size,))
    check_shape("write", "values", values, indices.shape)
    if indices.size == 0:
        return tree
    values = values.astype(jnp.float32)
    valid = where & (indices >= 0) & (indices < tree.capacity) & jnp.isfinite(values) & (values >= 0)
    valid = order_after(valid, root(tree).total)  # the root is read after an earlier write
    leaves = set_last_wins(tree.leaves, indices, values, valid, unique)
    # Recomputing parents changes nothing where no leaf has changed. So entries that are left out may use row 0.
    rows = jnp.where(valid, indices, 0)
    if tree.is_wide:
        rows = lax.div(rows, rows.dtype.type(tree.fan_out))
    else:
        rows = keep(rows.astype(jnp.uint32) // tree.fan_out)
    return recompute_parents(tree.replace(leaves=leaves), rows)


def root(tree: SegmentTree) -> Summary:
    """Return the sum, the least positive and the largest of all leaves."""
    summary = summarize(row_stats(tree, num_levels(tree) - 1, jnp.int32(0)))
    if not tree.is_wide:
        return summary
    nodes = whole_level(tree, first_small_level(tree))  # the least and the largest need no fixed order: one reduction
    return Summary(summary.total, jnp.min(nodes[:, 1]), jnp.max(nodes[:, 2]))


def count_nonzero(tree: SegmentTree) -> jax.Array:
    """Count the non-zero leaves in `O(N)`."""
    return jnp.count_nonzero(tree.leaves).astype(jnp.int32)


def num_levels(tree: SegmentTree) -> int:
    """Return the number of levels, the leaves included."""
    return len(rows_by_level(tree))


def rows_by_level(tree: SegmentTree) -> list[int]:
    """Return how many rows each level has, from the leaves to the top."""
    return _rows_by_level(tree.capacity, tree.fan_out)


def row_stats(tree: SegmentTree, level: int, row: jax.Array) -> jax.Array:
    """Return rows of a level, at indices of any shape, as `(sum, least, largest)`: `float32[..., 3, fan_out]`."""
    if level == 0:
        return leaf_stats(masses(tree, 0, row))
    if not _is_stored(tree, level):
        return whole_level(tree, level).at[row].get(mode="clip")
    nodes, offset = level_of_parents(tree, level)
    return parents.get(nodes, row + offset, tree.fan_out)


def masses(tree: SegmentTree, level: int, row: jax.Array) -> jax.Array:
    """Return only the sums of rows of a level: `float32[..., fan_out]`."""
    if level == 0:
        rows = tree.leaves.reshape(-1, tree.fan_out).at[row].get(mode="clip")
        return keep(rows) if row.size == 1 else rows  # see `read`
    if not _is_stored(tree, level):
        return whole_level(tree, level).at[row, 0].get(mode="clip")
    nodes, offset = level_of_parents(tree, level)
    return parents.get_sums(nodes, row + offset, tree.fan_out)


def whole_level(tree: SegmentTree, level: int) -> jax.Array:
    """Return all rows of a level: `float32[rows, 3, fan_out]`."""
    if level == 0:
        return leaf_stats(tree.leaves.reshape(-1, tree.fan_out))
    if not _is_stored(tree, level):
        return _level_above(whole_level(tree, level - 1))
    nodes, offset = level_of_parents(tree, level)
    return parents.get_range(nodes, offset, offset + rows_by_level(tree)[level], tree.fan_out)


def _rows_by_level(capacity: int, fan_out: int) -> list[int]:
    rows = [-(-capacity // fan_out)]
    while rows[-1] > 1:
        rows.append(-(-rows[-1] // fan_out))
    return rows


def _first_top_level(num_rows: list[int]) -> int:
    """Return the lowest level that holds the parents of a small level."""
    return next((level for level, rows in enumerate(num_rows[:-1], 1) if rows <= SMALL_LEVEL), 1)


def first_small_level(tree: SegmentTree) -> int:
    """Return the lowest small level: one of at most `SMALL_LEVEL` rows."""
    return _first_top_level(rows_by_level(tree)) - 1


def _is_stored(tree: SegmentTree, level: int) -> bool:
    """Return whether a level is stored; if not, it is computed when it is needed."""
    return not tree.is_wide or level < _first_top_level(rows_by_level(tree))


def level_of_parents(tree: SegmentTree, level: int) -> tuple[jax.Array, int]:
    """Return the array that holds a level of parents, and the row at which the level begins in it."""
    num_rows = rows_by_level(tree)
    first_top = _first_top_level(num_rows)
    if level < first_top:
        return tree.inner, sum(num_rows[1:level])
    return tree.top, sum(num_rows[first_top:level])


def leaf_stats(leaves: jax.Array) -> jax.Array:
    """Return leaves `[..., M]` as `(sum, least, largest)` of one leaf each: `[..., 3, M]`."""
    return jnp.stack([leaves, jnp.where(leaves > 0, leaves, jnp.inf), leaves], axis=-2)


def recompute_parents(tree: SegmentTree, rows: jax.Array) -> SegmentTree:
    """Recompute all parents above the given rows of leaves."""
    num_rows = rows_by_level(tree)
    first_top = _first_top_level(num_rows)
    for level in range(1, first_top):
        inner, offset = level_of_parents(tree, level)
        if rows.shape[0] >= num_rows[level - 1]:
            inner = parents.put_range(inner, offset, _level_above(whole_level(tree, level - 1)))
        else:
            inner = parents.put(inner, offset, rows, summarize(row_stats(tree, level - 1, rows)), tree.fan_out)
        tree, rows = tree.replace(inner=inner), rows // tree.fan_out
    if len(num_rows) == 1 or tree.is_wide:
        return tree
    levels = [whole_level(tree, first_top - 1)]
    while len(levels) <= len(num_rows) - first_top:
        levels.append(_level_above(levels[-1]))
    return tree.replace(top=jnp.concatenate(levels[1:]))


def _level_above(children: jax.Array) -> jax.Array:
    """Summarize all rows `[R, 3, F]` of a level into the rows `[ceil(R / F), 3, F]` of the level above."""
    fan_out = children.shape[-1]
    missing = -children.shape[0] % fan_out
    parts = [
        jnp.pad(part, (0, missing), constant_values=nothing).reshape(-1, fan_out)
        for part, nothing in zip(summarize(children), NOTHING, strict=True)
    ]
    return jnp.stack(parts, axis=1)
