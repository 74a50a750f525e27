"""Segment trees as array operations: sum, least and largest leaf of any range, and search by prefix sum.

One tree answers all three questions. Leaves stand in rows of `fan_out`; each row has one parent, which holds the row's
`(sum, least non-zero, largest)`; parents stand in rows again, up to a single row. A parent is always recomputed from
its children, never adjusted by a difference, so nothing drifts, a leaf is exactly what was written, and writing a
parent twice is harmless.

Cost of a batch of `B`: `O(B log N)` for writes and searches, in place under donation and inside loops.

    tree.py       the tree itself: made, read, written
    runs.py       leaves that stand side by side, written together
    _sums.py      what rows of nodes amount to
    _parents.py   how its inner nodes lie in memory
    _places.py    places in the mass of a tree, more precise than a float32
    search.py     leaves found by prefix sum, or drawn in proportion to their mass
    ranges.py     the same questions about ranges of leaves, answered from canonical nodes
"""

from jaxrl_buffers.segment_tree._parents import NOTHING
from jaxrl_buffers.segment_tree._places import Place
from jaxrl_buffers.segment_tree._sums import Summary
from jaxrl_buffers.segment_tree.ranges import (
    Cover,
    cover,
    draw_ranges,
    find_between,
    reduce,
    reduce_ranges,
)
from jaxrl_buffers.segment_tree.runs import write_run
from jaxrl_buffers.segment_tree.search import draw, find, pick
from jaxrl_buffers.segment_tree.tree import (
    FAN_OUT,
    FAN_OUTS,
    SMALL_LEVEL,
    SegmentTree,
    count_nonzero,
    from_leaves,
    init,
    masses,
    num_levels,
    read,
    write,
)

__all__ = [
    "FAN_OUT",
    "FAN_OUTS",
    "NOTHING",
    "SMALL_LEVEL",
    "Cover",
    "Place",
    "SegmentTree",
    "Summary",
    "count_nonzero",
    "cover",
    "draw",
    "draw_ranges",
    "find",
    "find_between",
    "from_leaves",
    "init",
    "masses",
    "num_levels",
    "pick",
    "read",
    "reduce",
    "reduce_ranges",
    "write",
    "write_run",
]
