"""Workarounds for compilers. Each one is a function, and its docstring explains why it exists.

Each function is plain JAX by default, and special only on the platform that needs it. The platform is chosen when a
program is lowered, so a program may be compiled for another platform than that of this machine. Each docstring has:

    Seen on      the versions with which the problem was seen
    Gains        what the workaround gains, in figures
    Pinned by    the test that fails without it
    Can go when  what to check with a new version

To check it, replace the body by plain JAX. Measure the figure under Gains again, and run the tests that read compiled
programs. A test that only compares programs before they are compiled, such as `..._on_cpu_alone`, then fails in any
case. It goes together with the workaround.

Three kinds of workarounds are elsewhere: choices of a memory layout, such as `SegmentTree.top`; the order of
independent statements, as in `MPO.gradients`; and the hash of random numbers in `_random/hashing.py`.

    values.py     numbers that are computed once, read in order, summed up in order, or kept in a chosen memory layout
    writes.py     writes of single elements and rows
    layers.py     layers of networks
"""

from jaxrl_buffers._xla.layers import convolve, map_stack, narrow_product, one_by_one, scan_carries
from jaxrl_buffers._xla.values import (
    compact,
    in_one_kernel,
    keep,
    order_after,
    stack_bytes,
    stack_scalars,
    sum_in_order,
)
from jaxrl_buffers._xla.writes import scatter_on_gpu, set_at, set_last_wins, set_row, set_run, without_duplicates

__all__ = [
    "compact",
    "convolve",
    "in_one_kernel",
    "keep",
    "map_stack",
    "narrow_product",
    "one_by_one",
    "order_after",
    "scan_carries",
    "scatter_on_gpu",
    "set_at",
    "set_last_wins",
    "set_row",
    "set_run",
    "stack_bytes",
    "stack_scalars",
    "sum_in_order",
    "without_duplicates",
]
