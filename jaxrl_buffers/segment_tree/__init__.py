"""Segment trees as array operations: sum, least and largest leaf of any range, and search by prefix sum.

One tree is enough for all of these. Leaves are grouped into rows of `fan_out`. Each row has one parent, which holds the
`(sum, least non-zero, largest)` of the row. Parents are grouped into rows again, up to a single row. With a fan-out of
2:

    root                               (10, 1, 4)
    level 1            (3, 1, 2)                       (7, 3, 4)
    level 0          1           2                   3           4

A parent is always recomputed from its children, and never adjusted by a difference. So rounding errors do not add up, a
leaf is exactly what was written, and writing a parent twice is harmless.

Cost of a batch of `B`: `O(B log N)` for writes and searches, in place under donation and inside loops.

    tree.py       make, read and write a tree
    runs.py       write leaves that are neighbors
    search.py     find leaves by prefix sum, or draw them in proportion to their mass
    ranges.py     the same for ranges of leaves, answered from canonical nodes
    _parents.py   how parents are stored and summarized
    _places.py    places in the mass of a tree, with more precision than a float32
"""

from jaxrl_buffers.segment_tree._parents import NOTHING, Summary
from jaxrl_buffers.segment_tree._places import Place
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
    NOT_FOUND,
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
    "NOT_FOUND",
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
