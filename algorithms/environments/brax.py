"""Brax's environments in gymnax's interface, so that they run inside the compiled program.

Brax's own wrappers begin every episode with the first state of the run. They also return this state instead of the last
observation of an episode. The adapter here returns the last observation, reports the time limit as `truncated`, and
draws a new first state for every episode.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import io
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from algorithms.environments._gymnax import spaces
from algorithms.environments.environment import Environment, wrap
from jaxrl_buffers._checks import require_integer
from jaxrl_buffers.types import PyTree

# Hides two messages: mujoco.mjx prints that warp is missing, and jaxopt warns that it is not maintained.
with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from brax import envs as _brax

envs: Any = _brax  # Any, because the types of Brax are known only where the extra is installed

OF_TRAINING = "brax.envs.wrappers.training"  # the module of wrappers that do what is done here, in another way
NOT_MAINTAINED = "Brax System"  # the beginning of a warning that does not help users who chose Brax


class BraxState(NamedTuple):
    """Brax's state of one environment, and the number of steps in the episode."""

    inner: Any
    time: jax.Array  # int32[]


@struct.dataclass
class BraxParams:
    """The parameters, which hold the time limit."""

    max_steps_in_episode: int = 1_000


class FromBrax:
    """A Brax environment, without wrappers, in the interface of gymnax.

    Args:
        env: the environment.
        name: the name of the environment, for messages.
        episode_length: the time limit, in steps.
    """

    env: Any
    name: str
    default_params: BraxParams

    def __init__(self, env: Any, name: str, episode_length: int = 1_000):
        require_integer("FromBrax", "episode_length", episode_length, 1)
        self.env, self.name = env, name
        self.default_params = BraxParams(episode_length)

    @property
    def wrapped(self) -> Any:
        """Brax's environment, which gets the keys."""
        return self.env

    def action_space(self, params: BraxParams) -> spaces.Box:
        """Return the space of actions. All environments of Brax take actions in [-1, 1]."""
        return spaces.Box(-1.0, 1.0, (self.env.action_size,))

    def reset(self, key: jax.Array, params: BraxParams) -> tuple[PyTree, BraxState]:
        """Begin an episode; consumes `key`."""
        inner = self.env.reset(key)
        return inner.obs, BraxState(inner, jnp.zeros((), jnp.int32))

    def step(self, key: jax.Array, state: BraxState, action: jax.Array, params: BraxParams) -> tuple[Any, ...]:
        """Take a step. If it ends the episode, also begin the next one; consumes `key`."""
        after, time = self.env.step(state.inner, action), state.time + 1
        terminated = after.done.astype(bool)
        truncated = ~terminated & (time >= params.max_steps_in_episode)
        _, fresh = self.reset(key, params)
        ended = terminated | truncated
        following = jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, BraxState(after, time))
        info = {**after.metrics, "final_observation": after.obs}
        return following.inner.obs, following, after.reward, terminated, truncated, info


def make(name: str, episode_length: int = 1_000, obs_dtype: str | None = None, **options: Any) -> Environment:
    """Return one of Brax's environments by name.

    Args:
        name: such as `ant` or `inverted_pendulum`.
        episode_length: the time limit, in steps.
        obs_dtype: as in `environments.make`.
        **options: arguments of the environment's constructor, such as `backend="mjx"`.

    Example:
        >>> from algorithms import environments
        >>> environments.make("brax:inverted_pendulum").action_space  # doctest: +SKIP
        Box(low=(-1.0,), high=(1.0,))
    """
    known = sorted(envs._envs)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known
        raise ValueError(f"Brax has no environment {name!r}; did you mean {' or '.join(near)}?")
    return _make(name, episode_length, obs_dtype, tuple(sorted(options.items())))


@functools.cache  # equal environments are one object, so they share compiled programs
def _make(name: str, episode_length: int, obs_dtype: str | None, options: tuple[tuple[str, Any], ...]) -> Environment:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", NOT_MAINTAINED, UserWarning)
        env = envs.get_environment(name, **dict(options))
    return from_brax(env, f"brax:{name}", episode_length, obs_dtype)


def from_brax(env: Any, name: str, episode_length: int = 1_000, obs_dtype: str | None = None) -> Environment:
    """Return a Brax environment, without the wrappers of Brax's training, ready for training."""
    inside = env
    while isinstance(inside, envs.Wrapper):
        if type(inside).__module__ == OF_TRAINING:
            raise ValueError(
                f"{name} has Brax's {type(inside).__name__} around it, which hides the last observations of episodes, "
                "or their ends; return the environment without it, such as brax.envs.get_environment('ant')."
            )
        inside = inside.env
    return wrap(FromBrax(env, name, episode_length), name=name, obs_dtype=obs_dtype)
