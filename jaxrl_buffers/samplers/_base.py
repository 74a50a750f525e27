"""What samplers have in common: each base leaves some methods to its classes, and nothing of it is overridden."""

from __future__ import annotations

import abc
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_buffers.component import Component
from jaxrl_buffers.samplers._marking import mark_rows
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import Draw, PyTree, Sampler, Scalar, Window


class Stateless(Component, abc.ABC):
    """A sampler that remembers nothing: the window says which starts are legal, and weights are ones.

    A class of it implements `draw` and `measure`.
    """

    @abc.abstractmethod
    def draw(
        self, state: tuple[()], storage: Ring, key: jax.Array, batch_size: int, window: Window, progress: Scalar = 0.0
    ) -> Draw:
        """Draw `batch_size` starts; consumes `key`."""

    @abc.abstractmethod
    def measure(
        self, state: tuple[()], storage: Ring, slots: jax.Array, window: Window, progress: Scalar = 0.0
    ) -> Draw:
        """Return what `draw` would tell of given slots."""

    def init(self, storage_shape: tuple[int, int], platform: str | None = None) -> tuple[()]:
        """Return no state."""
        return ()

    def mark(
        self, state: tuple[()], slots: jax.Array, legal: jax.Array, priorities: jax.Array | None = None
    ) -> tuple[()]:
        """Do nothing."""
        return state

    def weights(self, draw: Draw) -> jax.Array:
        """Return ones."""
        return jnp.ones_like(draw.mass)

    def update(
        self, state: tuple[()], slots: jax.Array, priorities: jax.Array, live: jax.Array, mask: jax.Array | None = None
    ) -> tuple[()]:
        """Do nothing."""
        return state

    def reprioritize(self, state: tuple[()], legal: jax.Array) -> tuple[()]:
        """Do nothing."""
        return state

    def observe(self, state: tuple[()], mean_return: Scalar) -> tuple[()]:
        """Do nothing."""
        return state


class Wrapping(abc.ABC):
    """A sampler that draws by others: it passes on what it is told, and its weights are those of `sampler`.

    A class of it is also a `PyTreeNode`, with a field `sampler`. It implements `each`, `init`, `draw`, `measure` and
    `observe`, of which a sampler may make use itself before it passes it on. The base is no `PyTreeNode`: its classes
    choose the place of `sampler` among their fields.
    """

    sampler: Sampler

    @abc.abstractmethod
    def each(self, state: PyTree, operation: Callable[[Sampler, PyTree], PyTree]) -> PyTree:
        """Return the state with `operation(sampler, its_state)` in the place of the state of each sampler inside."""

    def mark(self, state: PyTree, slots: jax.Array, legal: jax.Array, priorities: jax.Array | None = None) -> PyTree:
        """Pass on."""
        return self.each(state, lambda sampler, inner: sampler.mark(inner, slots, legal, priorities))

    def mark_rows(
        self, state: PyTree, begin: jax.Array, slots: jax.Array, legal: jax.Array, priorities: jax.Array | None = None
    ) -> PyTree:
        """Pass on."""
        return self.each(state, lambda sampler, inner: mark_rows(sampler, inner, begin, slots, legal, priorities))

    def weights(self, draw: Draw) -> jax.Array:
        """Return the weights that `sampler` gives to the draw."""
        return self.sampler.weights(draw)

    def update(
        self, state: PyTree, slots: jax.Array, priorities: jax.Array, live: jax.Array, mask: jax.Array | None = None
    ) -> PyTree:
        """Pass on."""
        return self.each(state, lambda sampler, inner: sampler.update(inner, slots, priorities, live, mask))

    def reprioritize(self, state: PyTree, legal: jax.Array) -> PyTree:
        """Pass on."""
        return self.each(state, lambda sampler, inner: sampler.reprioritize(inner, legal))
