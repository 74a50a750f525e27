"""Base classes of samplers. Derived classes implement the abstract methods, and override none of the others."""

from __future__ import annotations

import abc
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_buffers import _needs as needs
from jaxrl_buffers.component import Component
from jaxrl_buffers.samplers._marking import mark_rows
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import Draw, PyTree, Sampler, Scalar, Window


class Stateless(Component, abc.ABC):
    """A sampler without a state: it draws from the window alone, and all weights are one.

    A derived class implements `draw` and `measure`.
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
        """Return the `Draw` of `slots`, as if they had been drawn. A slot that cannot be drawn has a mass of zero."""

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

    def report_return(self, state: tuple[()], mean_return: Scalar) -> tuple[()]:
        """Do nothing."""
        return state


class PassingOn(abc.ABC):
    """A sampler with other samplers inside. It passes on to them what the buffer reports about rows and priorities."""

    @property
    @abc.abstractmethod
    def inner(self) -> tuple[Sampler, ...]:
        """The samplers inside."""

    @property
    def needs_episodes(self) -> bool:
        """Whether a sampler inside reads the episode index."""
        return any(map(needs.episodes, self.inner))

    @property
    def needs_every_env(self) -> bool:
        """Whether a sampler inside draws from every environment."""
        return any(map(needs.every_env, self.inner))

    @abc.abstractmethod
    def each(self, state: PyTree, operation: Callable[[Sampler, PyTree], PyTree]) -> PyTree:
        """Apply `operation(sampler, its_state)` to each sampler inside; return the state with the results."""

    def mark(self, state: PyTree, slots: jax.Array, legal: jax.Array, priorities: jax.Array | None = None) -> PyTree:
        """Pass the call on to the samplers inside."""
        return self.each(state, lambda sampler, inner: sampler.mark(inner, slots, legal, priorities))

    def mark_rows(
        self, state: PyTree, begin: jax.Array, slots: jax.Array, legal: jax.Array, priorities: jax.Array | None = None
    ) -> PyTree:
        """Pass the call on to the samplers inside."""
        return self.each(state, lambda sampler, inner: mark_rows(sampler, inner, begin, slots, legal, priorities))

    def update(
        self, state: PyTree, slots: jax.Array, priorities: jax.Array, live: jax.Array, mask: jax.Array | None = None
    ) -> PyTree:
        """Pass the call on to the samplers inside."""
        return self.each(state, lambda sampler, inner: sampler.update(inner, slots, priorities, live, mask))

    def reprioritize(self, state: PyTree, legal: jax.Array) -> PyTree:
        """Pass the call on to the samplers inside."""
        return self.each(state, lambda sampler, inner: sampler.reprioritize(inner, legal))


class Wrapping(PassingOn):
    """A sampler around other samplers: it passes every call on to them. One of them, `sampler`, computes the weights.

    A derived class is also a `Component` with a field `sampler`. It implements `inner`, `each`, `init`, `draw`,
    `measure` and `report_return`. This base class is not a `Component`, so that a derived class can choose the place of
    `sampler` among its fields.
    """

    sampler: Sampler

    def weights(self, draw: Draw) -> jax.Array:
        """Return the weights that `sampler` gives to the draw."""
        return self.sampler.weights(draw)


class OneInside:
    """The part of a sampler that has only one sampler inside, whose state is also its own state.

    A derived class is also a `PassingOn`, and a `Component` with a field `sampler`.
    """

    sampler: Sampler

    @property
    def inner(self) -> tuple[Sampler, ...]:
        """The sampler inside."""
        return (self.sampler,)

    def init(self, storage_shape: tuple[int, int], platform: str | None = None) -> PyTree:
        """Return the state of the sampler inside."""
        return self.sampler.init(storage_shape, platform)

    def each(self, state: PyTree, operation: Callable[[Sampler, PyTree], PyTree]) -> PyTree:
        """Return the state of the sampler inside after an operation."""
        return operation(self.sampler, state)

    def report_return(self, state: PyTree, mean_return: Scalar) -> PyTree:
        """Pass the report on to the sampler inside."""
        return self.sampler.report_return(state, mean_return)
