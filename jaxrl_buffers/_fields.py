"""Fields of stored rows by name: of named tuples, dicts, dataclasses and tuples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax

from jaxrl_buffers.types import PyTree, Transition


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
