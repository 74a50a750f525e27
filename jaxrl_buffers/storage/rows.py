"""How the rows of a ring are laid out in memory: each leaf in its own array, or packed into words.

    `Leaves`    One array for each leaf of a row, for CPUs: leaves that a program does not use are never read.
    `Words`     One vector of 32-bit words for each row, for GPUs and TPUs: one gather fetches a whole row, and no
                compiler converts, pads or copies an array as large as the ring. See `_packing.py`.

The layout changes no result. It is chosen from the platform when a buffer is made, and a checkpoint that was saved with
one layout can be restored with the other.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl_buffers.storage._leaves import Leaves
from jaxrl_buffers.storage._words import Words
from jaxrl_buffers.types import PyTree

PLATFORMS = ("cpu", "gpu", "tpu")  # the platforms that rows and segment trees can be laid out for
# On TPU, rows have a multiple of 8 words, and those of more than `TPU_NARROW` words a multiple of 128. In programs they
# take this memory anyway. With other widths, programs would for a while hold a copy of all rows: those for many chips
# when they begin, and with wide rows those that read; see also `_xla.compact`.
TPU_NARROW, TPU_SUBLANES, TPU_LANES = 56, 8, 128


class Rows(Protocol):
    """The rows `[T, N]` of a ring. An `index` of a row is `row * N + env`."""

    @property
    def shape(self) -> tuple[int, int]:
        """`(T, N)`."""
        ...

    @property
    def structure(self) -> PyTree:
        """The shapes and dtypes of one row."""
        ...

    @property
    def tree(self) -> PyTree:
        """All rows: leaves `[T, N, ...]`."""
        ...

    def read(self, index: jax.Array) -> PyTree:
        """Return the rows at indices of any shape."""
        ...

    def read_steps(self, index: list[jax.Array]) -> list[Any]:
        """Read the rows at `index[B]` of each step. The form of the result is for `unpack` and `select` only."""
        ...

    def unpack(self, step: Any) -> PyTree:
        """Return the rows of one step that `read_steps` has read: leaves `[B, ...]`."""
        ...

    def select(self, steps: list[Any], number: jax.Array | int, index: jax.Array) -> PyTree:
        """Return step `number[B]` of each sample: leaves `[B, ...]`.

        Args:
            steps: what `read_steps` has read.
            number: `int32[B]`, or one number for all samples.
            index: `int32[B]`, the index of the row of that step.
        """
        ...

    @property
    def stored_leaves(self) -> PyTree:
        """The leaves `[T, N, ...]` for a checkpoint: arrays, or `PackedLeaf`s whose `value()` is the array."""
        ...

    def with_tree(self, tree: PyTree) -> Rows:
        """Return rows in the same layout that hold the given leaves `[T, N, ...]`."""
        ...

    def write(self, chunk: PyTree, row: jax.Array | int, length: int) -> Rows:
        """Write a chunk `[K, N, ...]` to rows `row, row + 1, ...`; after row `length - 1` comes row 0."""
        ...

    def write_at(self, rows: PyTree, row: jax.Array, env: jax.Array) -> Rows:
        """Write rows `[K, E, ...]` to distinct places `(row, env)`, `[K, E]`; nothing where `row` is `T`."""
        ...

    def set_field(self, name: str, values: jax.Array, row: jax.Array, env: jax.Array) -> Rows:
        """Change one field of the rows at distinct places `(row, env)`, `[E]`."""
        ...


def platform_of(name: str | None) -> str:
    """Return the platform with a name, by default that of JAX. A name that is not in `PLATFORMS` counts as a GPU."""
    chosen = jax.default_backend() if name is None else name
    return chosen if chosen in PLATFORMS else "gpu"


def empty(structure: PyTree, shape: tuple[int, int], platform: str | None) -> Rows:
    """Return rows of zeros of the given `shape` `(T, N)`, in the layout for a platform."""
    platform = platform_of(platform)
    if platform == "cpu":
        return Leaves(jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape), leaf.dtype), structure))
    return Words.empty(structure, shape, _width_on_tpu if platform == "tpu" else None)


def _width_on_tpu(num_words: int) -> int:
    multiple = TPU_SUBLANES if num_words <= TPU_NARROW else TPU_LANES
    return -(-num_words // multiple) * multiple
