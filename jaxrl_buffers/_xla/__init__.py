"""Every workaround for a compiler, each a function that says what it is for. There are none elsewhere.

Each is plain JAX by default. It is special only on the platform that needs it; the choice is made when a program is
lowered, so a program that is compiled for another platform than that of this machine is right, too. All were seen with
jaxlib 0.10.2, and libtpu 0.0.51 for TPUs. With a new one, take a function's body out: when its test still passes, it
can go.

    values.py     numbers that are computed once, read in order, or summed up in order
    writes.py     writes of single elements and rows
"""

from jaxrl_buffers._xla.values import keep, order_after, stack_bytes, sum_in_order
from jaxrl_buffers._xla.writes import set_at, set_last_wins, set_row, set_run, without_duplicates

__all__ = [
    "keep",
    "order_after",
    "set_at",
    "set_last_wins",
    "set_row",
    "set_run",
    "stack_bytes",
    "sum_in_order",
    "without_duplicates",
]
