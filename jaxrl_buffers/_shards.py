"""States that are spread over devices: their parts on single devices, and the whole that is made of such parts.

The leaves of such a state are global arrays, or their shapes, with a `NamedSharding`. All of them are on the same mesh.
Each process sees only the parts on its own devices. Leaves without such a sharding are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxrl_buffers.types import PyTree

Device = Any  # `jax.Device`, which is no type for type checkers


def is_spread(leaf: Any) -> bool:
    """Return whether a leaf lies on the devices of a mesh."""
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) and isinstance(leaf.sharding, NamedSharding)


def is_global(state: PyTree) -> bool:
    """Return whether parts of a state belong to other processes."""
    spread = (leaf.sharding for leaf in jax.tree.leaves(state) if is_spread(leaf))
    return any(not sharding.is_fully_addressable for sharding in spread)


def devices(state: PyTree) -> list[Device | None]:
    """Return the devices of this process that hold parts of a state; `[None]` if the state is not spread."""
    for leaf in jax.tree.leaves(state):
        if is_spread(leaf):
            own = leaf.sharding.addressable_devices
            return [device for device in leaf.sharding.mesh.devices.flat if device in own]
    return [None]


def part(state: PyTree, device: Device | None) -> PyTree:
    """Return the part of a state, or of its shapes, that lies on one device of this process."""

    def of_leaf(leaf: Any) -> Any:
        if device is None or not is_spread(leaf):
            return leaf
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.sharding.shard_shape(leaf.shape), leaf.dtype)
        return next(shard.data for shard in leaf.addressable_shards if shard.device == device)

    return jax.tree.map(of_leaf, state)


def whole(like: PyTree, parts: Sequence[PyTree]) -> PyTree:
    """Return the state whose parts on the devices of this process are given, in the order of `devices(like)`."""
    own = devices(like)
    if own == [None]:
        return parts[0]

    def of_leaves(leaf: Any, *on_devices: Any) -> Any:
        if not is_spread(leaf):
            return on_devices[0]
        placed = [jax.device_put(array, device) for array, device in zip(on_devices, own, strict=True)]
        return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, placed)

    return jax.tree.map(of_leaves, like, *parts)


def start(leaf: Any, device: Device | None) -> list[int]:
    """Return where the part of a leaf that lies on a device begins, along each axis."""
    if device is None or not is_spread(leaf):
        return [0] * len(leaf.shape)
    return [place.start or 0 for place in leaf.sharding.devices_indices_map(leaf.shape)[device]]


def is_first_copy(leaf: Any, device: Device | None) -> bool:
    """Return whether a device is the first of those that hold the same part of a leaf."""
    if device is None or not is_spread(leaf):
        return True
    places = leaf.sharding.devices_indices_map(leaf.shape)
    first = next(other for other in leaf.sharding.mesh.devices.flat if places[other] == places[device])
    return first == device
