"""Checks where user data enters: errors say what was given, what is needed and what to do."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.core import Tracer

from jaxrl_buffers.checked import check
from jaxrl_buffers.types import Handle, PyTree, Transition


def require_number(owner: str, name: str, value: Any, least: float, most: float = math.inf) -> None:
    """Refuse a string, or a number outside `[least, most]`; tracers and what JAX puts in their place pass."""
    is_number = isinstance(value, (int, float, np.number))
    if isinstance(value, str) or (is_number and not least <= value <= most):
        limit = "" if most == math.inf else f" and at most {most}"
        raise ValueError(f"{owner}({name}={value}): `{name}` must be a number of at least {least}{limit}.")


def require_integer(owner: str, name: str, value: Any, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise ValueError(f"{owner}({name}={value!r}): `{name}` must be a whole number of at least {least}.")


def require_choice(owner: str, name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse what is not among `choices`."""
    if value not in choices:
        raise ValueError(f"{owner}({name}={value!r}): `{name}` must be one of {', '.join(map(repr, choices))}.")


def require_tuple(owner: str, name: str, value: Any, of: str) -> None:
    """Refuse a list, a single number or a single component; what JAX puts in the place of a tuple passes."""
    if isinstance(value, (list, int, float, np.number, struct.PyTreeNode)):
        raise ValueError(f"{owner}({name}={value!r}): `{name}` must be a tuple of {of}.")


def row_structure(example: PyTree) -> PyTree:
    """Return the shapes and dtypes of one row as `ShapeDtypeStruct`s."""
    if not jax.tree.leaves(example):
        raise ValueError(
            f"init() got the example {example!r}, which holds no arrays; pass one unbatched row, such as a Transition."
        )

    def structure(path: tuple[Any, ...], leaf: Any) -> jax.ShapeDtypeStruct:
        name = jax.tree_util.keystr(path) or "(the example)"
        array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            raise ValueError(f"init(): leaf {name} is a PRNG key; store `jax.random.key_data(key)` instead.")
        if array.dtype.kind in "OSUMm":
            raise ValueError(f"init(): leaf {name} is {leaf!r}; only numbers, and arrays of numbers, can be stored.")
        array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf, jnp.asarray(leaf).dtype)
        return jax.ShapeDtypeStruct(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))

    return jax.tree_util.tree_map_with_path(structure, example)


def check_chunk(chunk: PyTree, row: PyTree, length: int, num_columns: int) -> int:
    """Check leaves `[K, num_columns, ...]` against the shapes and dtypes of one row; return `K`, at most `length`."""
    given, stored = jax.tree.structure(chunk), jax.tree.structure(row)
    if given != stored:
        raise ValueError(
            f"add() got a chunk of structure {given}, but the buffer stores {stored}; "
            "pass the same structure as the example given to init()."
        )
    leaves = jax.tree.leaves_with_path(chunk)
    num_rows = int(np.shape(leaves[0][1])[0]) if np.ndim(leaves[0][1]) else 1
    for (path, leaf), entry in zip(leaves, jax.tree.leaves(row), strict=True):
        name = jax.tree_util.keystr(path) or "(the chunk)"
        got = (np.shape(leaf), _dtype(leaf))
        need = ((num_rows, num_columns, *entry.shape), entry.dtype)
        if got != need:
            raise ValueError(
                f"add() got {_spell(*got)} for leaf {name}, but {_spell(*need)} is needed: axes are "
                "[rows, environments, ...], all leaves have the same number of rows, and each entry is "
                f"{_spell(entry.shape, entry.dtype)}."
            )
    if num_rows == 0:
        raise ValueError("add() got a chunk of 0 rows; leave the call out, or pass at least one row.")
    if num_rows > length:
        raise ValueError(
            f"add() got {num_rows} rows but the ring holds {length}; raise `length` or add smaller chunks."
        )
    return num_rows


def check_env_ids(env_ids: Any, num_envs: int) -> jax.Array:
    """Check environment numbers: one axis, whole numbers; in range and distinct, if they are known now."""
    if np.ndim(env_ids) != 1 or not np.issubdtype(_dtype(env_ids), np.integer):
        raise ValueError(
            f"`env_ids` has shape {np.shape(env_ids)} and dtype {_dtype(env_ids)}; pass one axis of whole numbers."
        )
    if not isinstance(env_ids, Tracer):
        known = np.asarray(env_ids)
        if not known.size:
            raise ValueError("`env_ids` names no environment; leave the call out, or name at least one.")
        if np.unique(known).size != known.size:
            raise ValueError(f"`env_ids` {known.tolist()} names an environment twice; add its rows in one column.")
        if known.min() < 0 or known.max() >= num_envs:
            raise ValueError(f"`env_ids` {known.tolist()} must lie between 0 and {num_envs - 1}.")
    env = jnp.asarray(env_ids, jnp.int32)
    check(lambda: jnp.all((env >= 0) & (env < num_envs)), f"`env_ids` must lie between 0 and {num_envs - 1}")
    check(lambda: jnp.all(jnp.diff(jnp.sort(env)) != 0), "`env_ids` names an environment twice")
    return env


def check_shape(caller: str, name: str, value: Any, *shapes: tuple[int, ...]) -> None:
    """Refuse an argument of another shape than those listed."""
    if np.shape(value) not in shapes:
        options = " or ".join(map(str, dict.fromkeys(shapes)))
        raise ValueError(f"{caller}() got `{name}` of shape {np.shape(value)}; {options} is needed.")


def check_handle(caller: str, handle: Handle) -> tuple[int, ...]:
    """Refuse a handle that does not name rows along one axis; return its shape."""
    batch = np.shape(handle.position)[:1]
    check_shape(caller, "handle.position", handle.position, batch or (1,))
    check_shape(caller, "handle.env", handle.env, batch)
    return batch


def check_fields(row: PyTree, view: str, names: Sequence[str]) -> None:
    """Check that a row has the fields which a view reads, and that the flags among them are single values."""
    for name in names:
        try:
            field_at(row, name)
        except ValueError as error:
            raise ValueError(f"init(): {view} needs the field {name!r}; {error}") from None
    flags = {"terminated", "truncated"} if isinstance(row, Transition) else {"terminated", "truncated"} & {*names}
    for name in sorted(flags):
        if getattr(named_field(row, name), "shape", None) != ():
            raise ValueError(
                f"init(): {name!r} must be a single flag a transition, but the example has {named_field(row, name)}; "
                "squeeze it."
            )


def named_field(rows: PyTree, name: str) -> PyTree:
    """Return a field of stored rows by attribute, key or index; refuse unknown names with a list of the known ones."""
    if isinstance(rows, dict):
        fields = rows
    elif hasattr(rows, "_fields"):
        fields = rows._asdict()
    elif isinstance(rows, (tuple, list)):
        fields = {str(index): value for index, value in enumerate(rows)}
    elif dataclasses.is_dataclass(rows) and not jax.tree_util.all_leaves([rows]):
        fields = {field.name: getattr(rows, field.name) for field in dataclasses.fields(rows)}
    else:
        fields = {}
    if name not in fields:
        known = ", ".join(map(str, fields)) or "none: it is a single array"
        raise ValueError(f"there is no field {name!r} in the stored rows; their fields are: {known}.")
    return fields[name]


def field_at(rows: PyTree, path: str) -> PyTree:
    """Return the field of stored rows at a dotted path, such as `"obs.image"`."""
    for name in path.split("."):
        rows = named_field(rows, name)
    return rows


def with_field(rows: PyTree, name: str, value: PyTree) -> PyTree:
    """Return rows with one of their named fields changed."""
    named_field(rows, name)
    if isinstance(rows, dict):
        return rows | {name: value}
    return rows._replace(**{name: value}) if hasattr(rows, "_replace") else dataclasses.replace(rows, **{name: value})


def _dtype(leaf: Any) -> np.dtype:
    return jax.dtypes.canonicalize_dtype(leaf.dtype if hasattr(leaf, "dtype") else jnp.asarray(leaf).dtype)


def _spell(shape: tuple[int, ...], dtype: Any) -> str:
    return f"{np.dtype(dtype).name}[{', '.join(map(str, shape))}]"
