"""`Storage`: a ring of rows, and the layers beside it.

A layer stores something beside the rows: the frames of their observations, or the index of their episodes. It takes
part in every write and may change how rows are read. The ring knows nothing of layers, and layers know nothing of each
other.
"""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp

from jaxrl_buffers._fields import named_field
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage.reader import Reader
from jaxrl_buffers.storage.ring import Break, Chunk, Ring
from jaxrl_buffers.types import PyTree


class Layer(Protocol):
    """A part of a storage that keeps its own state beside the rows of the ring."""

    @property
    def place(self) -> str:
        """The field of `Ring` that holds the layer's state."""
        ...

    @property
    def is_wanted(self) -> bool:
        """Whether a new ring gets this layer. A ring that has it keeps it, even if it is no longer wanted."""
        ...

    @property
    def lookback(self) -> int:
        """How many older rows a row needs in order to be read."""
        ...

    def init(self, structure: PyTree, shape: tuple[int, int], platform: str | None) -> PyTree:
        """Return the layer's state for an empty ring of shape `(T, N)`, to which rows of `structure` will be added."""
        ...

    def kept(self, rows: PyTree) -> PyTree:
        """Return the part of added rows that the ring itself stores."""
        ...

    def added(self, storage: Ring, structure: PyTree) -> PyTree:
        """Return the structure of added rows, given the structure of what the ring stores: the inverse of `kept`."""
        ...

    def record(self, before: Ring, chunk: Chunk) -> PyTree:
        """Return the layer's state after a chunk was added, given the ring before the chunk."""
        ...

    def reader(self, storage: Ring, reader: Reader, as_added: bool) -> Reader:
        """Return a reader that restores the fields that the layer stores apart.

        Unless `as_added`, it also adds computed fields, such as returns.
        """
        ...

    def mark_break(self, storage: Ring, broken: Break) -> PyTree:
        """Return the layer's state after open episodes were closed."""
        ...

    def describe(self, storage: Ring) -> dict[str, jax.Array]:
        """Return statistics of the layer, as scalars by name."""
        ...


class Storage(Component):
    """How rows are stored and read; the state is a `Ring`.

    Args:
        layers: what is stored beside the rows. When rows are read, the layers change them in this order.
        length: `T`.
        num_envs: `N`.
        lockstep: all environments are written together.
        platform: the platform that decides the layout of rows; see `rows.py`.
    """

    layers: tuple[Layer, ...]
    length: int = field(static=True)
    num_envs: int = field(static=True)
    lockstep: bool = field(static=True)
    platform: str | None = field(static=True)

    @property
    def lookback(self) -> int:
        """How many older rows a row needs in order to be read."""
        return sum(layer.lookback for layer in self.layers)

    def init(self, structure: PyTree) -> Ring:
        """Return an empty ring for rows of the given shapes and dtypes."""
        shape = (self.length, self.num_envs)
        states = {layer.place: layer.init(structure, shape, self.platform) for layer in self.layers if layer.is_wanted}
        return ring.init(self._kept(structure), *shape, self.lockstep, self.platform)._replace(**states)

    def structure(self, storage: Ring) -> PyTree:
        """Return the shapes and dtypes of one added row."""
        structure = storage.rows.structure
        for layer in reversed(self._present(storage)):
            structure = layer.added(storage, structure)
        return structure

    def add(self, storage: Ring, chunk: Chunk) -> Ring:
        """Append a chunk of rows. In lock-step all its rows are added, otherwise the first `lengths` of each column."""
        kept = chunk._replace(rows=self._kept(chunk.rows))
        written = ring.write(storage, kept.rows) if ring.is_lockstep(storage) else ring.write_at(storage, kept)
        return written._replace(**{layer.place: layer.record(storage, chunk) for layer in self._present(storage)})

    def reader(self, storage: Ring, as_added: bool = False) -> Reader:
        """Return a reader of rows as they were added and, unless `as_added`, with what the layers have computed."""
        reader = Reader(storage)
        for layer in self._present(storage):
            reader = layer.reader(storage, reader, as_added)
        return reader

    def mark_break(self, storage: Ring, where: jax.Array) -> Ring:
        """Close open episodes in the environments `where[N]`: a newest row that is not terminated becomes truncated."""
        _, num_envs = ring.shape(storage)
        env = jnp.arange(num_envs, dtype=jnp.int32)
        row = ring.row_of_age(storage, jnp.zeros_like(env), env)
        newest = ring.read(storage, row, env)
        old = named_field(newest, "truncated")
        is_stored = jnp.broadcast_to(ring.of_env(storage.size, env) > 0, env.shape)
        is_cut = where & is_stored & ~named_field(newest, "terminated").astype(bool)
        broken = Break(where, is_cut, newest, row)
        states = {layer.place: layer.mark_break(storage, broken) for layer in self._present(storage)}
        truncated = jnp.where(is_cut, jnp.ones_like(old), old)
        return storage._replace(rows=storage.rows.set_field("truncated", truncated, row, env), **states)

    def describe(self, storage: Ring) -> dict[str, jax.Array]:
        """Return the statistics of all layers, as scalars by name."""
        return {name: value for layer in self._present(storage) for name, value in layer.describe(storage).items()}

    def _kept(self, rows: PyTree) -> PyTree:
        for layer in self.layers:
            rows = layer.kept(rows)
        return rows

    def _present(self, storage: Ring) -> list[Layer]:
        return [layer for layer in self.layers if jax.tree.leaves(getattr(storage, layer.place))]
