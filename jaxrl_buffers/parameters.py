"""Hyper-parameters of nested components by dotted name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

Component = TypeVar("Component")


def parameters(component: Any) -> dict[str, Any]:
    """Return every hyper-parameter that can change without recompilation.

    Example:
        >>> import jaxrl_buffers as jb
        >>> parameters(jb.n_step(100, n=3, gamma=0.9))
        {'view.gamma': 0.9}
    """
    found = {}
    for field in dataclasses.fields(component):
        value = getattr(component, field.name)
        if value is None or not field.metadata.get("pytree_node", True):
            continue
        if dataclasses.is_dataclass(value):
            found |= {f"{field.name}.{name}": leaf for name, leaf in parameters(value).items()}
        else:
            found[field.name] = value
    return found


def with_parameters(component: Component, changes: Mapping[str, Any]) -> Component:
    """Return the component with some hyper-parameters changed; unknown names are refused with a list of the known.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = with_parameters(jb.prioritized(100), {"sampler.beta": 0.7})
        >>> buffer.sampler.beta
        0.7
    """
    known = parameters(component)
    for name in changes:
        if name not in known:
            names = ", ".join(known) or "none"
            raise ValueError(f"{type(component).__name__} has no parameter {name!r}; its parameters are: {names}.")
    for name, value in changes.items():
        component = _replaced(component, name.split("."), value)
    return component


def _replaced(component: Any, path: list[str], value: Any) -> Any:
    if len(path) > 1:
        value = _replaced(getattr(component, path[0]), path[1:], value)
    return component.replace(**{path[0]: value})
