"""Fields of stored rows by name: of named tuples, dicts, dataclasses and tuples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax

from jaxrl_buffers.types import PyTree, Transition


def check_fields(row: PyTree, view: str, names: Sequence[str]) -> None:
    """Refuse a row that lacks a field that a view reads, or whose flags are not scalars."""
    for name in names:
        try:
            field_at(row, name)
        except ValueError as error:
            raise ValueError(f"init(): {view} needs the field {name!r}; {error}") from None
    flags = {"terminated", "truncated"} if isinstance(row, Transition) else {"terminated", "truncated"} & {*names}
    for name in sorted(flags):
        if not jax.tree_util.all_leaves([named_field(row, name)]) or named_field(row, name).shape != ():
            raise ValueError(
                f"init(): {name!r} must be one flag per transition, but the example has {named_field(row, name)}; "
                "squeeze it."
            )


def named_field(rows: PyTree, name: str) -> PyTree:
    """Return a field of stored rows by attribute, key or index."""
    fields = _fields_of(rows)
    if name not in fields:
        known = ", ".join(map(str, fields)) or "none: it is a single array"
        raise ValueError(f"there is no field {name!r} in the stored rows; their fields are: {known}.")
    return fields[name]


def has_field(rows: PyTree, name: str) -> bool:
    """Return whether stored rows have a field of this name."""
    return name in _fields_of(rows)


def _fields_of(rows: PyTree) -> dict[str, PyTree]:
    if isinstance(rows, dict):
        return rows
    if is_named_tuple(rows):
        return dict(zip(type(rows)._fields, rows, strict=True))
    if isinstance(rows, (tuple, list)):
        return {str(index): value for index, value in enumerate(rows)}
    if dataclasses.is_dataclass(rows) and not jax.tree_util.all_leaves([rows]):
        return {field.name: getattr(rows, field.name) for field in dataclasses.fields(rows)}
    return {}


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
    return rows._replace(**{name: value}) if is_named_tuple(rows) else dataclasses.replace(rows, **{name: value})


def is_named_tuple(value: PyTree) -> bool:
    """Return whether a value is a named tuple: a tuple with `_fields`. Named tuples have no common base class."""
    return isinstance(value, tuple) and "_fields" in dir(type(value))
