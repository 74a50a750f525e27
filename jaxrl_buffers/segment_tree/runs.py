"""Write leaves that are neighbors: as slices instead of one by one."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_buffers._xla import scatter_on_gpu, set_run
from jaxrl_buffers.segment_tree import _parents as parents
from jaxrl_buffers.segment_tree._parents import summarize
from jaxrl_buffers.segment_tree.tree import (
    SegmentTree,
    first_small_level,
    leaf_stats,
    level_of_parents,
    recompute_parents,
    rows_by_level,
)


def write_run(
    tree: SegmentTree, begin: jax.Array, values: jax.Array, where: jax.Array | bool = True, wraps: bool = True
) -> SegmentTree:
    """Set the leaves `begin, begin + 1, ...` as `write` does; after the last leaf comes leaf 0.

    Args:
        tree: the tree.
        begin: `int32[]`, the first leaf to be set.
        values: `float32[M]`, at most as many as the tree has leaves.
        where: `bool[M]`, or one bool for all: which leaves are set. The others do not change.
        wraps: whether the run may go past the last leaf. False saves writes.

    Example:
        >>> import jaxrl_buffers as jb
        >>> tree = write_run(jb.segment_tree.init(5), jnp.int32(3), jnp.array([1.0, 2.0, 3.0]))
        >>> print(tree.leaves[:5])
        [3. 0. 0. 1. 2.]
    """
    if values.size == 0:
        return tree
    values = values.astype(jnp.float32)
    valid = where & jnp.isfinite(values) & (values >= 0)
    one_by_one = functools.partial(_write_one_by_one, wraps=wraps)
    if not tree.is_wide:
        return one_by_one(tree, begin, values, valid)
    slices = functools.partial(_write_slices, wraps=wraps)
    return scatter_on_gpu(one_by_one, slices, tree, begin, values, valid)


def _write_one_by_one(
    tree: SegmentTree, begin: jax.Array, values: jax.Array, valid: jax.Array, wraps: bool
) -> SegmentTree:
    leaves = set_run(tree.leaves, begin, values, valid, tree.capacity, wraps)
    num_rows = rows_by_level(tree)[0]
    rows = begin // tree.fan_out + jnp.arange(min(_touched(values.shape[0], tree) + wraps, num_rows), dtype=jnp.int32)
    return recompute_parents(tree.replace(leaves=leaves), jnp.where(rows < num_rows, rows, rows - num_rows))


def _write_slices(tree: SegmentTree, begin: jax.Array, values: jax.Array, valid: jax.Array, wraps: bool) -> SegmentTree:
    tree = tree.replace(leaves=set_run(tree.leaves, begin, values, valid, tree.capacity, wraps))
    num_rows = _touched(values.shape[0], tree)
    tree = _recompute_parents_of_run(tree, begin // tree.fan_out, num_rows)
    return _recompute_parents_of_run(tree, jnp.int32(0), num_rows) if wraps else tree


def _recompute_parents_of_run(tree: SegmentTree, begin: jax.Array, count: int) -> SegmentTree:
    """Recompute all parents above the leaf rows `begin..begin+count-1` of a wide tree, as far as they exist."""
    num_rows = rows_by_level(tree)
    for level in range(1, first_small_level(tree) + 1):
        count = min(count, num_rows[level - 1])
        begin = jnp.minimum(begin, num_rows[level - 1] - count)
        if level == 1:
            rows = lax.dynamic_slice_in_dim(tree.leaves, begin * tree.fan_out, count * tree.fan_out)
            children = leaf_stats(rows.reshape(count, tree.fan_out))
        else:
            below, offset = level_of_parents(tree, level - 1)
            children = parents.get_run(below, begin + offset, count, tree.fan_out)
        inner, offset = level_of_parents(tree, level)
        tree = tree.replace(inner=parents.put_run(inner, begin + offset * tree.fan_out, summarize(children)))
        begin, count = begin // tree.fan_out, _touched(count, tree)
    return tree


def _touched(count: int, tree: SegmentTree) -> int:
    """Return the largest number of rows that `count` neighbors can be in."""
    return -(-(count - 1) // tree.fan_out) + 1
