"""Workarounds for compilers, each a function that says what it is for.

Each is plain JAX by default. It is special only on the platform that needs it; the choice is made when a program is
lowered, so a program that is compiled for another platform than that of this machine is right, too. All were seen with
jaxlib 0.10.2, and libtpu 0.0.51 for TPUs. With a new one, take a function's body out: when its test still passes, it
can go. Outside of here are only those that are a choice of how data lies in memory, such as `SegmentTree.top`, and the
hash of random numbers, `_random/hashing.py`.

    values.py     numbers that are computed once, read in order, or summed up in order
    writes.py     writes of single elements and rows
    layers.py     layers of networks
"""

from jaxrl_buffers._xla.layers import convolve, map_stack, narrow_product, scan_carries
from jaxrl_buffers._xla.values import keep, order_after, stack_bytes, sum_in_order
from jaxrl_buffers._xla.writes import set_at, set_last_wins, set_row, set_run, without_duplicates

__all__ = [
    "convolve",
    "keep",
    "map_stack",
    "narrow_product",
    "order_after",
    "scan_carries",
    "set_at",
    "set_last_wins",
    "set_row",
    "set_run",
    "stack_bytes",
    "sum_in_order",
    "without_duplicates",
]
