"""The leaves of a state, in the form in which they are saved.

Only the leaves of a segment tree are saved. Its parents are computed from the leaves, so they are rebuilt exactly. They
can also be rebuilt for another fan-out.

If the environments of a buffer are split over devices, each device has some columns of every array `[T, N, ...]`. A
sampler may have an axis of slots instead, `[T * N]`. Such a leaf is saved as `[T, N]`, or as `[N, T]` if each
environment has a cursor of its own, so that any number of devices can read their columns.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_buffers import _shards as shards
from jaxrl_buffers import segment_tree
from jaxrl_buffers._checks import is_array, kind_of
from jaxrl_buffers._held_rows import ReplayState
from jaxrl_buffers._shards import Device, Leaf, OfDevices
from jaxrl_buffers.segment_tree import SegmentTree
from jaxrl_buffers.storage._leaves import Leaves
from jaxrl_buffers.storage._words import PackedLeaf, Words
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import PerSlot, PyTree


class SideBySide(NamedTuple):
    """States of one kind. They are saved as one state, whose leaves have an additional first axis."""

    states: tuple[Any, ...]


class Stack:
    """One leaf of a `SideBySide`.

    Args:
        parts: the leaf of each state.
    """

    def __init__(self, parts: list[Any]):
        self.parts = parts


class SlotLeaf:
    """A leaf with one entry for each slot of a ring.

    Args:
        leaf: `[..., T * N]`, or a segment tree with such leaves.
        storage: the ring.
    """

    def __init__(self, leaf: Leaf, storage: Ring):
        array = leaf.leaves if isinstance(leaf, SegmentTree) else leaf
        num_lead = len(array.shape) - 1  # a vmapped state has axes in front
        rows = jax.tree.leaves(storage.rows.stored_leaves, is_leaf=_is_packed)[0]
        shape = rows.shape[num_lead : num_lead + 2]
        is_lockstep = len(storage.head.shape) == num_lead
        self.leaf = leaf
        self.shape = (*array.shape[:-1], *(shape if is_lockstep else reversed(shape)))


class SplitLeaf(NamedTuple):
    """A leaf of an `OfDevices`: its shape in one buffer with all environments."""

    leaf: Any
    owner: OfDevices


def flatten(state: PyTree) -> dict[str, Any]:
    """Return the leaves of a state by path.

    A segment tree counts as one leaf. Rows of a ring give the same leaves in every layout. A `SideBySide` has the paths
    of a single state. Of an `OfDevices`, the leaves are the shapes that one buffer with all environments would have.
    """
    if isinstance(state, SideBySide):
        of_states = [flatten(one) for one in state.states]
        return {name: Stack([leaves[name] for leaves in of_states]) for name in of_states[0]}
    leaves = {}
    for path, node in _nodes(_with_slots(state))[0]:
        if isinstance(node, OfDevices):
            inside = flatten(node.like).items()
            leaves |= {f"{jax.tree_util.keystr(path)}{name}": SplitLeaf(leaf, node) for name, leaf in inside}
            continue
        inner = jax.tree.leaves_with_path(node.stored_leaves, is_leaf=_is_packed) if _is_rows(node) else [((), node)]
        leaves |= {jax.tree_util.keystr((*path, *inside)) or "(the state)": leaf for inside, leaf in inner}
    return leaves


def unflatten(like: PyTree, leaves: Iterable[Any]) -> PyTree:
    """Return the state with the given leaves, in the order of `flatten`; rows have the same layout as in `like`."""
    if isinstance(like, SideBySide):
        of_states = zip(*leaves, strict=True)
        return type(like)(tuple(unflatten(one, parts) for one, parts in zip(like.states, of_states, strict=True)))
    nodes, structure = _nodes(like)
    values = iter(leaves)

    def rebuilt(node: PyTree) -> Any:
        if not _is_rows(node):
            return next(values)
        return node.with_tree(jax.tree.map(lambda _: next(values), node.stored_leaves, is_leaf=_is_packed))

    return jax.tree.unflatten(structure, [rebuilt(node) for _, node in nodes])


def _nodes(state: PyTree) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the nodes that are saved as a whole, with their paths, and the structure above them."""
    return jax.tree.flatten_with_path(state, is_leaf=lambda node: _is_tree(node) or _is_rows(node))


def _with_slots(state: PyTree) -> PyTree:
    """Return a state in which the leaves of samplers that have an axis of slots are `SlotLeaf`s."""

    def of_buffer(node: PyTree) -> Any:
        return node._replace(sampler=of_sampler(node.sampler, node.storage)) if _is_buffer(node) else node

    def of_sampler(sampler: PyTree, storage: Ring) -> Any:
        def marked(node: PyTree) -> Any:
            if not isinstance(node, PerSlot):
                return node
            return jax.tree.map(lambda leaf: SlotLeaf(leaf, storage), node, is_leaf=_is_tree)

        return jax.tree.map(marked, sampler, is_leaf=lambda node: isinstance(node, PerSlot))

    return jax.tree.map(of_buffer, state, is_leaf=_is_buffer)


def _is_buffer(node: object) -> bool:
    return isinstance(node, ReplayState)


def _is_tree(node: object) -> bool:
    return isinstance(node, SegmentTree)


def _is_rows(node: object) -> bool:
    return isinstance(node, Leaves | Words)


def _is_packed(leaf: object) -> bool:
    return isinstance(leaf, PackedLeaf)


def kinds(state: PyTree) -> dict[str, str]:
    """Return the kind of each leaf by path, such as `float32[3]`: the same for an array and its `ShapeDtypeStruct`."""
    return {name: kind(name, leaf) for name, leaf in flatten(state).items()}


def kind(name: str, leaf: Leaf, axes: tuple[int, ...] = ()) -> str:
    """Return the kind of one leaf."""
    if isinstance(leaf, Stack):
        return kind(name, leaf.parts[0], (len(leaf.parts),))
    if isinstance(leaf, SlotLeaf | SplitLeaf):
        return kind(name, leaf.leaf, axes)
    if isinstance(leaf, SegmentTree):
        return f"segment tree of {kind_of((*axes, *saved_shape(leaf)), leaf.leaves.dtype)}"
    if is_number(leaf):  # its kind is that of the array that `jax.eval_shape` makes of it
        return kind_of(axes, jax.dtypes.canonicalize_dtype(np.dtype(type(leaf))))
    if not (is_array(leaf) or isinstance(leaf, PackedLeaf)) or leaf.dtype == object:
        raise ValueError(f"leaf {name} is {leaf!r}; a checkpoint can hold arrays, PRNG keys and Python numbers only.")
    return kind_of((*axes, *leaf.shape), leaf.dtype)


def is_number(leaf: Leaf) -> bool:
    """Return whether a leaf is a number of Python."""
    return type(leaf) in (bool, int, float)


def is_key(leaf: Leaf) -> bool:
    """Return whether a leaf holds PRNG keys."""
    return not isinstance(leaf, SegmentTree | SlotLeaf | SplitLeaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def is_numpy(leaf: Leaf) -> bool:
    """Return whether a leaf is restored as a NumPy array: because it is one, or because it has to be packed."""
    return isinstance(leaf, np.ndarray | np.generic | PackedLeaf) and not is_key(leaf)


def saved_shape(leaf: Leaf) -> tuple[int, ...]:
    """Return the shape of the array that is saved for a leaf."""
    if isinstance(leaf, SplitLeaf):
        return saved_shape(leaf.leaf)
    if isinstance(leaf, SegmentTree):
        return (*leaf.leaves.shape[:-1], leaf.capacity)
    if is_number(leaf):
        return ()
    if is_key(leaf):  # packed or not
        return tuple(jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)).shape)
    return tuple(leaf.shape)


def saved_start(leaf: Leaf, part: Leaf, device: Device | None, first: Device | None) -> tuple[tuple[int, ...], bool]:
    """Return where a part begins in the whole leaf, and whether no device before this one has the same part.

    Args:
        leaf: the whole leaf.
        part: its part on the device.
        device: one of this process; None if the state is not spread.
        first: the first device of this process.
    """
    shape = saved_shape(part)
    if isinstance(leaf, SplitLeaf):
        *lead, number = leaf.owner.place(device)
        start, whole = [*lead, *[0] * (len(shape) - len(lead))], saved_shape(leaf)
        # Columns are along the axis that is shorter on one device. What has no columns is the same on all devices.
        columns = [axis for axis in range(len(lead), len(shape)) if shape[axis] != whole[axis]]
        for axis in columns:
            start[axis] = number * shape[axis]
        return tuple(start), bool(columns) or number == 0
    array, num_own = _basis(leaf)
    found = shards.start(array, device) if shards.is_spread(array) else []
    lead = found[: len(found) - num_own]
    if any(found[len(lead) :]):
        raise ValueError("slots are split over devices, but not the environments; wrap the state in `OfDevices`.")
    return (*lead, *[0] * (len(shape) - len(lead))), shards.is_first_copy(array, device, first)


def _basis(leaf: Leaf) -> tuple[Any, int]:
    """Return the array of which a leaf is made, and how many of its last axes are not axes of what is saved."""
    if isinstance(leaf, SlotLeaf):
        return _basis(leaf.leaf)[0], 1
    if isinstance(leaf, SegmentTree):
        return leaf.leaves, 1
    return (leaf.rows.arrays[leaf.array], 2) if isinstance(leaf, PackedLeaf) else (leaf, 0)


def saved_array(leaf: Leaf) -> np.ndarray:
    """Return the array that is saved for a leaf, which must not be spread over devices."""
    array: Any = leaf.leaf if isinstance(leaf, SlotLeaf) else leaf
    if isinstance(array, SegmentTree):
        array = array.leaves[..., : array.capacity]
    elif isinstance(array, PackedLeaf):
        array = array.value()
    array = jax.random.key_data(array) if is_key(array) else array
    return np.asarray(array).reshape(saved_shape(leaf))


def saved_dtype(leaf: Leaf) -> Any:
    """Return the dtype of the array that is saved for a leaf."""
    if isinstance(leaf, SlotLeaf | SplitLeaf):
        return saved_dtype(leaf.leaf)
    if isinstance(leaf, SegmentTree):
        return leaf.leaves.dtype
    return np.dtype(np.uint32) if is_number(leaf) or is_key(leaf) else leaf.dtype


def key_implementation(leaf: Leaf) -> str:
    """Return the name of the generator of PRNG keys."""
    return str(jax.random.key_impl(leaf.value() if isinstance(leaf, PackedLeaf) else leaf))


def from_saved(like: Leaf, array: Any, implementation: str | None) -> Any:
    """Return the leaf for which an array was saved, in the form that it has in `like`."""
    if implementation is not None:
        return jax.random.wrap_key_data(array, impl=implementation)
    if isinstance(like, np.generic):
        return array[()]
    inner = like.leaf if isinstance(like, SlotLeaf) else like
    if isinstance(like, SlotLeaf):
        array = array.reshape(*array.shape[:-2], -1)
    return _tree_of_leaves(array, inner.fan_out) if isinstance(inner, SegmentTree) else array


def _tree_of_leaves(leaves: jax.Array, fan_out: int) -> SegmentTree:
    """Build trees from leaves `[..., capacity]`; the trees of a vmapped state have axes in front."""
    build = functools.partial(segment_tree.from_leaves, fan_out=fan_out)
    for _ in leaves.shape[:-1]:
        build = jax.vmap(build)
    return jax.jit(build)(leaves)
