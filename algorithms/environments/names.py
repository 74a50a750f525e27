"""The names of all environments.

* `CartPole-v1`: an environment that is registered with gymnax. It runs inside the compiled program.
* `gymnasium:HalfCheetah-v5`: an environment that is registered with Gymnasium. It is stepped on the host.
* `brax:ant`: an environment of Brax. It runs inside the compiled program.
* `my_module:make_env`: the environment that a function of the user returns; see `custom`.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from algorithms.environments import custom, environment, gymnasium
from algorithms.environments.environment import Environment
from algorithms.environments.gymnasium import HostEnvironment


def make(name: str, *, obs_dtype: str | None = None, **options: Any) -> Environment | HostEnvironment:
    """Return an environment by name.

    Args:
        name: such as `CartPole-v1`, `gymnasium:HalfCheetah-v5`, `brax:ant` or `my_module:make_env`; see the top of this
            module.
        obs_dtype: `bool` or `uint8`, to which observations are converted. They then take a quarter of the memory of
            `float32`. Only environments inside the compiled program have this option. None leaves observations
            unchanged. See `environment.make`.
        **options: arguments of the environment's constructor. `gymnasium.make` and `brax.make` list further ones.

    Example:
        >>> make("Pendulum-v1").action_space
        Box(low=(-2.0,), high=(2.0,))
        >>> make("gymnasium:Pendulum-v1").action_space
        Box(low=(-2.0,), high=(2.0,))
    """
    if custom.is_own(name):
        return custom.make(name, obs_dtype=obs_dtype, **options)
    library, _, rest = name.partition(":")
    if library == "gymnasium":
        gymnasium.refuse_obs_dtype(name, obs_dtype)
        return gymnasium.make(rest, **options)
    if library == "brax":
        return _brax().make(rest, obs_dtype=obs_dtype, **options)
    return environment.make(name, obs_dtype=obs_dtype, **options)


def _brax() -> ModuleType:
    try:
        return importlib.import_module("algorithms.environments.brax")
    except ModuleNotFoundError as error:
        raise ValueError(
            f"environments brax:... need {error.name}, which is not installed: pip install 'jaxrl-buffers[brax]'."
        ) from error
