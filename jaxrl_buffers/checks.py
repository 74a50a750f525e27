"""Checks where user data enters: errors say what was given, what is needed and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_buffers.types import PyTree


def require_at_least(owner: str, name: str, value: Any, least: float) -> None:
    """Refuse a concrete number below `least`; tracers and arrays pass."""
    if isinstance(value, (int, float)) and not value >= least:
        raise ValueError(f"{owner}({name}={value}): `{name}` must be a number of at least {least}.")


def require_integer(owner: str, name: str, value: Any, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise ValueError(f"{owner}({name}={value!r}): `{name}` must be a whole number of at least {least}.")


def require_choice(owner: str, name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse what is not among `choices`."""
    if value not in choices:
        raise ValueError(f"{owner}({name}={value!r}): `{name}` must be one of {', '.join(map(repr, choices))}.")


def row_structure(example: PyTree) -> PyTree:
    """Return the shapes and dtypes of one row as `ShapeDtypeStruct`s."""
    if not jax.tree.leaves(example):
        raise ValueError(
            f"init() got the example {example!r}, which holds no arrays; pass one unbatched row, such as a Transition."
        )

    def structure(leaf: Any) -> jax.ShapeDtypeStruct:
        leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf, jnp.asarray(leaf).dtype)
        return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))

    return jax.tree.map(structure, example)


def check_chunk(chunk: PyTree, data: PyTree, num_columns: int) -> int:
    """Check leaves `[K, num_columns, ...]` against the storage's `[T, N, ...]`; return `K`."""
    given, stored = jax.tree.structure(chunk), jax.tree.structure(data)
    if given != stored:
        raise ValueError(
            f"add() got a chunk of structure {given}, but the buffer stores {stored}; "
            "pass the same structure as the example given to init()."
        )
    leaves = jax.tree.leaves_with_path(chunk)
    num_rows = np.shape(leaves[0][1])[0] if np.ndim(leaves[0][1]) else 0
    for (path, leaf), kept in zip(leaves, jax.tree.leaves(data), strict=True):
        name = jax.tree_util.keystr(path) or "(the chunk)"
        row = (np.shape(leaf), _dtype(leaf))
        need = ((num_rows, num_columns, *kept.shape[2:]), kept.dtype)
        if row != need:
            raise ValueError(
                f"add() got {_spell(*row)} for leaf {name}, but {_spell(*need)} is needed: axes are [rows, environments, "
                f"...], all leaves have the same number of rows, and each entry is {_spell(kept.shape[2:], kept.dtype)}."
            )
    length = jax.tree.leaves(data)[0].shape[0]
    if num_rows == 0:
        raise ValueError("add() got a chunk of 0 rows; leave the call out, or pass at least one row.")
    if num_rows > length:
        raise ValueError(
            f"add() got {num_rows} rows but the ring holds {length}; raise `length` or add smaller chunks."
        )
    return num_rows


def check_env_ids(env_ids: Any, num_envs: int) -> jax.Array:
    """Check environment numbers: one axis, whole numbers; in range and distinct as far as they are known now."""
    if np.ndim(env_ids) != 1 or not np.issubdtype(_dtype(env_ids), np.integer):
        raise ValueError(
            f"`env_ids` has shape {np.shape(env_ids)} and dtype {_dtype(env_ids)}; pass one axis of whole numbers."
        )
    if not isinstance(env_ids, jax.core.Tracer):
        known = np.asarray(env_ids)
        if np.unique(known).size != known.size:
            raise ValueError(f"`env_ids` {known.tolist()} names an environment twice; add its rows in one column.")
        if known.size and not (0 <= known.min() and known.max() < num_envs):
            raise ValueError(f"`env_ids` {known.tolist()} must lie between 0 and {num_envs - 1}.")
    return jnp.asarray(env_ids, jnp.int32)


def check_shape(caller: str, name: str, value: Any, *shapes: tuple[int, ...]) -> None:
    """Refuse an argument of another shape than those listed."""
    if np.shape(value) not in shapes:
        options = " or ".join(map(str, shapes))
        raise ValueError(f"{caller}() got `{name}` of shape {np.shape(value)}; {options} is needed.")


def named_field(rows: PyTree, name: str) -> PyTree:
    """Return a field of stored rows by attribute, key or index; refuse unknown names with a list of the known ones."""
    if isinstance(rows, dict):
        fields = rows
    elif hasattr(rows, "_fields"):
        fields = rows._asdict()
    elif isinstance(rows, (tuple, list)):
        fields = {str(index): value for index, value in enumerate(rows)}
    else:
        fields = {key: value for key, value in getattr(rows, "__dict__", {}).items() if not key.startswith("_")}
    if name not in fields:
        known = ", ".join(map(str, fields)) or "none: it is a single array"
        raise ValueError(f"there is no field {name!r} in the stored rows; their fields are: {known}.")
    return fields[name]


def _dtype(leaf: Any) -> np.dtype:
    return jax.dtypes.canonicalize_dtype(leaf.dtype if hasattr(leaf, "dtype") else jnp.asarray(leaf).dtype)


def _spell(shape: tuple[int, ...], dtype: Any) -> str:
    return f"{np.dtype(dtype).name}{list(shape)}"
