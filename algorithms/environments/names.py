"""One name space for all environments.

* `CartPole-v1`: registered with gymnax.
* `gymnasium:HalfCheetah-v5`: registered with Gymnasium; stepped on the host.
* `brax:ant`: of Brax.
* `my_module:make_env`: what a function of one's own returns; see `custom`.
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
        name: see the list at the top of this module.
        obs_dtype: of environments inside the compiled program, `bool` or `uint8`, in which observations take a quarter
            of the memory of `float32`; None to leave them as they are. See `environment.make`.
        **options: for the environment's constructor; see the `make` of `gymnasium` and `brax`.

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
