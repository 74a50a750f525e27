"""What code inside of `jax.shard_map` needs: values of all devices along an axis of the mesh, and keys of their own.

Under `shard_map(check_vma=True)`, JAX knows of every array over which axes of the mesh it varies. An array that does
not vary over an axis is the same on all devices along this axis. Outside of `shard_map` nothing varies. An `axis` of
None means that there is one device: the functions then return their argument.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any, TypeVar

import jax
from jax import lax
from jax.typing import ArrayLike

from jaxrl_buffers._random.hashing import fold_in
from jaxrl_buffers.component import MESH_AXIS, Component
from jaxrl_buffers.types import PyTree

T = TypeVar("T")
Axis = Hashable | None  # the name of an axis of a mesh


def axes_of(value: ArrayLike) -> frozenset[Any]:
    """Return the axes of the mesh over which a value varies."""
    return frozenset(jax.typeof(value).mat.varying)


def vary(tree: T, *axes: Axis) -> T:
    """Return the same values, declared to vary over these axes."""

    def declared(leaf: jax.Array) -> jax.Array:
        missing = tuple(axis for axis in axes if axis is not None and axis not in axes_of(leaf))
        return lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(declared, tree)


def vary_like(tree: T, other: PyTree) -> T:
    """Return the same values, declared to vary over the axes over which some leaf of `other` varies."""
    axes = frozenset().union(*map(axes_of, jax.tree.leaves(other)))
    return vary(tree, *sorted(axes, key=str)) if axes else tree


def num_devices(axis: Axis) -> int:
    """Return how many devices there are along an axis."""
    return 1 if axis is None else lax.axis_size(axis)


def total(tree: T, axis: Axis) -> T:
    """Return the sums over all devices."""
    return tree if axis is None else lax.psum(vary(tree, axis), axis)


def mean(tree: T, axis: Axis) -> T:
    """Return the means over all devices."""
    return tree if axis is None else lax.pmean(vary(tree, axis), axis)


def largest(tree: T, axis: Axis) -> T:
    """Return the largest values of all devices."""
    return tree if axis is None else lax.pmax(vary(tree, axis), axis)


def smallest(tree: T, axis: Axis) -> T:
    """Return the smallest values of all devices."""
    return tree if axis is None else lax.pmin(vary(tree, axis), axis)


def own_key(key: jax.Array, axis: Axis) -> jax.Array:
    """Return a key that differs from device to device. A key that differs already is returned as it is."""
    if num_devices(axis) == 1 or axis in axes_of(key):
        return key
    return fold_in(key, lax.axis_index(axis))


def across(component: T, axis: Axis) -> T:
    """Return a component in which every part with a field `axis` has this axis.

    Parts are the fields of components, and the entries of their tuples.
    """
    if isinstance(component, tuple):
        parts: Any = tuple(across(part, axis) for part in component)
        if any(new is not old for new, old in zip(parts, component, strict=True)):
            return parts
        return component
    if not isinstance(component, Component):
        return component
    fields: Any = dataclasses.fields(component)  # pyright: ignore[reportArgumentType]
    changes = {field.name: across(getattr(component, field.name), axis) for field in fields}
    changes |= {field.name: axis for field in fields if field.metadata.keys() >= MESH_AXIS.keys()}
    changed = {name: value for name, value in changes.items() if value is not getattr(component, name)}
    return component.replace(**changed) if changed else component
