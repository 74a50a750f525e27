"""Environments of one's own: `my_module:make_env` names a function that makes one.

What it returns decides where the environment runs. One in the interface of gymnax, or of Brax, runs inside the compiled
program. One of Gymnasium is stepped on the host: the function is called once for each of `num_envs`. If it has an
argument `num_envs`, it is called once with their number and makes a `VectorEnv` of that many.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from gymnasium import Env

from algorithms.environments import gymnasium
from algorithms.environments.environment import Environment, wrap
from algorithms.environments.gymnasium import HostEnvironment


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
    factory = functools.partial(_find(name), **options)
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


def _find(name: str) -> Callable[..., Any]:
    module_name, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"environment {name!r}: there is no module {error.name!r}; run from the folder that holds it, or put that "
            "folder on PYTHONPATH."
        ) from error
    found = vars(module).get(function)
    if not callable(found):
        raise ValueError(f"environment {name!r}: {module.__file__} has no function {function!r}.")
    return found


def _is_of_brax(value: Any) -> bool:
    """Tell whether a value is an environment of Brax; it is not if nobody has imported that."""
    envs = sys.modules.get("brax.envs")
    return envs is not None and isinstance(value, envs.Env)
