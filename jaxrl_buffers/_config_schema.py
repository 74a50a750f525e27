"""How a config is checked against a component: by the annotations and defaults of its parameters."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import pydantic
from flax import linen

from jaxrl_buffers import _renamed as renamed
from jaxrl_buffers._checks import shown
from jaxrl_buffers.component import MESH_AXIS

COMPONENTS: dict[str, Callable[..., Any]] = {}  # the keys are the names that a config may use
FUNCTIONS: dict[str, Callable[..., Any]] = {}

# Some YAML readers take 1e-6, which has no point, for a string.
_NUMBER = re.compile(r"[-+]?(\d[\d_]*)?\.?\d[\d_]*([eE][-+]?\d+)?")
MOST_DIGITS = 100  # longer strings are not tried as numbers: matching them takes very long
MOST_PROBLEMS = 5  # how many problems of one config are reported

Path = tuple[str | int, ...]  # the keys that lead to a value


class Problems(ValueError):
    """What is wrong with a config: for each problem the path of its key, and a sentence."""

    def __init__(self, found: list[tuple[Path, str]]):
        super().__init__(found)
        self.found = found


class Schema(NamedTuple):
    """What the `config` of a component may hold."""

    model: type[pydantic.BaseModel]
    expected: dict[str, str]  # for each key, what is expected, in words


def build(kind: Any, config: object) -> Any:
    """Build a component of the given kind, or raise `Problems` with paths relative to `config`."""
    if not isinstance(config, Mapping) or not isinstance(config.get("name"), str):
        raise Problems([((), f"got {shown(config)}, expected {_words(kind)}.")])
    name = renamed.current_name(config["name"], stacklevel=4)
    if name not in COMPONENTS:
        raise Problems([(("name",), f"{shown(name)} is unknown, expected one of {', '.join(sorted(COMPONENTS))}.")])
    unknown = [shown(key, str) for key in config if key not in ("name", "config")][:MOST_PROBLEMS]
    text = "is unknown; known are: name, config."
    found: list[tuple[Path, str]] = [((key,), text) for key in unknown]
    given = {} if config.get("config") is None else config["config"]
    if not isinstance(given, Mapping):
        found.append((("config",), f"got {shown(given)}, expected the keys of {name} with their values."))
    if found:
        raise Problems(found)
    schema = schema_of(COMPONENTS[name])
    try:
        model = schema.model.model_validate(dict(given))
    except pydantic.ValidationError as error:
        raise Problems(explained(schema, error)) from None
    try:
        component = COMPONENTS[name](**{key: getattr(model, key) for key in model.model_fields_set})
    except ValueError as error:
        raise Problems([(("config",), str(error))]) from None
    if not isinstance(component, kind):
        raise Problems([(("name",), f"{name!r} names a {type(component).__name__}, expected {_words(kind)}.")])
    return component


def explained(schema: Schema, error: pydantic.ValidationError) -> list[tuple[Path, str]]:
    """Return for each error of a validation the path of its key, and a sentence that explains it."""
    found = {}
    for entry in error.errors(include_url=False)[:MOST_PROBLEMS]:
        key, *inner = [shown(part, str) if isinstance(part, str) else part for part in entry["loc"]]
        cause = entry.get("ctx", {}).get("error")
        if isinstance(cause, Problems):
            found |= {("config", key, *inner, *path): text for path, text in cause.found}
        elif entry["type"] == "missing":
            found["config", key] = f"is missing, expected {schema.expected[str(key)]}."
        elif str(key) not in schema.expected:  # this includes keys that are not strings
            found["config", key] = f"is unknown (got {shown(entry['input'])}); known are: {', '.join(schema.expected)}."
        else:
            path = ("config", key, *(part for part in inner if isinstance(part, int)))
            found[path] = f"got {shown(entry['input'])}, expected {schema.expected[str(key)]}."
    return list(found.items())


def parameters_of(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a component class, or of a function that makes a component.

    The keys of `**options: Unpack[SomeTypedDict]` count as parameters with a default. The fields `parent` and `name` of
    flax modules are left out: flax sets them. The axis of a mesh is left out: `Sharded` and `DataParallel` set it.
    """
    hints = typing.get_type_hints(factory)
    is_module = inspect.isclass(factory) and issubclass(factory, linen.Module)
    component: Any = factory
    fields = dataclasses.fields(component) if dataclasses.is_dataclass(component) else ()
    axes = [field.name for field in fields if field.metadata.keys() >= MESH_AXIS.keys()]
    found = {}
    for key, parameter in inspect.signature(factory).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and typing.get_origin(hints[key]) is typing.Unpack:
            for option, hint in typing.get_type_hints(*typing.get_args(hints[key])).items():
                found[option] = inspect.Parameter(option, parameter.KEYWORD_ONLY, default=None, annotation=hint)
        elif key not in axes and not (is_module and key in ("parent", "name")):
            found[key] = parameter.replace(annotation=hints[key])
    return found


@functools.cache
def schema_of(factory: Callable[..., Any], keys: tuple[str, ...] | None = None) -> Schema:
    """Return the schema of a component, made from the annotations and defaults of its parameters.

    With `keys`, it has only these parameters, and all of them may be left out.
    """
    parameters = {key: one for key, one in parameters_of(factory).items() if keys is None or key in keys}
    fields: dict[str, Any] = {
        key: (_validated(one.annotation), ... if one.default is one.empty and keys is None else one.default)
        for key, one in parameters.items()
    }
    options = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())
    model = pydantic.create_model(factory.__name__, __config__=options, **fields)
    return Schema(model, {key: _words(one.annotation) for key, one in parameters.items()})


def _validated(hint: Any) -> Any:
    """Return the type with which pydantic checks values for an annotation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is float:
        return Annotated[float, pydantic.BeforeValidator(_number), pydantic.Strict()]
    if hint in (int, bool, str):
        return Annotated[hint, pydantic.Strict()]
    if hint is type(None) or origin is typing.Literal:
        return hint
    if origin in (typing.Union, types.UnionType):
        options = [one for one in arguments if one not in (jax.Array, np.ndarray, type(None))]
        # Names of functions are tried first, because an option that accepts any string would match them too.
        options.sort(key=lambda one: typing.get_origin(one) is not Callable)
        if all(inspect.isclass(one) and one not in (int, float, bool, str) for one in options):
            either: Any = _component(functools.reduce(operator.or_, options))
        else:
            either = functools.reduce(operator.or_, map(_validated, options))
            either = Annotated[either, pydantic.Field(union_mode="left_to_right")] if len(options) > 1 else either
        return either | None if type(None) in arguments else either
    if origin is tuple:
        return tuple[tuple(one if one is ... else _validated(one) for one in arguments)]
    if origin is list:
        return list[_validated(arguments[0])]
    if origin in (dict, Mapping):
        return dict[str, _validated(arguments[1])]
    if Callable in (hint, origin):
        return Annotated[Any, pydantic.PlainValidator(functools.partial(_function, hint))]
    return _component(object if hint is Any or not inspect.isclass(hint) else hint)


def _component(kind: Any) -> Any:
    """Return the type with which pydantic builds a component of one class, or of one of several classes."""
    return Annotated[Any, pydantic.PlainValidator(functools.partial(build, kind))]


def _words(hint: Any) -> str:
    """Return in words what an annotation asks for."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    simple = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", type(None): "nothing"}
    if hint in simple:
        return simple[hint]
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(one) for one in arguments if one not in (jax.Array, np.ndarray))
    if origin is typing.Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if origin in (tuple, list):
        kinds = dict.fromkeys(_words(one) for one in arguments if one is not ...)
        return f"a list of which each is {' or '.join(kinds)}"
    if origin in (dict, Mapping):
        return "keys with values"
    if Callable in (hint, origin):
        return f"the name of a registered function ({', '.join(sorted(FUNCTIONS)) or 'there are none'})"
    kind = "component" if hint in (Any, object) else getattr(hint, "__name__", str(hint))
    return f"a {kind} as {{name: ..., config: {{...}}}}"


def _number(value: object) -> Any:
    if isinstance(value, str) and len(value) <= MOST_DIGITS and _NUMBER.fullmatch(value):
        return float(value)
    return value


def _function(hint: Any, name: object) -> Callable[..., Any]:
    if isinstance(name, Mapping) and _is_called_as(hint, component := build(object, name)):  # such as a schedule
        return component
    if not isinstance(name, str) or name not in FUNCTIONS:
        raise ValueError("unknown function")
    return FUNCTIONS[name]


def _is_called_as(hint: Any, component: object) -> bool:
    """Return whether a component has the arguments and the result of a function, by their annotations."""
    if not callable(component) or not typing.get_args(hint):
        return callable(component)
    wanted, returned = typing.get_args(hint)
    hints = typing.get_type_hints(type(component).__call__)
    given = [hints.get(name) for name in inspect.signature(component).parameters]
    return hints.get("return") == returned and wanted in (..., given)
