"""Many copies of one gymnax environment, stepped side by side.

The adapter is for gymnax >= 1.0:

* When an episode ends, the environment is reset in the same step.
* `terminated` and `truncated` are separate flags.
* `next_obs` of the last step is the last observation of the episode. It is never the observation after the reset.

Any object with gymnax's `reset`, `step`, `action_space` and `default_params` can be used. `gymnax.register` gives it a
name. The object gets keys of the type that the caller passed, typed or raw, and may keep them in its state. Shapes are
computed with typed keys, unless the caller's type is known.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from algorithms.environments import _obs_dtype as obs_dtypes
from algorithms.environments._gymnax import gymnax
from algorithms.environments._gymnax import spaces as gymnax_spaces
from algorithms.environments.described import Finished, info_like, info_of, transition_like, with_info
from algorithms.environments.goals import Goal
from algorithms.environments.spaces import Box, Discrete, Space
from jaxrl_buffers._checks import require_choice
from jaxrl_buffers._random.hashing import is_typed, split, unrolled
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.types import PyTree, Scalar, Transition

KNOWN_ENVIRONMENTS = "gymnax.environments.", "algorithms."  # modules whose environments may get unrolled keys


@runtime_checkable
class Adapter(Protocol):
    """An environment of this library that passes its keys on to another environment."""

    @property
    def wrapped(self) -> Any:
        """The environment that gets the keys."""
        ...


class EnvironmentState(NamedTuple):
    """The state of `N` environments."""

    inner: PyTree  # gymnax states, leaves [N, ...]
    obs: PyTree  # [N, ...]
    episode_return: jax.Array  # float32[N], the sum of rewards in the current episode so far
    episode_length: jax.Array  # int32[N], the number of steps in the current episode so far


class Environment(Component):
    """Any number of copies of one gymnax environment.

    Args:
        env: a gymnax environment.
        params: the parameters of the environment. They are leaves of the pytree, so that `vmap` over them works.
        name: the name of the environment, for messages.
        action_space: the space of actions.
        obs_dtype: the dtype to which floating-point leaves of observations are converted; None leaves them unchanged.
        info_names: names of the numbers in the environment's `info` that are stored with every step; see `with_info`.

    Example:
        >>> env = make("CartPole-v1")
        >>> state = env.reset(jax.random.key(0), num_envs=4)
        >>> state, transition, finished = env.step(state, jnp.zeros(4, jnp.int32), jax.random.key(1))
        >>> transition.next_obs.shape, env.action_space
        ((4, 4), Discrete(num_actions=2))
    """

    env: Any = field(static=True)
    params: PyTree
    name: str = field(static=True)
    action_space: Space = field(static=True)
    obs_dtype: str | None = field(static=True, default=None)
    info_names: tuple[str, ...] = field(static=True, default=())

    @property
    def obs(self) -> PyTree:
        """Shapes and dtypes of one observation."""
        return self._structure()[0]

    @property
    def max_episode_length(self) -> Scalar | None:
        """The time limit in the environment's parameters; None if they have none."""
        return getattr(self.params, "max_steps_in_episode", None)  # only some environments have this parameter

    @property
    def goal(self) -> Goal | None:
        """What hindsight needs; None if the environment has no goals."""
        return getattr(self.env, "goal", None)  # not by a protocol: wrappers of gymnax pass it on by `__getattr__`

    def transition(self, extras: PyTree = ()) -> Transition:
        """Return the shapes and dtypes of one stored step."""
        return transition_like(self.obs, self.action_space, with_info(extras, info_like(self.info_names)))

    def with_info(self, names: Sequence[str]) -> Environment:
        """Return the same environment, which stores these numbers of its `info` with every step, as `extras["info"]`.

        The metrics of a run have their means over steps, as `info_<name>`, and their means over the last steps of
        episodes, as `info_<name>_at_end`.
        """
        env = self.replace(info_names=tuple(names))
        action = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), self.action_space.example
        )
        jax.eval_shape(lambda key, action: env.step(env.reset(key, 1), action, key), jax.random.key(0), action)
        return env

    def reset(self, key: jax.Array, num_envs: int) -> EnvironmentState:
        """Begin `N` episodes; consumes `key`, which is one PRNG key, or `N` keys."""
        keys = key if _is_batch_of_keys(key) else split(key, num_envs)
        structure = self._structure(_type_of_one(keys))
        obs, inner = jax.vmap(self.env.reset, in_axes=(0, None))(self._own(keys), self.params)
        obs, inner = _cast((obs, inner), structure)
        return EnvironmentState(inner, obs, jnp.zeros(num_envs, jnp.float32), jnp.zeros(num_envs, jnp.int32))

    def step(
        self, state: EnvironmentState, action: PyTree, key: jax.Array
    ) -> tuple[EnvironmentState, Transition, Finished]:
        """Take one step in every environment, and reset each one whose episode ends; consumes `key`.

        Args:
            state: the state of `N` environments.
            action: the actions `[N, ...]`.
            key: one PRNG key, or `N` keys.

        Returns:
            The next state, the transitions `[N, ...]`, and the episodes `[N]` that ended.
        """
        num_envs = state.episode_length.shape[0]
        keys = key if _is_batch_of_keys(key) else split(key, num_envs)
        obs, inner, reward, terminated, truncated, info = jax.vmap(self.env.step, in_axes=(0, 0, 0, None))(
            self._own(keys), state.inner, action, self.params
        )
        structure = self._structure(_type_of_one(keys))
        obs, inner = _cast((obs, inner), structure)
        next_obs = _cast(info["final_observation"], structure[0])
        reward = reward.astype(jnp.float32)
        terminated, truncated = terminated.astype(bool), truncated.astype(bool)
        numbers = info_of(self.name, self.info_names, info)
        if wrong := [name for name, value in numbers.items() if jnp.shape(value) != (num_envs,)]:
            raise ValueError(f"{self.name} has an info {wrong[0]!r} that is not one number; leave it out.")
        numbers = {name: jnp.asarray(value, jnp.float32) for name, value in numbers.items()}
        extras = {"info": numbers} if numbers else ()
        transition = Transition(state.obs, action, reward, terminated, truncated, next_obs, extras)
        ended = terminated | truncated
        total, length = state.episode_return + reward, state.episode_length + 1
        finished = Finished(ended, jnp.where(ended, total, 0), jnp.where(ended, length, 0))
        after = EnvironmentState(inner, obs, jnp.where(ended, 0, total), jnp.where(ended, 0, length))
        return after, transition, finished

    def _own(self, keys: jax.Array) -> jax.Array:
        """Return the keys that the environment draws from.

        They have the caller's type, unless the environment belongs to gymnax or to this library. Such an environment
        gets unrolled keys. This is safe, because it only draws from keys and keeps none.
        """
        return unrolled(keys) if _is_known(self.env) else keys

    def _structure(self, key: jax.ShapeDtypeStruct | None = None) -> tuple[PyTree, PyTree]:
        """Return the shapes and dtypes of an observation and a state. They are the same after a reset and after a step.

        Some environments return one dtype from `reset` and another from `step`. The state in a loop must not change its
        type, so a dtype that fits both is chosen. Some environments keep keys in their states. These have the type of
        `key`, by default a typed key.
        """
        key = jax.eval_shape(lambda: jax.random.key(0)) if key is None else key
        action = self.action_space.example
        reset = jax.eval_shape(self.env.reset, key, self.params)
        step = jax.eval_shape(lambda k, s, a, p: self.env.step(k, s, a, p)[:2], key, reset[1], action, self.params)
        obs, state = jax.tree.map(_common, reset, step)
        return jax.tree.map(lambda leaf: obs_dtypes.converted(leaf, self.obs_dtype), obs), state


def _is_known(env: Any) -> bool:
    """Return whether an environment, and each one inside of it, belongs to gymnax or to this library."""
    if not type(env).__module__.startswith(KNOWN_ENVIRONMENTS):
        return False
    return not isinstance(env, Adapter) or _is_known(env.wrapped)


def make(name: str, *, obs_dtype: str | None = None, **options: Any) -> Environment:
    """Return a registered gymnax environment by name.

    Args:
        name: the name of the environment.
        obs_dtype: `bool` or `uint8`, to which observations are converted. They then take a quarter of the memory of
            `float32`, in the buffer and in the training loop. None leaves them unchanged. `bool` is for observations of
            zeros and ones, such as those of MinAtar, and changes no result. `uint8` is for images with values up to
            255, which networks divide by 255. Some random steps test whether the dtype can hold the observations, and
            it is refused if it cannot. This test takes a second or more, once.
        **options: arguments of the environment's constructor.

    Example:
        >>> make("Pendulum-v1").action_space
        Box(low=(-2.0,), high=(2.0,))
        >>> make("Breakout-MinAtar", obs_dtype="bool").obs
        ShapeDtypeStruct(shape=(10, 10, 4), dtype=bool)
    """
    if name not in gymnax.registered_envs:
        raise ValueError(f"there is no environment {name!r}; did you mean {' or '.join(_meant_by(name))}?")
    return _make(name, tuple(sorted(options.items())), obs_dtype)


def _meant_by(name: str) -> list[str]:
    """Return names that a user may have meant by one that does not exist, also names of other libraries."""
    if name in gymnasium.registry or name.startswith("ALE/"):
        return [f"gymnasium:{name}"]
    near = difflib.get_close_matches(name, gymnax.registered_envs, n=3, cutoff=0.4)
    others = difflib.get_close_matches(name, gymnasium.registry, n=1, cutoff=0.7)
    forms = ["one of gymnax.registered_envs", "gymnasium:NAME", "brax:NAME", "my_module:function"]
    return near + [f"gymnasium:{other}" for other in others] or forms


@functools.cache  # equal environments are one object, so they share compiled programs
def _make(name: str, options: tuple[tuple[str, Any], ...], obs_dtype: str | None) -> Environment:
    env, params = gymnax.make(name, **dict(options))
    return wrap(env, params, name, obs_dtype)


def wrap(env: Any, params: PyTree = None, name: str | None = None, obs_dtype: str | None = None) -> Environment:
    """Return a gymnax environment that is not registered, ready for training.

    Its `step` must return `terminated` only where the task itself ends, and `truncated` where a time limit ends the
    episode. After a time limit the task would have gone on, so agents add the value of the last observation. After
    `terminated` they do not. A step with both flags counts as terminated. Runs warn if every truncated step is also
    terminated. gymnax keeps the flags apart: it computes `truncated` by `is_truncated(state, params)`.

    Args:
        env: an object with gymnax's `reset`, `step`, `action_space` and `default_params`.
        params: its parameters; None for `env.default_params`.
        name: the name for messages; None for `env.name`.
        obs_dtype: as in `make`.
    """
    params = env.default_params if params is None else params
    name = str(env.name) if name is None else name
    environment = Environment(env, params, name, _action_space(env.action_space(params), name))
    if obs_dtype is None:
        return environment
    require_choice("environment", "obs_dtype", obs_dtype, obs_dtypes.OBS_DTYPES)
    obs_dtypes.check(environment, obs_dtype)
    return environment.replace(obs_dtype=obs_dtype)


def _action_space(space: object, name: str) -> Space:
    if isinstance(space, gymnax_spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, gymnax_spaces.Box) and len(np.shape(np.zeros(space.shape))) <= 1:
        low, high = (np.broadcast_to(np.asarray(bound, np.float32), space.shape) for bound in (space.low, space.high))
        if not np.all(np.isfinite(low) & np.isfinite(high)):
            raise ValueError(f"{name} has unbounded actions {space}; wrap it so that they have finite bounds.")
        return Box(tuple(low.reshape(-1).tolist()), tuple(high.reshape(-1).tolist()))
    raise ValueError(
        f"{name} has the action space {space}; agents need Discrete, or Box of one axis; wrap the environment."
    )


def _is_batch_of_keys(key: jax.Array) -> bool:
    return key.ndim == (1 if is_typed(key) else 2)


def _type_of_one(keys: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(keys.shape[1:], keys.dtype)


def _common(one: jax.ShapeDtypeStruct, other: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Return the shape of the leaves, and a dtype that both have or can be cast to."""
    dtype = one.dtype if one.dtype == other.dtype else jnp.promote_types(one.dtype, other.dtype)
    return jax.ShapeDtypeStruct(other.shape, dtype)


def _cast(values: PyTree, structure: PyTree) -> PyTree:
    """Cast every leaf to its dtype in `structure`, and remove weak types."""

    def cast(leaf: jax.Array, like: jax.ShapeDtypeStruct) -> jax.Array:
        return leaf if is_typed(leaf) else jax.lax.convert_element_type(leaf, like.dtype)

    return jax.tree.map(cast, values, structure)
