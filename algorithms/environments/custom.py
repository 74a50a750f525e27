"""Environments that a user wrote. The name `my_module:make_env` means the function `make_env` in `my_module`.

The result of the function decides where the environment runs:

* An environment in the interface of gymnax or Brax runs inside the compiled program.
* An environment of Gymnasium is stepped on the host. The function is called once for each of `num_envs` environments.
* If the function has an argument `num_envs`, it is called once with this number. It must then return a `VectorEnv` of
  that many environments, which is stepped on the host.

A run stores the folder in which the module was found, so that it can be continued from any working directory. `home`
returns this folder, and `find_at` looks for the module there.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from gymnasium import Env, registry

from algorithms.environments import gymnasium
from algorithms.environments.environment import Environment, wrap
from algorithms.environments.gymnasium import HostEnvironment

LIBRARIES = ("gymnasium", "brax")  # names of their environments have a colon, too
OF_GYMNAX = ("reset", "step", "action_space", "default_params")  # what the interface of gymnax needs


class NotFound(ValueError):
    """The module or the function that makes an environment was not found."""


def make(
    name: str, obs_dtype: str | None = None, use_processes: bool = False, frame_stack: int = 1, **options: Any
) -> Environment | HostEnvironment:
    """Return the environment that a function of the user makes.

    Args:
        name: `module:function`. The module may also be in the working directory.
        obs_dtype: as in `environments.make`.
        use_processes: whether to step every environment of Gymnasium in its own process.
        frame_stack: how many observations of an environment of Gymnasium are stacked, as in `gymnasium.make`.
        **options: arguments of the function.
    """
    found = _find(name)
    _check_options(name, found, options)
    factory = _with_known_options(functools.partial(found, **options))
    if "num_envs" in inspect.signature(factory).parameters:
        gymnasium.refuse_obs_dtype(name, obs_dtype)
        if use_processes:
            raise ValueError(
                f"{name} has an argument `num_envs`, so it makes all environments itself, and decides about processes; "
                "leave `processes` out."
            )
        _refuse_stack(name, frame_stack)
        return gymnasium.from_vectors(lambda num_envs, **more: factory(num_envs=num_envs, **more), name)
    env = factory()
    if isinstance(env, Env):
        gymnasium.refuse_obs_dtype(name, obs_dtype)
        return gymnasium.from_factory(factory, name, use_processes, example=env, frame_stack=frame_stack)
    _refuse_stack(name, frame_stack)
    if isinstance(env, (Environment, HostEnvironment)):
        return env
    if _is_of_brax(env):
        from algorithms.environments import brax

        return brax.from_brax(env, name, obs_dtype=obs_dtype)
    if _is_like_gymnax(env):
        return wrap(env, name=name, obs_dtype=obs_dtype)
    raise ValueError(
        f"{name} returned {env!r}; it must return an environment in the interface of gymnax, Brax or Gymnasium."
    )


def _refuse_stack(name: str, frame_stack: int) -> None:
    if frame_stack > 1:
        raise ValueError(
            f"{name} does not make single environments of Gymnasium, and only their observations are stacked: got "
            f"frame_stack={frame_stack}; leave it out, or stack observations in the function."
        )


def _is_like_gymnax(value: object) -> bool:
    """Return whether a value is an environment in the interface of gymnax.

    It is not checked by a protocol. The wrappers of gymnax pass attributes on by `__getattr__`, and from Python 3.12 on
    `isinstance` does not see such attributes.
    """
    return all(hasattr(value, name) for name in OF_GYMNAX)


def _check_options(name: str, found: Callable[..., Any], options: dict[str, Any]) -> None:
    """Refuse options that the function does not take, and a lack of options that it needs."""
    signature = inspect.signature(found)
    try:
        signature.bind(**({"num_envs": 1} if "num_envs" in signature.parameters else {}), **options)
    except TypeError as error:
        raise ValueError(
            f"environment {name!r}: the function was given {options or 'no options'}: {error}; give it options by "
            "--env.NAME VALUE."
        ) from None


def _with_known_options(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that accepts a `render_mode`, and passes it on only if `factory` takes one."""
    parameters = inspect.signature(factory).parameters.values()
    if any(parameter.name == "render_mode" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return factory

    @functools.wraps(factory)
    def made(*arguments: Any, render_mode: str | None = None, **options: Any) -> Any:
        return factory(*arguments, **options)

    return made


def is_own(name: str) -> bool:
    """Return whether a name means a function of the user."""
    library, colon, _ = name.partition(":")
    return bool(colon) and library not in LIBRARIES


def home(name: str) -> Path | None:
    """Return the folder in which the module of `module:function` was found; None if it has no file."""
    module = sys.modules.get(_top(name))
    return None if module is None or module.__spec__ is None else _folder(module.__spec__)


def find_at(name: str, folders: Sequence[Path]) -> None:
    """Let Python import the module of `module:function` from the first of these folders that contains it.

    If no folder contains the module, Python looks for it as usual.

    Raises:
        NotFound: if the module is nowhere, or if another module with the same name is loaded already.
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
    hint = f"; did you mean gymnasium:{function}?" if function in registry else ""
    hint = f"; did you mean {module_name[:-3]}:{function}?" if module_name.endswith(".py") else hint
    _look_here()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise NotFound(
                f"environment {name!r}: {module_name} needs {error.name}, which is not installed."
            ) from error
        raise NotFound(
            f"environment {name!r}: there is no module {error.name!r}"
            + (hint or "; run from the folder that holds it, or put that folder on PYTHONPATH.")
        ) from error
    found = vars(module).get(function)
    if not callable(found):
        near = difflib.get_close_matches(function, [known for known, value in vars(module).items() if callable(value)])
        hint = hint or (f"; did you mean {module_name}:{near[0]}?" if near else "")
        raise NotFound(f"environment {name!r}: {module.__file__} has no function {function!r}{hint or '.'}")
    return found


def _look_here() -> None:
    """Let Python also look for modules in the working directory."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def _top(name: str) -> str:
    """Return the module of `module:function`. If it is in a package, return the outermost package."""
    return name.partition(":")[0].partition(".")[0]


def _folder(spec: ModuleSpec) -> Path | None:
    """Return the folder that contains a module or a package."""
    if spec.submodule_search_locations is not None:
        return Path(next(iter(spec.submodule_search_locations))).absolute().parent
    return Path(spec.origin).absolute().parent if spec.has_location and spec.origin else None


def _is_of_brax(value: object) -> bool:
    """Return whether a value is an environment of Brax. It cannot be one if Brax has not been imported."""
    envs = sys.modules.get("brax.envs")
    return envs is not None and isinstance(value, envs.Env)
