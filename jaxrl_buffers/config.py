"""Components from validated dicts and YAML files, and back.

A component is `{"name": ..., "config": {...}}`, nested where it is made of others:

    name: ReplayBuffer
    config:
      length: 250_000
      sampler: {name: Prioritized, config: {alpha: 0.6, epsilon: 1e-6}}

What may stand in a `config` is read off the annotations and defaults of the component itself. Whole numbers and true or
false are taken only for what they are; a whole number may stand for any number. Functions are written as the names
under which they were registered. A component may stand for one if its `__call__` has the annotations asked for.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import jax
import numpy as np
import pydantic
from flax import linen

from jaxrl_buffers import _yaml as yaml_text
from jaxrl_buffers import mixture, recipes, replay, rollouts, samplers, storage, views
from jaxrl_buffers._checks import shown
from jaxrl_buffers.storage import returns

Factory = TypeVar("Factory", bound=Callable[..., Any])

_components: dict[str, Callable[..., Any]] = {}
_functions: dict[str, Callable[..., Any]] = {}

# Some YAML readers take 1e-6, which has no point, for a string.
_NUMBER = re.compile(r"[-+]?(\d[\d_]*)?\.?\d[\d_]*([eE][-+]?\d+)?")
MOST_DIGITS = 100  # of such a string
MOST_TOLD = 5  # problems of one config


def register_component(factory: Factory, name: str | None = None) -> Factory:
    """Make a component class, or a function that returns a component, known by name; return it as it is.

    Args:
        factory: called with the entries of a `config` as keyword arguments; every parameter is annotated.
        name: by default the factory's own.
    """
    _add(_components, "component", name or factory.__name__, factory)
    return factory


def register(name: str, function: Callable[..., Any]) -> None:
    """Make a function, such as one that relabels goals, known by name."""
    _add(_functions, "function", name, function)


def from_config(config: Mapping[str, Any]) -> Any:
    """Build a component.

    Raises:
        ValueError: naming every key that is missing, unknown or wrong, its value, and what is expected.

    Example:
        >>> sampler = {"name": "Prioritized", "config": {"alpha": 1, "epsilon": "1e-6"}}
        >>> buffer = from_config({"name": "ReplayBuffer", "config": {"length": 250_000, "sampler": sampler}})
        >>> buffer.sampler.alpha, buffer.sampler.epsilon
        (1.0, 1e-06)
    """
    try:
        return _build(object, config)
    except _Problems as problems:
        lines = "".join(f"\n  {'.'.join(map(str, path)) or 'the whole'}: {text}" for path, text in problems.found)
        raise ValueError(f"from_config() cannot build {_name_of(config)}:{lines}") from None
    except RecursionError:
        raise ValueError("from_config() got components without end inside each other; give fewer.") from None


def from_yaml(source: str | os.PathLike[str]) -> Any:
    """Build a component from a YAML file, or from YAML text (anything that holds a colon followed by a blank).

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: for broken YAML, tags that would build objects, keys given twice, and what `from_config` refuses.

    Example:
        >>> from_yaml("{name: Uniform, config: {method: distinct}}")
        Uniform(method='distinct', balanced=False)
    """
    is_text = isinstance(source, str) and re.search(r":\s", source) is not None
    text = str(source) if is_text else Path(source).read_text("utf-8")
    return from_config(yaml_text.parse(text))


def to_config(component: Any) -> dict[str, Any]:
    """Return the dict from which `from_config` builds an equal component; also fit for `yaml.safe_dump`.

    Example:
        >>> import jaxrl_buffers as jb
        >>> to_config(jb.Uniform("distinct"))
        {'name': 'Uniform', 'config': {'method': 'distinct', 'balanced': False}}
    """
    name = _registered_name(_components, type(component))
    if name is None:
        raise ValueError(f"to_config() got {component!r}, which is no registered component; see register_component().")
    return {"name": name, "config": {key: _plain(getattr(component, key)) for key in _parameters(type(component))}}


def check(factory: Callable[..., Any], values: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return values as the parameters of a component ask for them, without building it; any may be left out.

    Args:
        factory: a component class, or a function that returns a component.
        values: by the names of parameters.
        keys: the parameters that may be given.

    Raises:
        ValueError: one line, naming every key that is unknown or wrong, its value, and what is expected.

    Example:
        >>> import jaxrl_buffers as jb
        >>> check(jb.Prioritized, {"alpha": 1, "epsilon": "1e-6"}, keys=("alpha", "beta", "epsilon"))
        {'alpha': 1.0, 'epsilon': 1e-06}
    """
    schema = _schema(factory, tuple(keys))
    try:
        model = schema.model.model_validate(dict(values))
    except pydantic.ValidationError as error:
        found = [f"{'.'.join(map(str, path[1:]))}: {text}" for path, text in _told(schema, error)]
        raise ValueError(" ".join(found)) from None
    return {key: getattr(model, key) for key in values}


def _plain(value: Any) -> Any:
    """Return a value as what YAML knows."""
    if dataclasses.is_dataclass(value) or _registered_name(_components, type(value)) is not None:
        return to_config(value)
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return value.tolist()
    if callable(value):
        name = _registered_name(_functions, value)
        if name is None:
            raise ValueError(f"to_config() met the function {value!r}, which has no name; register() it first.")
        return name
    return value


class _Problems(ValueError):
    """What is wrong with a config: paths of keys, and what to say about each."""

    def __init__(self, found: list[tuple[tuple[str | int, ...], str]]):
        super().__init__(found)
        self.found = found


class _Schema(NamedTuple):
    """What may stand in the `config` of a component."""

    model: type[pydantic.BaseModel]
    expected: dict[str, str]  # in words, by key


def _build(kind: Any, config: Any) -> Any:
    """Build a component of the given kind, or raise `_Problems` with paths relative to `config`."""
    if not isinstance(config, Mapping) or not isinstance(config.get("name"), str):
        raise _Problems([((), f"got {shown(config)}, expected {_words(kind)}.")])
    name = config["name"]
    if name not in _components:
        raise _Problems([(("name",), f"{shown(name)} is unknown, expected one of {', '.join(sorted(_components))}.")])
    unknown = [shown(key, str) for key in config if key not in ("name", "config")][:MOST_TOLD]
    text = "is unknown, expected are: name, config."
    found: list[tuple[tuple[str | int, ...], str]] = [((key,), text) for key in unknown]
    given = {} if config.get("config") is None else config["config"]
    if not isinstance(given, Mapping):
        found.append((("config",), f"got {shown(given)}, expected the keys of {name} with their values."))
    if found:
        raise _Problems(found)
    schema = _schema(_components[name])
    try:
        model = schema.model.model_validate(dict(given))
    except pydantic.ValidationError as error:
        raise _Problems(_told(schema, error)) from None
    try:
        component = _components[name](**{key: getattr(model, key) for key in model.model_fields_set})
    except ValueError as error:
        raise _Problems([(("config",), str(error))]) from None
    if not isinstance(component, kind):
        raise _Problems([(("name",), f"{name!r} names a {type(component).__name__}, expected {_words(kind)}.")])
    return component


def _told(schema: _Schema, error: pydantic.ValidationError) -> list[tuple[tuple[str | int, ...], str]]:
    """Say what each error of a validation means."""
    found = {}
    for entry in error.errors(include_url=False)[:MOST_TOLD]:
        key, *inner = [shown(part, str) if isinstance(part, str) else part for part in entry["loc"]]
        cause = entry.get("ctx", {}).get("error")
        if isinstance(cause, _Problems):
            found |= {("config", key, *inner, *path): text for path, text in cause.found}
        elif entry["type"] == "missing":
            found["config", key] = f"is missing, expected {schema.expected[str(key)]}."
        elif str(key) not in schema.expected:  # or no string at all
            found["config", key] = (
                f"is unknown (got {shown(entry['input'])}), expected are: {', '.join(schema.expected)}."
            )
        else:
            path = ("config", key, *(part for part in inner if isinstance(part, int)))
            found[path] = f"got {shown(entry['input'])}, expected {schema.expected[str(key)]}."
    return list(found.items())


def _parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return what a component is made with; the place of a flax module inside another one is no part of that.

    What a function takes as `**options: Unpack[SomeTypedDict]` counts as parameters with a default.
    """
    hints = typing.get_type_hints(factory)
    is_module = inspect.isclass(factory) and issubclass(factory, linen.Module)
    found = {}
    for key, parameter in inspect.signature(factory).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and typing.get_origin(hints[key]) is typing.Unpack:
            for option, hint in typing.get_type_hints(*typing.get_args(hints[key])).items():
                found[option] = inspect.Parameter(option, parameter.KEYWORD_ONLY, default=None, annotation=hint)
        elif not (is_module and key in ("parent", "name")):
            found[key] = parameter.replace(annotation=hints[key])
    return found


@functools.cache
def _schema(factory: Callable[..., Any], keys: tuple[str, ...] | None = None) -> _Schema:
    """Derive a schema from the annotations and defaults of a component, or of some `keys`, then none of them needed."""
    parameters = {key: one for key, one in _parameters(factory).items() if keys is None or key in keys}
    fields: dict[str, Any] = {
        key: (_checked(one.annotation), ... if one.default is one.empty and keys is None else one.default)
        for key, one in parameters.items()
    }
    options = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())
    model = pydantic.create_model(factory.__name__, __config__=options, **fields)
    return _Schema(model, {key: _words(one.annotation) for key, one in parameters.items()})


def _checked(hint: Any) -> Any:
    """Return the type by which pydantic checks a value for an annotation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is float:
        return Annotated[float, pydantic.BeforeValidator(_number), pydantic.Strict()]
    if hint in (int, bool, str):
        return Annotated[hint, pydantic.Strict()]
    if hint is type(None) or origin is typing.Literal:
        return hint
    if origin in (typing.Union, types.UnionType):
        options = [one for one in arguments if one not in (jax.Array, np.ndarray, type(None))]
        options.sort(key=lambda one: typing.get_origin(one) is not Callable)  # a function's name before any string
        if all(inspect.isclass(one) and one not in (int, float, bool, str) for one in options):
            either: Any = _component(functools.reduce(operator.or_, options))
        else:
            either = functools.reduce(operator.or_, map(_checked, options))
            either = Annotated[either, pydantic.Field(union_mode="left_to_right")] if len(options) > 1 else either
        return either | None if type(None) in arguments else either
    if origin is tuple:
        return tuple[tuple(one if one is ... else _checked(one) for one in arguments)]
    if origin is list:
        return list[_checked(arguments[0])]
    if origin in (dict, Mapping):
        return dict[str, _checked(arguments[1])]
    if Callable in (hint, origin):
        return Annotated[Any, pydantic.PlainValidator(functools.partial(_function, hint))]
    return _component(hint if inspect.isclass(hint) and hint is not Any else object)


def _component(kind: Any) -> Any:
    """Return the type by which pydantic builds a component of a class, or of one of several."""
    return Annotated[Any, pydantic.PlainValidator(functools.partial(_build, kind))]


def _words(hint: Any) -> str:
    """Say what an annotation asks for."""
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
        return f"the name of a registered function ({', '.join(sorted(_functions)) or 'there are none'})"
    kind = "component" if hint in (Any, object) else getattr(hint, "__name__", str(hint))
    return f"a {kind} as {{name: ..., config: {{...}}}}"


def _number(value: Any) -> Any:
    is_short = isinstance(value, str) and len(value) <= MOST_DIGITS  # else matching takes very long
    return float(value) if is_short and _NUMBER.fullmatch(value) else value


def _function(hint: Any, name: Any) -> Callable[..., Any]:
    if isinstance(name, Mapping) and _is_called_as(hint, component := _build(object, name)):  # such as a schedule
        return component
    if not isinstance(name, str) or name not in _functions:
        raise ValueError("unknown function")
    return _functions[name]


def _is_called_as(hint: Any, component: Any) -> bool:
    """Tell whether a component is called with what a function is, and returns what it does, by their annotations."""
    if not callable(component) or not typing.get_args(hint):
        return callable(component)
    wanted, returned = typing.get_args(hint)
    hints = typing.get_type_hints(type(component).__call__)
    given = [hints.get(name) for name in inspect.signature(component).parameters]
    return hints.get("return") == returned and wanted in (..., given)


def _add(registry: dict[str, Any], what: str, name: str, value: Any) -> None:
    if registry.get(name, value) is not value:
        raise ValueError(f"the {what} name {name!r} is taken by {registry[name]!r}; choose another name.")
    registry[name] = value


def _registered_name(registry: dict[str, Any], value: Any) -> str | None:
    return next((name for name, known in registry.items() if known is value), None)


def _name_of(config: Any) -> str:
    return str(config.get("name", "a component")) if isinstance(config, Mapping) else "a component"


for _factory in (
    replay.ReplayBuffer,
    mixture.Mixture,
    returns.EpisodicReturns,
    rollouts.Rollout,
    storage.Frames,
    samplers.Uniform,
    samplers.Prioritized,
    samplers.Recent,
    samplers.Newest,
    samplers.Mix,
    samplers.Episodic,
    views.NStep,
    views.Sequence,
    views.Hindsight,
    recipes.uniform,
    recipes.n_step,
    recipes.prioritized,
    recipes.emphasize_recent,
    recipes.guarantee_recent,
    recipes.hindsight,
    recipes.sequences,
    recipes.rollout,
):
    register_component(_factory)
