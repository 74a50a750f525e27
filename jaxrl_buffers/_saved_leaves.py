"""The leaves of a state, as they are written to a file of arrays and read from it.

Only the leaves of a segment tree are stored. Its parents are computed from the leaves, so they are rebuilt exactly.
They can also be rebuilt for another fan-out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xxhash

from jaxrl_buffers import segment_tree
from jaxrl_buffers._durable import NewFile
from jaxrl_buffers._saved_arrays import Arrays, write_array
from jaxrl_buffers.segment_tree import SegmentTree
from jaxrl_buffers.storage._leaves import Leaves
from jaxrl_buffers.storage._words import PackedLeaf, Words
from jaxrl_buffers.types import PyTree


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


def flatten(state: PyTree) -> dict[str, Any]:
    """Return the leaves of a state by path.

    A segment tree counts as one leaf. Rows of a ring give the same leaves in every layout. A `SideBySide` has the paths
    of a single state.
    """
    if isinstance(state, SideBySide):
        of_states = [flatten(one) for one in state.states]
        return {name: Stack([leaves[name] for leaves in of_states]) for name in of_states[0]}
    leaves = {}
    for path, node in _nodes(state)[0]:
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

    def rebuilt(node: Any) -> Any:
        if not _is_rows(node):
            return next(values)
        return node.with_tree(jax.tree.map(lambda _: next(values), node.stored_leaves, is_leaf=_is_packed))

    return jax.tree.unflatten(structure, [rebuilt(node) for _, node in nodes])


def _nodes(state: PyTree) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the nodes that are saved as a whole, with their paths, and the structure above them."""
    return jax.tree.flatten_with_path(state, is_leaf=lambda node: isinstance(node, SegmentTree) or _is_rows(node))


def _is_rows(node: Any) -> bool:
    return isinstance(node, Leaves | Words)


def _is_packed(leaf: Any) -> bool:
    return isinstance(leaf, PackedLeaf)


def kinds(state: PyTree) -> dict[str, str]:
    """Return the kind of each leaf by path, such as `float32[3]`: the same for an array and its `ShapeDtypeStruct`."""
    return {name: _kind(name, leaf) for name, leaf in flatten(state).items()}


def write(file: NewFile, name: str, leaf: Any) -> dict[str, Any]:
    """Append the value of a leaf to a file; return the record with which `rebuild` finds and checks it."""
    record: dict[str, Any] = {"kind": _kind(name, leaf)}
    parts, axes = (leaf.parts, [len(leaf.parts)]) if isinstance(leaf, Stack) else ([leaf], [])
    if _is_number(parts[0]):
        return record | {"number": parts if axes else leaf}
    if _is_key(parts[0]):
        record["key_implementation"] = str(jax.random.key_impl(_value(parts[0])))
    offset, digest = file.size, xxhash.xxh3_64()
    for part in parts:
        array = np.asarray(_array(part))
        if array.size:  # for an empty array its kind is enough
            write_array(file, array, digest)
            place = {"offset": offset, "dtype": str(array.dtype), "shape": [*axes, *array.shape]}
            record["array"] = place | {"hash": digest.hexdigest()}
    return record


def rebuild(name: str, like: Any, record: dict[str, Any], arrays: Arrays) -> Any:
    """Return the leaf that a record describes, in the form that it has in `like`: a list for a `Stack`."""
    if "number" in record:
        return record["number"]
    if isinstance(like, Stack):
        return _rebuild_parts(name, like.parts, record, arrays)
    if "array" not in record:
        return np.zeros(like.shape, like.dtype) if isinstance(like, np.ndarray) else jnp.zeros(like.shape, like.dtype)
    if isinstance(like, np.ndarray | np.generic | PackedLeaf) and not _is_key(like):
        array = arrays.to_numpy(record["array"])
        return array[()] if isinstance(like, np.generic) else array
    _require_width(name, like)
    return _leaf(like, record, arrays.to_device(record["array"]))


def _rebuild_parts(name: str, likes: list[Any], record: dict[str, Any], arrays: Arrays) -> list[Any]:
    if "array" not in record:
        return [rebuild(name, like, record, arrays) for like in likes]
    if isinstance(likes[0], np.ndarray | np.generic | PackedLeaf) and not _is_key(likes[0]):
        return [*arrays.to_numpy(record["array"])]
    _require_width(name, likes[0])
    parts = arrays.to_device_apart(record["array"])
    return [_leaf(like, record, array) for like, array in zip(likes, parts, strict=True)]


def _require_width(name: str, like: Any) -> None:
    dtype = _array_dtype(like)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(f"leaf {name} is {dtype}, which JAX holds in x64 mode only; set `jax_enable_x64`.")


def _leaf(like: Any, record: dict[str, Any], array: jax.Array) -> Any:
    """Return the leaf that was stored as `array`."""
    if "key_implementation" in record:
        return jax.random.wrap_key_data(array, impl=record["key_implementation"])
    return _tree_of_leaves(array, like.fan_out) if isinstance(like, SegmentTree) else array


def _is_number(leaf: Any) -> bool:
    return type(leaf) in (bool, int, float)


def _is_key(leaf: Any) -> bool:
    return not isinstance(leaf, SegmentTree) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _kind(name: str, leaf: Any, axes: tuple[int, ...] = ()) -> str:
    if isinstance(leaf, Stack):
        return _kind(name, leaf.parts[0], (len(leaf.parts),))
    if isinstance(leaf, SegmentTree):
        return f"segment tree of {_spell((*axes, *leaf.leaves.shape[:-1], leaf.capacity), leaf.leaves.dtype)}"
    if _is_number(leaf):  # its kind is that of the array that `jax.eval_shape` makes of it
        return _spell(axes, jax.dtypes.canonicalize_dtype(np.dtype(type(leaf))))
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype") or leaf.dtype == object:
        raise ValueError(f"leaf {name} is {leaf!r}; a checkpoint can hold arrays, PRNG keys and Python numbers only.")
    return _spell((*axes, *leaf.shape), leaf.dtype)


def _spell(shape: tuple[int, ...], dtype: Any) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _array(leaf: Any) -> Any:
    """Return the array that is stored for a leaf."""
    leaf = _value(leaf)
    if isinstance(leaf, SegmentTree):
        return leaf.leaves[..., : leaf.capacity]
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _value(leaf: Any) -> Any:
    """Return a leaf. If it is packed into the words of its rows, unpack it."""
    return leaf.value() if isinstance(leaf, PackedLeaf) else leaf


def _array_dtype(like: Any) -> Any:
    """Return the dtype of the array that is stored for a leaf."""
    if _is_number(like) or _is_key(like):
        return np.dtype(np.uint32)
    return like.leaves.dtype if isinstance(like, SegmentTree) else like.dtype


def _tree_of_leaves(leaves: jax.Array, fan_out: int) -> SegmentTree:
    """Build trees from leaves `[..., capacity]`; the trees of a vmapped state have axes in front."""
    build = functools.partial(segment_tree.from_leaves, fan_out=fan_out)
    for _ in leaves.shape[:-1]:
        build = jax.vmap(build)
    return jax.jit(build)(leaves)
