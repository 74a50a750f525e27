"""Where the frames of observations are stored, and which of them can still be read.

Transitions repeat frames: the `next_obs` of a row is the `obs` of the next row, and two consecutive stacks differ by
one frame. So only the newest frame of each `obs` is stored. Here is an example of one environment with stacks of three
frames. The first episode ends at row 3, and the second one has not ended:

    row               0    1    2    3    4    5
    stored frame      a    b    c    d    p    q
    `obs`            aaa  aab  abc  bcd  ppp  ppq
    `next_obs`       aab  abc  bcd  cde  ppq  pqr
    `steps`           0    1    2    2    0    1
    `final`                          0

The frame `e` is the last frame of the first episode, and `r` was seen after the newest row. Neither of them is the
newest frame of any `obs`, so they get places of their own. All frames are in one array, and any stack can be read by
one gather:

    place             0 ... T-1         T ... T+F-1                     T+F
    holds             one a row         a ring of F final frames        the frame after the newest row
    in the example    a b c d p q       e                               r

In each environment, final frames are numbered in the order in which they are written; number `k` is at `T + k mod F`.
Numbers count modulo a large multiple of `F`. If at least `F` newer final frames were written, the frame was replaced.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_buffers._fields import named_field
from jaxrl_buffers._xla import compact, set_at
from jaxrl_buffers.component import Component
from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage._leaves import write_rows
from jaxrl_buffers.storage.ring import Places, Ring
from jaxrl_buffers.storage.rows import Rows
from jaxrl_buffers.types import PyTree


class FrameStore(Component):
    """The frames of a ring, and the numbers by which the stack of a row is found."""

    images: Rows  # [T + F + 1, N]: frames of rows, final frames, the frame after the newest row
    steps: jax.Array  # int32[T, N]: how many earlier rows the row's episode has, at most stack - 1
    final: jax.Array  # int32[T, N]: the number of the final frame, where the row ends an episode
    next_steps: jax.Array  # int32[N]: `steps` of the row to be written next, at most stack; 0 if it begins an episode
    next_final: jax.Array  # int32[N]: the number that the next final frame gets


def num_finals(storage: Ring) -> int:
    """Return `F`: how many final frames are kept for each environment."""
    return storage.frames.images.shape[0] - ring.shape(storage)[0] - 1


def modulus(num_finals: int) -> int:
    """Return the modulus of the numbers of final frames: the largest multiple of `F` within the limit."""
    return ring.POSITION_LIMIT // num_finals * num_finals


def is_end(rows: PyTree) -> jax.Array:
    """Return whether rows end an episode."""
    return named_field(rows, "terminated").astype(bool) | named_field(rows, "truncated").astype(bool)


def is_lost(storage: Ring, row: jax.Array, env: jax.Array) -> jax.Array:
    """Return whether stored rows end an episode whose final frame has been overwritten."""
    store, count = storage.frames, num_finals(storage)
    number = store.final.at[row, env].get(mode="clip")
    age = ring.wrap(ring.of_env(store.next_final, env) - 1 - number, modulus(count))
    return is_end(ring.read(storage, row, env)) & (age >= count)


def has_field(storage: Ring, row: jax.Array, env: jax.Array, field: str | None) -> jax.Array:
    """Return whether a named field of stored rows can be read; None asks for all fields."""
    if field not in ("obs", "next_obs", None):
        return jnp.ones(row.shape, bool)
    steps = storage.frames.steps.at[row, env].get(mode="clip")
    has_stack = ring.age_of_row(storage, row, env) + steps < ring.of_env(storage.size, env)
    return has_stack if field == "obs" else has_stack & ~is_lost(storage, row, env)


def write_numbers(storage: Ring, numbers: jax.Array, places: Places, values: jax.Array) -> jax.Array:
    """Write `values[K, E]` for the rows of a chunk into `numbers[T, N]`, as a block of rows in lock-step."""
    if not ring.is_lockstep(storage):
        return write_numbers_at(numbers, places.row, places.env, values)
    length, _ = ring.shape(storage)
    return compact(write_rows(numbers, values, storage.head % length, length))


def write_numbers_at(numbers: jax.Array, row: jax.Array, env: jax.Array, values: jax.Array) -> jax.Array:
    """Write values to distinct places `(row, env)` of `numbers[T, N]`. Nothing is written where `row` is `T`."""
    return set_at(numbers, (row.reshape(-1), env.reshape(-1)), values.reshape(-1))
