"""Segment trees as array operations: sum, least and largest leaf of any range, and search by prefix sum.

One tree answers all three questions. Leaves stand in rows of `fan_out`; each row has one parent, which holds the row's
`(sum, least non-zero, largest)`; parents stand in rows again, up to a single row. A parent is always recomputed from
its children, never adjusted by a difference, so nothing drifts, a leaf is exactly what was written, and writing a
parent twice is harmless.

Cost of a batch of `B`: `O(B log N)` for writes and searches, in place under donation and inside loops.

    tree.py       the tree itself: made, read, written
    parents.py    how its inner nodes lie in memory
    search.py     leaves found by prefix sum, or drawn in proportion to their mass
    ranges.py     the same questions about ranges of leaves, answered from canonical nodes
"""

from jaxrl_buffers.segment_tree._parents import NOTHING
from jaxrl_buffers.segment_tree.ranges import (
    BITS_PER_UNIFORM,
    Cover,
    cover,
    draw_ranges,
    find_between,
    reduce,
    reduce_ranges,
)
from jaxrl_buffers.segment_tree.search import MOST_STRATA, Room, draw, draw_afresh, find, fractions, pick, room_of
from jaxrl_buffers.segment_tree.tree import (
    FAN_OUT,
    SMALL_LEVEL,
    SegmentTree,
    Summary,
    count_nonzero,
    from_leaves,
    init,
    masses,
    num_levels,
    read,
    write,
)

__all__ = [
    "BITS_PER_UNIFORM",
    "FAN_OUT",
    "MOST_STRATA",
    "NOTHING",
    "SMALL_LEVEL",
    "Cover",
    "Room",
    "SegmentTree",
    "Summary",
    "count_nonzero",
    "cover",
    "draw",
    "draw_afresh",
    "draw_ranges",
    "find",
    "find_between",
    "fractions",
    "from_leaves",
    "init",
    "masses",
    "num_levels",
    "pick",
    "read",
    "reduce",
    "reduce_ranges",
    "room_of",
    "write",
]
