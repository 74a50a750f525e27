"""The protocols of agents' states. The states themselves are NamedTuples."""

from __future__ import annotations

from typing import Any, Protocol, Self, runtime_checkable

import jax

from jaxrl_buffers.types import PyTree


@runtime_checkable
class HasParams(Protocol):
    """A state whose field `params` holds everything that acting depends on. It is always a NamedTuple."""

    @property
    def params(self) -> PyTree:
        """The trained parameters."""
        ...

    def _replace(self, **changes: Any) -> Self: ...


class Groups(Protocol):
    """A NamedTuple with one entry for each group of parameters.

    The entries are the parameters of the groups, or their gradients, or the states of their optimizers.
    """

    @property
    def addons(self) -> tuple[PyTree, ...]:
        """One entry for each add-on."""
        ...

    def _replace(self, **changes: PyTree) -> Self: ...


class LearnerState(Protocol):
    """The state of a `LearnerAgent`: a NamedTuple. Its parameters come in groups."""

    @property
    def params(self) -> Groups:
        """The trained parameters."""
        ...

    @property
    def optimizer(self) -> Groups:
        """The states of the optimizers, one for each group."""
        ...

    @property
    def num_updates(self) -> jax.Array:
        """How many updates have been made, `int32[]`."""
        ...

    def _replace(self, **changes: Any) -> Self: ...


class TargetState(LearnerState, Protocol):
    """The state of a `TargetAgent`."""

    @property
    def target(self) -> PyTree:
        """The parameters of the target networks."""
        ...
