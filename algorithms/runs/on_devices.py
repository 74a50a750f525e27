"""Runs members on a mesh of devices; see `side_by_side`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from algorithms.runs.saved_states import SavedStates
from algorithms.training import parallel
from algorithms.training.plan import AXIS
from jaxrl_buffers import _shards as shards
from jaxrl_buffers.types import PyTree

if TYPE_CHECKING:
    from algorithms.runs.side_by_side import Way


class OnDevices:
    """Members split over the groups of a mesh, each shared by the devices of its group.

    Args:
        mesh: from `parallel.make_mesh`. It has an axis of seeds if there are several members.
        members: the way in which states are put together of those of single members.
    """

    def __init__(self, mesh: Mesh, members: Way):
        self._mesh, self._members = mesh, members

    def split(self, values: PyTree) -> Any:
        """Put values where the programs need them."""
        return self._placed(self._members.split(values))

    def shapes(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the shapes of the training state that it gives, and how they are split over the devices."""
        like = jax.eval_shape(parallel.spread(function, self._mesh, gives_state=True), *args)
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            like,
            parallel.shardings(self._mesh, like),
        )

    def compiled(
        self,
        function: Callable[..., Any],
        donate: Sequence[int] = (),
        num_shared: int = 0,
        gives_state: bool = False,
    ) -> Any:
        """Run the function on all devices."""
        program = jax.jit(parallel.spread(function, self._mesh, num_shared, gives_state), donate_argnums=donate)

        def of_all(*args: Any) -> Any:
            num_own = len(args) - num_shared
            return program(*map(self._placed, args[:num_own]), *args[num_own:])

        return of_all

    def repeated(self, advance: Callable[[int], Callable[..., Any]], count: int, own: PyTree, like: PyTree) -> Any:
        """Compile all repetitions at once."""
        spread = parallel.spread(advance(count), self._mesh, gives_state=True)
        program = jax.jit(spread, donate_argnums=1).lower(own, like).compile()
        return lambda state: program(own, self._placed(state))

    def gathered(self, values: PyTree) -> PyTree:
        """Return the result of the first device of each group."""
        return self._members.gathered(jax.tree.map(_fetched, values))

    def apart(self, states: PyTree, size: int) -> Iterable[Any]:
        """Cut the axis of members."""
        return self._members.apart(states, size)

    def saved_states(self, function: Callable[..., Any], own: PyTree, like: PyTree) -> SavedStates:
        """Return how the states of all members are saved.

        Args:
            function: returns the state of a member that has one device for itself.
            own: the values of all members.
            like: shapes of the states of all members.
        """
        axis = 1 if parallel.SEEDS in self._mesh.axis_names else 0
        return SavedStates(like, self._members.shapes(function, own), self._mesh.shape[AXIS], axis)

    def joined(self, groups: list[Any], size: int) -> Any:
        """Put the groups one after the other along the axis of members."""
        return self._members.joined(groups, size)

    def _placed(self, values: PyTree) -> PyTree:
        """Move values to the devices that need them. Values that are already there are not copied."""
        return jax.tree.map(shards.placed, values, parallel.shardings(self._mesh, values))


def _fetched(value: Any) -> Any:
    """Return a value that this process can read. Parts of it may be on devices of other processes."""
    if not isinstance(value, jax.Array) or value.is_fully_addressable or value.is_fully_replicated:
        return value
    return multihost_utils.process_allgather(value, tiled=True)
