"""Components: frozen dataclasses that are pytrees. Samplers, views, buffers and agents are components.

A field is either static or not. Static fields shape the program: if one changes, the program is compiled again. The
other fields hold hyper-parameters, or components that hold some. They are leaves of the pytree, so they can be traced,
vmapped and changed without compiling again.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self, dataclass_transform

import jax
from flax import serialization

STATIC = "pytree_node"  # flax.struct uses this key too, so tools that know its classes know components
# Marks a field `axis`: the mesh axis over which environments are split; None if one device has all of them. `Sharded`
# and `DataParallel` set it, inside of `shard_map`. It is no option for users.
MESH_AXIS = {"mesh_axis": True}


def field(*, static: bool = False, metadata: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Describe a field of a component.

    Args:
        static: whether the field shapes the program; it must then be hashable. Otherwise it is a pytree of leaves.
        metadata: anything else to note about the field.
        **options: options of `dataclasses.field`: `default`, `default_factory`, `kw_only`, `repr`, `compare`.
    """
    return dataclasses.field(metadata={**(metadata or {}), STATIC: not static}, **options)


@dataclass_transform(field_specifiers=(field, dataclasses.field), frozen_default=True)
class Component:
    """A base class: every class derived from it is a frozen dataclass and a pytree.

    Checks belong in `__post_init__`. They run when a component is constructed and when `replace` changes it. They do
    not run when JAX rebuilds a component. Its fields may then hold other things than numbers: tracers, shapes or axes.
    For example, `jax.tree.map(lambda _: 0, component)` is a component of axes for `jax.vmap`.

    A class may list old names of its fields in `renamed`, such as `{"old": "new"}`. They still work, with a
    `DeprecationWarning`: in the constructor, in `replace`, and as attributes.

    Example:
        >>> class Scaled(Component):
        ...     factor: float
        ...     name: str = field(static=True, default="scaled")
        ...
        ...     def __post_init__(self) -> None:
        ...         if self.factor < 0:
        ...             raise ValueError(f"Scaled(factor={self.factor}): `factor` must be at least 0.")
        >>> jax.tree.map(lambda leaf: leaf + 1, Scaled(2.0))
        Scaled(factor=3.0, name='scaled')
        >>> Scaled(2.0).replace(factor=5.0)
        Scaled(factor=5.0, name='scaled')
        >>> Scaled(-1.0)
        Traceback (most recent call last):
        ValueError: Scaled(factor=-1.0): `factor` must be at least 0.
    """

    renamed: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__()
        made: Any = dataclasses.dataclass(frozen=True, **options)(cls)
        leaves = [one.name for one in dataclasses.fields(made) if is_leaf(one)]
        static = [one.name for one in dataclasses.fields(made) if not is_leaf(one)]
        _register_pytree(cls, leaves, static)
        _register_serialization(cls, leaves)
        if cls.renamed:
            _accept_old_names(cls)

    def replace(self, **changes: Any) -> Self:
        """Return a component with some fields changed. It is checked like a new component."""
        component: Any = self
        return dataclasses.replace(component, **current_names(type(self), changes))


def is_leaf(one: dataclasses.Field[Any]) -> bool:
    """Return whether a field of a dataclass is a pytree of leaves: it is, unless it is marked as static."""
    return one.metadata.get(STATIC, True)


def current_names(kind: type, values: Mapping[str, Any], stacklevel: int = 3) -> dict[str, Any]:
    """Return values with the old names of a class's fields translated; warn of each.

    Args:
        kind: any class; only a `Component` has old names.
        values: by the names of fields.
        stacklevel: as in `warnings.warn`; the default is for the caller of the caller.
    """
    renamed = kind.renamed if issubclass(kind, Component) else {}
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in renamed:
            _warn(kind, name, stacklevel + 1)
        current = renamed.get(name, name)
        if current in found or (current != name and current in values):
            raise TypeError(f"{kind.__name__} got both `{name}` and `{current}`; they are the same: give `{current}`.")
        found[current] = value
    return found


def _warn(kind: type[Component], name: str, stacklevel: int) -> None:
    new = kind.renamed[name]
    message = f"`{name}` of {kind.__name__} is now called `{new}`; the old name will be removed in version 2."
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)


def _accept_old_names(cls: type[Component]) -> None:
    construct: Callable[..., None] = cls.__init__

    @functools.wraps(construct)
    def __init__(self: Component, *args: Any, **values: Any) -> None:
        construct(self, *args, **current_names(cls, values))

    def attribute(old: str) -> property:
        def read(self: Component) -> Any:
            _warn(cls, old, 3)
            return getattr(self, cls.renamed[old])

        return property(read, doc=f"The old name of `{cls.renamed[old]}`.")

    cls.__init__ = __init__
    for old in cls.renamed:
        setattr(cls, old, attribute(old))


def _register_pytree(cls: type[Component], leaves: list[str], static: list[str]) -> None:
    """Let JAX take components apart, and put them together without the checks."""
    if "__post_init__" not in dir(cls):  # without checks, JAX's own function is the fastest
        jax.tree_util.register_dataclass(cls, leaves, static)
        return
    flatten = _flatten(leaves, static)
    keys = [jax.tree_util.GetAttrKey(name) for name in leaves]

    def flatten_with_keys(component: Component) -> tuple[Any, tuple[Any, ...]]:
        values, static_values = flatten(component)
        return tuple(zip(keys, values, strict=True)), static_values

    def unflatten(static_values: tuple[Any, ...], leaf_values: Iterable[Any]) -> Component:
        component = object.__new__(cls)
        fields = vars(component)
        fields.update(zip(leaves, leaf_values, strict=True))
        fields.update(zip(static, static_values, strict=True))
        return component

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


def _flatten(leaves: list[str], static: list[str]) -> Callable[[Component], tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Return a function that reads fields. Its code is generated to be fast, because every jitted call runs it."""
    read = ["".join(f"component.{name}, " for name in names) for names in (leaves, static)]
    return eval(f"lambda component: (({read[0]}), ({read[1]}))")


def _register_serialization(cls: type[Component], leaves: list[str]) -> None:
    """Let `flax.serialization` turn the leaves of components into dicts and back, as for flax's own classes."""

    def to_state_dict(component: Component) -> dict[str, Any]:
        return {name: serialization.to_state_dict(getattr(component, name)) for name in leaves}

    def from_state_dict(component: Component, state: Mapping[str, Any]) -> Component:
        if {*state} != {*leaves}:
            raise ValueError(f"the state of {cls.__name__} has the fields {[*state]}, but {leaves} are needed.")
        values = {
            name: serialization.from_state_dict(getattr(component, name), state[name], name=name) for name in leaves
        }
        return component.replace(**values)

    serialization.register_serialization_state(cls, to_state_dict, from_state_dict)
