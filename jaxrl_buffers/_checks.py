"""Checks of what users pass. Errors say what was given, what is needed and what to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxrl_buffers._checked import check
from jaxrl_buffers.types import Handle, PyTree, View

FLOAT32 = np.finfo(np.float32)  # hyper-parameters become float32 in compiled programs
INT32_LIMIT = 2**31  # and counts become int32
MOST_SHOWN = 200  # how many characters of a bad value an error shows


def require_number(owner: object, name: str, value: Any, least: float, most: float = float(FLOAT32.max)) -> None:
    """Refuse a value that is not a number, or that is outside of `[least, most]`.

    An array passes if all its numbers do. Arrays of JAX and tracers pass: their values may not be known yet.

    Args:
        owner: the component that is made, or the name of the caller.
        name: the name of the hyper-parameter.
        value: its value.
        least: the least value that is allowed.
        most: the largest value that is allowed.
    """
    if not is_number(value) or (_is_known(value) and not np.all((least <= value) & (value <= most))):
        limit = ", and finite in 32 bits" if most == float(FLOAT32.max) else f" and at most {most}"
        limit = "" if most == math.inf else limit
        bound = f" of at least {least}" if least > -float(FLOAT32.max) else ""
        raise ValueError(f"{_name(owner)}({name}={shown(value, str)}): `{name}` must be a number{bound}{limit}.")


def is_number(value: Any) -> bool:
    """Return whether a value is a number, an array of numbers, or the `ShapeDtypeStruct` of one."""
    if isinstance(value, (np.ndarray, jax.Array, jax.ShapeDtypeStruct)):
        return jnp.issubdtype(value.dtype, jnp.number)
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def require_positive(owner: object, name: str) -> None:
    """Refuse a component whose hyper-parameter `name` is not above zero."""
    value = getattr(owner, name)
    require_number(owner, name, value, 0)
    if _is_known(value) and not np.all(value >= float(FLOAT32.tiny)):
        raise ValueError(
            f"{_name(owner)}({name}={value}): `{name}` must be a number above 0 that does not round to 0 in 32 bits."
        )


def require_count(owner: object, name: str, value: Any) -> None:
    """Refuse a hyper-parameter that is not a whole number of at least 0."""
    require_number(owner, name, value, 0, INT32_LIMIT - 1)
    if _is_known(value) and not np.all(value == np.floor(value)):
        raise ValueError(f"{_name(owner)}({name}={value}): `{name}` must be a whole number.")


def _is_known(number: object) -> bool:
    """Return whether the value of a number is known now, and not only when a program runs."""
    return not isinstance(number, (jax.Array, jax.ShapeDtypeStruct))


def _name(owner: object) -> str:
    return owner if isinstance(owner, str) else type(owner).__name__


def require_integer(owner: str, name: str, value: Any, least: int, most: int = INT32_LIMIT - 1) -> None:
    """Refuse a value that is not a whole number in `[least, most]`."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or not least <= value <= most:
        above = "less than 2**31" if most == INT32_LIMIT - 1 else f"at most {most}"
        limit = f" and {above}" if is_integer and value > most else ""
        raise ValueError(f"{owner}({name}={shown(value)}): `{name}` must be a whole number of at least {least}{limit}.")


def require_flag(owner: str, name: str, value: object) -> None:
    """Refuse a value that is neither True nor False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{owner}({name}={shown(value)}): `{name}` must be True or False.")


def shown(value: object, spell: Callable[[Any], str] = repr) -> str:
    """Return a value as errors show it: cut off if it is too long to read."""
    try:
        text = spell(value)
    except ValueError:  # Python does not write out whole numbers of more than 4300 digits
        text = "a whole number of very many digits"
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN // 2]}... ({len(text)} characters)"


def require_choice(owner: str, name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a value that is not among `choices`."""
    if not isinstance(value, str) or value not in choices:
        choice = ", ".join(map(repr, choices))
        raise ValueError(f"{owner}({name}={shown(value)}): `{name}` must be one of {choice}.")


def require_tuple(owner: str, name: str, value: object, of: str) -> None:
    """Refuse a value that is not a tuple."""
    if not isinstance(value, tuple):
        raise ValueError(f"{owner}({name}={shown(value)}): `{name}` must be a tuple of {of}.")


def one_line(error: object) -> str:
    """Return the text of an error or a warning as one line for a terminal."""
    line = " ".join(str(error).split())
    return line if len(line) <= MOST_SHOWN * 10 else f"{line[: MOST_SHOWN * 10]} ..."


def nearest_multiples(value: int, unit: int) -> str:
    """Return the positive multiples of `unit` next to a number that is none, in words.

    Example:
        >>> nearest_multiples(12, 8)
        '8 or 16'
        >>> nearest_multiples(3, 8)
        '8'
    """
    below = value // unit * unit
    return f"{below} or {below + unit}" if below else f"{unit}"


def row_structure(example: PyTree) -> PyTree:
    """Return the shapes and dtypes of one row as `ShapeDtypeStruct`s."""
    if not jax.tree.leaves(example):
        raise ValueError(
            f"init() got the example {example!r}, which holds no arrays; pass one unbatched row, such as a Transition."
        )

    def structure(path: tuple[Any, ...], leaf: Any) -> jax.ShapeDtypeStruct:
        name = jax.tree_util.keystr(path) or "(the example)"
        array = leaf if is_array(leaf) else np.asarray(leaf)
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            return jax.ShapeDtypeStruct(array.shape, array.dtype)
        if array.dtype.kind in "OSUMm":
            raise ValueError(f"init(): leaf {name} is {leaf!r}; only numbers, and arrays of numbers, can be stored.")
        array = leaf if is_array(leaf) else np.asarray(leaf, jnp.asarray(leaf).dtype)
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
                f"add() got {kind_of(*got)} for leaf {name}, but {kind_of(*need)} is needed: axes are "
                "[rows, environments, ...], all leaves have the same number of rows, and each entry is "
                f"{kind_of(entry.shape, entry.dtype)}."
            )
    if num_rows == 0:
        raise ValueError("add() got a chunk of 0 rows; leave the call out, or pass at least one row.")
    if num_rows > length:
        raise ValueError(
            f"add() got {num_rows} rows but the ring holds {length}; raise `length` or add smaller chunks."
        )
    return num_rows


def check_length(owner: str, length: int, view: View, lookback: int) -> None:
    """Refuse a ring that is too short for one sample, or that would at times hold no start of a sample."""
    span = view.span + lookback - view.lookback
    if span > length:
        raise ValueError(
            f"{owner}(length={length}): one sample of {view!r} spans {span} rows, more than the ring holds; raise "
            "`length` or shorten the view."
        )
    if length % view.stride:
        raise ValueError(
            f"{owner}(length={length}): the ring's length must be a multiple of the view's period, {view.stride}, so "
            f"that sequences start at the same rows in every round; {_multiple(length, view.stride)} would do."
        )
    needed = view.lookahead + lookback + view.stride
    if needed > length:
        raise ValueError(
            f"{owner}(length={length}): the ring is too short for {view!r}: a start needs {needed - view.stride} "
            f"other rows, and only one row in {view.stride} is a start; use length={_multiple(needed, view.stride)} or "
            "more, or shorten the view or its period."
        )


def _multiple(number: int, of: int) -> int:
    """Return the least multiple of `of` that is at least `number`."""
    return -(-number // of) * of


def check_env_ids(env_ids: ArrayLike, num_envs: int) -> jax.Array:
    """Return environment numbers as an array. Refuse numbers that are not distinct integers in `[0, num_envs)`.

    Numbers that are known only when a program runs are checked then, inside of `checked()`.
    """
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


def check_shape(caller: str, name: str, value: ArrayLike, *shapes: tuple[int, ...]) -> None:
    """Refuse an argument whose shape is not one of `shapes`."""
    if np.shape(value) not in shapes:
        options = " or ".join(map(str, dict.fromkeys(shapes)))
        raise ValueError(f"{caller}() got `{name}` of shape {np.shape(value)}; {options} is needed.")


def check_handle(caller: str, handle: Handle) -> tuple[int, ...]:
    """Refuse a handle that does not name rows along one axis; return its shape."""
    batch = np.shape(handle.position)[:1]
    check_shape(caller, "handle.position", handle.position, batch or (1,))
    check_shape(caller, "handle.env", handle.env, batch)
    return batch


def is_array(leaf: object) -> TypeGuard[np.ndarray | np.generic | jax.Array | jax.ShapeDtypeStruct]:
    """Return whether a leaf is an array, or describes one."""
    return isinstance(leaf, np.ndarray | np.generic | jax.Array | jax.ShapeDtypeStruct)


def _dtype(leaf: Any) -> Any:
    dtype = leaf.dtype if is_array(leaf) else jnp.asarray(leaf).dtype
    return dtype if jnp.issubdtype(dtype, jax.dtypes.prng_key) else jax.dtypes.canonicalize_dtype(dtype)


def kind_of(shape: tuple[int, ...], dtype: object) -> str:
    """Return the kind of an array in words, such as `float32[3, 4]`."""
    return f"{dtype}[{', '.join(map(str, shape))}]"


def first_difference(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return the first name whose texts differ, with both texts; None if there is no such name.

    A name that is missing on one side has the text `nothing` there.

    Example:
        >>> first_difference({"['w']": "float32[3]", "['b']": "float32[]"}, {"['w']": "float32[3]"})
        ("['b']", 'float32[]', 'nothing')
    """
    for name in {**one, **other}:
        if one.get(name) != other.get(name):
            return name, one.get(name, "nothing"), other.get(name, "nothing")
    return None
