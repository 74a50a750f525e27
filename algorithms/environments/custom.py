"""Environments of one's own: `my_module:make_env` names a function that makes one.

What it returns decides where the environment runs. One in the interface of gymnax, or of Brax, runs inside the compiled
program. One of Gymnasium is stepped on the host: the function is called once for each of `num_envs`. If it has an
argument `num_envs`, it is called once with their number and makes a `VectorEnv` of that many.

A run remembers the folder in which the module was found, so that it is found from any working directory: `home` says
which folder that is, and `find_at` looks there again.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from gymnasium import Env

from algorithms.environments import gymnasium
from algorithms.environments.environment import Environment, wrap
from algorithms.environments.gymnasium import HostEnvironment

LIBRARIES = ("gymnasium", "brax")  # whose names have colons too


class NotFound(ValueError):
    """The function that makes an environment is not where it was said to be."""


@runtime_checkable
class GymnaxLike(Protocol):
    """What is needed of an environment in the interface of gymnax."""

    reset: Callable[..., Any]
    step: Callable[..., Any]
    action_space: Callable[..., Any]
    default_params: Any


def make(
    name: str, obs_dtype: str | None = None, use_processes: bool = False, **options: Any
) -> Environment | HostEnvironment:
    """Return what a function of one's own makes.

    Args:
        name: `module:function`; the module is looked for in the working directory, too.
        obs_dtype: as in `environments.make`.
        use_processes: step every environment of Gymnasium in a process of its own.
        **options: for the function.
    """
    factory = _with_known_options(functools.partial(_find(name), **options))
    if "num_envs" in inspect.signature(factory).parameters:
        gymnasium.refuse_obs_dtype(name, obs_dtype)
        return gymnasium.from_vectors(lambda num_envs, **more: factory(num_envs=num_envs, **more), name)
    env = factory()
    if isinstance(env, (Environment, HostEnvironment)):
        return env
    if _is_of_brax(env):
        from algorithms.environments import brax

        return brax.from_brax(env, name, obs_dtype=obs_dtype)
    if isinstance(env, Env):
        gymnasium.refuse_obs_dtype(name, obs_dtype)
        return gymnasium.from_factory(factory, name, use_processes, example=env)
    if isinstance(env, GymnaxLike):
        return wrap(env, name=name, obs_dtype=obs_dtype)
    raise ValueError(
        f"{name} returned {env!r}; it must return an environment in the interface of gymnax, Brax or Gymnasium."
    )


def _with_known_options(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is not given a `render_mode` unless it takes one."""
    parameters = inspect.signature(factory).parameters.values()
    if any(parameter.name == "render_mode" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return factory

    @functools.wraps(factory)
    def made(*arguments: Any, render_mode: str | None = None, **options: Any) -> Any:
        return factory(*arguments, **options)

    return made


def is_own(name: str) -> bool:
    """Tell whether a name is that of a function of one's own."""
    library, colon, _ = name.partition(":")
    return bool(colon) and library not in LIBRARIES


def home(name: str) -> Path | None:
    """Return the folder in which the module of `module:function` was found; None if it came from no file."""
    module = sys.modules.get(_top(name))
    return None if module is None or module.__spec__ is None else _folder(module.__spec__)


def find_at(name: str, folders: Sequence[Path]) -> None:
    """Let the module of `module:function` be imported from the first of these folders that holds it.

    Where none does, it is looked for as usual.

    Raises:
        NotFound: if it is nowhere, or if another module of that name is loaded already.
    """
    top = _top(name)
    folder = next((folder for folder in folders if PathFinder.find_spec(top, [str(folder)]) is not None), None)
    _look_here()
    if folder is None:
        if top not in sys.modules and importlib.util.find_spec(top) is None:
            raise NotFound(
                f"environment {name!r}: there is no module {top!r} any more; it was in {folders[-1]} when the run "
                "began: put it back, or put the folder that holds it on PYTHONPATH."
            )
        return
    loaded = home(name)
    if loaded is not None and not loaded.samefile(folder):
        raise NotFound(
            f"environment {name!r}: the run began with the module {top!r} in {folder}, but one in {loaded} is loaded "
            "already; use another process for this run."
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _find(name: str) -> Callable[..., Any]:
    module_name, _, function = name.partition(":")
    _look_here()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise NotFound(
                f"environment {name!r}: {module_name} needs {error.name}, which is not installed."
            ) from error
        raise NotFound(
            f"environment {name!r}: there is no module {error.name!r}; run from the folder that holds it, or put that "
            "folder on PYTHONPATH."
        ) from error
    found = vars(module).get(function)
    if not callable(found):
        raise NotFound(f"environment {name!r}: {module.__file__} has no function {function!r}.")
    return found


def _look_here() -> None:
    """Let modules be found in the working directory, too."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def _top(name: str) -> str:
    """Return the module of `module:function`, or the package that it is in."""
    return name.partition(":")[0].partition(".")[0]


def _folder(spec: ModuleSpec) -> Path | None:
    """Return the folder that holds a module or a package."""
    if spec.submodule_search_locations is not None:
        return Path(next(iter(spec.submodule_search_locations))).absolute().parent
    return Path(spec.origin).absolute().parent if spec.has_location and spec.origin else None


def _is_of_brax(value: Any) -> bool:
    """Tell whether a value is an environment of Brax; it is not if nobody has imported that."""
    envs = sys.modules.get("brax.envs")
    return envs is not None and isinstance(value, envs.Env)
