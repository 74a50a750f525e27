"""How the rows of a ring lie in memory: leaves apart, or all leaves of a row packed into words.

`Leaves` keeps an array for every leaf of a row, as CPUs like it: what is not asked for is never read. `Words` packs the
leaves of a row into one vector of 32-bit words, as GPUs and TPUs like it: one gather fetches a whole row, and no
compiler converts, pads or copies an array as large as the ring (`_packing.py` says how leaves are packed).

The layout changes no result. It is chosen when a buffer is made, from the platform, and a checkpoint made under one can
be restored under the other.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl_buffers._checks import require_choice
from jaxrl_buffers.storage._leaves import Leaves
from jaxrl_buffers.storage._words import Words
from jaxrl_buffers.types import PyTree

PLATFORMS = ("cpu", "gpu", "tpu")
TPU_LANES = 128  # rows wider than this, but no multiple of it, cost TPUs a copy of the whole array


class Rows(Protocol):
    """The rows `[T, N]` of a ring. Where one is named by `index`, that is `row * N + env`."""

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
        """Return the rows at `index[B]` of each step, each in a form that `unpack` and `select` know."""
        ...

    def unpack(self, step: Any) -> PyTree:
        """Return the rows of one step: leaves `[B, ...]`."""
        ...

    def select(self, steps: list[Any], number: jax.Array | int, index: jax.Array) -> PyTree:
        """Return of each sample the step of `number[B]`, whose row is at `index[B]`: leaves `[B, ...]`."""
        ...

    @property
    def stored_leaves(self) -> PyTree:
        """The leaves `[T, N, ...]` as a checkpoint saves them: arrays, or what gives them when asked."""
        ...

    def with_tree(self, tree: PyTree) -> Rows:
        """Return rows that hold other leaves `[T, N, ...]`, in the same layout."""
        ...

    def write(self, chunk: PyTree, row: jax.Array | int, length: int) -> Rows:
        """Write a chunk `[K, N, ...]` from `row` on, going on at row 0 behind the first `length` rows."""
        ...

    def write_at(self, rows: PyTree, row: jax.Array, env: jax.Array) -> Rows:
        """Write rows `[K, E, ...]` to distinct places `[K, E]`; where `row` is `T`, nothing is written."""
        ...

    def set_field(self, name: str, values: jax.Array, row: jax.Array, env: jax.Array) -> Rows:
        """Change one field of the rows at distinct places `[E]`."""
        ...


def empty(structure: PyTree, shape: tuple[int, int], platform: str | None) -> Rows:
    """Return rows of zeros, laid out for a platform."""
    platform = resolve(platform)
    if platform == "cpu":
        return Leaves(jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape), leaf.dtype), structure))
    return Words.empty(structure, shape, multiple=TPU_LANES if platform == "tpu" else 1)


def resolve(platform: str | None) -> str:
    """Return the platform that is meant: by default the one that JAX uses."""
    if platform is None:
        platform = jax.default_backend()
        return platform if platform in PLATFORMS else "gpu"
    require_choice("ReplayBuffer", "platform", platform, PLATFORMS)
    return platform
