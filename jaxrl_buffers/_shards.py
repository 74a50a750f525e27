"""States that are spread over devices: their parts on single devices, and the whole that is made of such parts.

The leaves of such a state are global arrays, or their shapes, with a `NamedSharding`. All of them are on the same mesh.
Each process sees only the parts on its own devices. Leaves without such a sharding are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.typing import ArrayLike

from jaxrl_buffers.types import PyTree

Device = Any  # `jax.Device`, which is no type for type checkers
Leaf = Any  # an array or its `ShapeDtypeStruct`, a Python number, or a class of `_saved_leaves` that stands for some


class OfDevices:
    """The state of a buffer whose environments are split over devices: each device has a whole, smaller buffer.

    It is saved like the state of one buffer with all environments. So it is no pytree, but a leaf of one.

    Args:
        state: the states of all devices. Leaves have an axis of devices, which is split over the mesh.
        like: shapes of the state of one buffer with all environments.
        axis: the axis of devices. The axes before it, such as that of seeds, are also in `like`.
    """

    def __init__(self, state: PyTree, like: PyTree, axis: int = 0):
        self.state, self.like, self.axis = state, like, axis

    def place(self, device: Device) -> tuple[int, ...]:
        """Return where the part of a device begins, along the axes up to that of devices; see `start`.

        The last number is the place of the device along the axis of devices.
        """
        return tuple(start(jax.tree.leaves(self.state)[0], device)[: self.axis + 1])


def is_of_devices(node: object) -> bool:
    """Return whether a node of a state is an `OfDevices`."""
    return isinstance(node, OfDevices)


def sharding_of(leaf: object) -> NamedSharding | None:
    """Return how a leaf is spread over the devices of a mesh; None if it is not."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) and isinstance(leaf.sharding, NamedSharding):
        return leaf.sharding
    return None


def is_spread(leaf: object) -> bool:
    """Return whether a leaf lies on the devices of a mesh."""
    return sharding_of(leaf) is not None


def is_global(state: PyTree) -> bool:
    """Return whether parts of a state belong to other processes."""
    return any(not leaf.sharding.is_fully_addressable for leaf in _spread_leaves(state))


def devices(state: PyTree) -> list[Device | None]:
    """Return the devices of this process that hold parts of a state; `[None]` if the state is not spread."""
    for leaf in _spread_leaves(state):
        own = leaf.sharding.addressable_devices
        return [device for device in leaf.sharding.mesh.devices.flat if device in own]
    return [None]


def part(state: PyTree, device: Device | None) -> PyTree:
    """Return the part of a state, or of its shapes, that lies on one device of this process."""

    def of_leaf(leaf: Leaf) -> Any:
        if device is None or not is_spread(leaf):
            return leaf
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.sharding.shard_shape(leaf.shape), leaf.dtype)
        return next(shard.data for shard in leaf.addressable_shards if shard.device == device)

    def of_node(node: PyTree) -> Any:
        if not isinstance(node, OfDevices):
            return of_leaf(node)
        return jax.tree.map(lambda leaf: _without_axis(of_leaf(leaf), node.axis), node.state)

    return jax.tree.map(of_node, state, is_leaf=is_of_devices)


def whole(like: PyTree, parts: Sequence[PyTree]) -> PyTree:
    """Return the state whose parts on the devices of this process are given, in the order of `devices(like)`."""
    own = devices(like)
    if own == [None]:
        return parts[0]

    def of_leaves(leaf: Leaf, *on_devices: Any) -> Any:
        if not is_spread(leaf):
            return on_devices[0]
        placed = [jax.device_put(array, device) for array, device in zip(on_devices, own, strict=True)]
        return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, placed)

    def of_nodes(node: PyTree, *on_devices: Any) -> Any:
        if not isinstance(node, OfDevices):
            return of_leaves(node, *on_devices)

        def with_axis(leaf: Leaf, *parts: Any) -> Any:
            return of_leaves(leaf, *(jnp.expand_dims(part, node.axis) for part in parts))

        return OfDevices(jax.tree.map(with_axis, node.state, *on_devices), node.like, node.axis)

    return jax.tree.map(of_nodes, like, *parts, is_leaf=is_of_devices)


def placed(value: ArrayLike, sharding: NamedSharding) -> jax.Array:
    """Return a value on the devices of a mesh. What is there already stays.

    If some of the devices belong to other processes, all of them must call this, with the same value.
    """
    if isinstance(value, jax.Array) and value.sharding.is_equivalent_to(sharding, value.ndim):
        return value
    if sharding.is_fully_addressable:
        return jax.device_put(value, sharding)
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = placed(jax.random.key_data(value), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
    array = np.asarray(value)
    return jax.make_array_from_callback(array.shape, sharding, lambda place: array[place])


def start(leaf: Leaf, device: Device | None) -> list[int]:
    """Return where the part of a leaf that lies on a device begins, along each axis."""
    if device is None or not is_spread(leaf):
        return [0] * len(leaf.shape)
    return [place.start or 0 for place in leaf.sharding.devices_indices_map(leaf.shape)[device]]


def is_first_copy(leaf: Leaf, device: Device | None, own: Device | None) -> bool:
    """Return whether a device is the first of those that hold the same part of a leaf.

    If a leaf is not spread, every process has it. It counts as a part on `own`, the first device of this process.
    """
    if device is None or not is_spread(leaf):
        return device == own
    places = leaf.sharding.devices_indices_map(leaf.shape)
    first = next(other for other in leaf.sharding.mesh.devices.flat if places[other] == places[device])
    return first == device


def _spread_leaves(state: PyTree) -> list[Any]:
    nodes = jax.tree.leaves(state, is_leaf=is_of_devices)
    leaves = jax.tree.leaves([node.state if isinstance(node, OfDevices) else node for node in nodes])
    return [leaf for leaf in leaves if is_spread(leaf)]


def _without_axis(leaf: Leaf, axis: int) -> Any:
    shape = (*leaf.shape[:axis], *leaf.shape[axis + 1 :])
    return jax.ShapeDtypeStruct(shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf.reshape(shape)
