"""Hyper-parameters of nested components by dotted name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from jaxrl_buffers.component import current_names, is_leaf

T = TypeVar("T")


def parameters(component: object) -> dict[str, Any]:
    """Return every hyper-parameter that can change without compiling again, by its dotted name.

    Example:
        >>> import jaxrl_buffers as jb
        >>> parameters(jb.n_step(100, n=3, gamma=0.9))
        {'view.gamma': 0.9}
    """
    found = {}
    for name, value in _parts(component).items():
        if _parts(value):
            found |= {f"{name}.{inner}": leaf for inner, leaf in parameters(value).items()}
        elif not isinstance(value, tuple) and not dataclasses.is_dataclass(value):
            found[name] = value
    return found


def _parts(component: object) -> dict[str, Any]:
    """Return the parts of a component, or of a tuple of components, by name. A number has no parts."""
    if isinstance(component, tuple):
        return {str(index): part for index, part in enumerate(component)}
    if not dataclasses.is_dataclass(component):
        return {}
    parts = {field.name: getattr(component, field.name) for field in dataclasses.fields(component) if is_leaf(field)}
    return {name: part for name, part in parts.items() if part is not None}


def with_parameters(component: T, changes: Mapping[str, Any]) -> T:
    """Return the component with some hyper-parameters changed. The keys of `changes` are dotted names.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = with_parameters(jb.prioritized(100), {"sampler.beta": 0.7})
        >>> buffer.sampler.beta
        0.7
    """
    known = parameters(component)
    changed = component
    for given, value in changes.items():
        name = _current_name(component, given)
        if name not in known:
            names = ", ".join(known) or "none"
            raise ValueError(f"{type(component).__name__} has no parameter {name!r}; its parameters are: {names}.")
        changed = _replaced(changed, name.split("."), value)
    return changed


def _current_name(component: object, name: str) -> str:
    """Return the dotted name of a hyper-parameter, with old names of fields translated."""
    path: list[str] = []
    for step in name.split("."):
        path += current_names(type(component), {step: ...}, stacklevel=4)
        component = _parts(component).get(path[-1])
    return ".".join(path)


def _replaced(component: Any, path: list[str], value: Any) -> Any:
    name, *inner = path
    if inner:
        value = _replaced(_parts(component)[name], inner, value)
    if isinstance(component, tuple):
        return tuple(value if str(index) == name else part for index, part in enumerate(component))
    return component.replace(**{name: value})
