"""Gymnasium's environments, stepped on the host, with the true successor of every step.

Whatever a vector of environments does about the end of an episode, a row holds the last observation of its episode as
`next_obs`, never the first one of the next, and no row is a mere reset:

* `SAME_STEP`: a vector resets in the step that ends an episode; the last observation is in `info["final_obs"]`.
* `DISABLED`: it does not reset; we do, with `reset_mask`. Vectors that we make ourselves are of this kind.
* `NEXT_STEP`: the step after the end is a reset, whatever the action. Such a step is marked, and is no row.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from algorithms.environments import _gymnasium_spaces as spaces
from algorithms.environments.described import Finished, transition_like
from algorithms.environments.spaces import Space
from jaxrl_buffers._checks import require_integer
from jaxrl_buffers.types import PyTree, Transition

ATARI_SIZE = 84  # height and width of the frames that agents see


class Stepped(NamedTuple):
    """One step of `N` environments, all arrays NumPy's."""

    transition: Transition  # [N, ...]
    finished: Finished  # [N]
    is_row: np.ndarray  # bool[N]; False where the step was a mere reset


class Stepper:
    """`N` environments in the middle of their episodes.

    Args:
        vector: the environments.
        name: what to call them.

    Attributes:
        obs: what to act on next, `[N, ...]`.
    """

    def __init__(self, vector: VectorEnv, name: str):
        self.num_envs = vector.num_envs
        self._vector, self._space, self._actions = vector, vector.single_observation_space, vector.single_action_space
        self._mode = vector.metadata.get("autoreset_mode")
        if not isinstance(self._mode, AutoresetMode):
            raise ValueError(
                f"{name} says autoreset_mode={self._mode!r} in its metadata; it must be one of Gymnasium's "
                "AutoresetMode, or nobody knows which observations are the last ones of their episodes."
            )

    def reset(self, seed: int) -> None:
        """Begin new episodes everywhere; environment `i` gets the seed `seed + i`."""
        obs, _ = self._vector.reset(seed=seed)
        self.obs = self._encode(obs)
        self._is_reset = np.zeros(self.num_envs, bool)  # where the next step will be a reset
        self._return, self._length = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, np.int32)

    def step(self, action: np.ndarray) -> Stepped:
        """Take one step in every environment, given actions `[N, ...]` of an agent."""
        obs, reward, terminated, truncated, info = self._vector.step(spaces.decode_actions(self._actions, action))
        is_row = ~self._is_reset
        reward = np.asarray(reward, np.float32)
        terminated, truncated = (np.asarray(flag, bool) & is_row for flag in (terminated, truncated))
        ended = terminated | truncated
        following = self._encode(obs)
        next_obs = following
        if ended.any():
            next_obs, following = self._across_the_end(following, ended, info)
        transition = Transition(self.obs, action, reward, terminated, truncated, next_obs)
        self.obs = following
        if self._mode == AutoresetMode.NEXT_STEP:
            self._is_reset = ended
        return Stepped(transition, self._count(reward, ended, is_row), is_row)

    def close(self) -> None:
        """End the environments, and their processes if they have any."""
        self._vector.close()

    def _across_the_end(self, obs: PyTree, ended: np.ndarray, info: dict[str, Any]) -> tuple[PyTree, PyTree]:
        """Return the last observations of episodes, and what to act on next, given what a step returned."""
        if self._mode == AutoresetMode.SAME_STEP:
            last = jax.tree.map(np.copy, obs)
            for index in np.flatnonzero(ended):
                _put(last, int(index), spaces.encode(self._space, info["final_obs"][index]))
            return last, obs
        if self._mode == AutoresetMode.DISABLED:
            fresh, _ = self._vector.reset(options={"reset_mask": ended})
            return obs, jax.tree.map(lambda new, old: np.where(_like(ended, old), new, old), self._encode(fresh), obs)
        return obs, obs

    def _count(self, reward: np.ndarray, ended: np.ndarray, is_row: np.ndarray) -> Finished:
        """Sum up the episodes; return those that ended."""
        self._return += np.where(is_row, reward, np.float32(0))
        self._length += is_row
        finished: Any = ended, np.where(ended, self._return, 0), np.where(ended, self._length, 0)
        self._return, self._length = np.where(ended, 0, self._return), np.where(ended, 0, self._length)
        return Finished(*finished)

    def _encode(self, obs: Any) -> PyTree:
        # Vectors may hand out the same memory again and again.
        return jax.tree.map(np.array, spaces.encode(self._space, obs))


@dataclasses.dataclass(frozen=True)
class HostEnvironment:
    """Any number of copies of one Gymnasium environment, for `train_on_host`.

    Args:
        name: what to call it.
        make_vector: `make_vector(num_envs, **options)` makes that many environments side by side; options are those of
            `gymnasium.make`, such as `render_mode`.
        obs: shapes and dtypes of one observation, encoded.
        action_space: what an agent may do.
        max_episode_length: the time limit, if it is known.
        spaces: Gymnasium's own, of one observation and of one action.

    Example:
        >>> from algorithms import environments
        >>> env = environments.make("gymnasium:CartPole-v1")
        >>> steps = env.start(num_envs=2, seed=0)
        >>> steps.step(np.array([0, 1])).transition.next_obs.shape
        (2, 4)
        >>> steps.close()
    """

    name: str
    make_vector: Callable[..., VectorEnv]
    obs: PyTree
    action_space: Space
    max_episode_length: int | None
    spaces: tuple[gymnasium.Space, gymnasium.Space]
    goal: None = None

    def transition(self, extras: PyTree = ()) -> Transition:
        """Return the shapes and dtypes of one stored step."""
        return transition_like(self.obs, self.action_space, extras)

    def encode(self, obs: Any) -> PyTree:
        """Return observations as Gymnasium has them, one or many, as the arrays that agents see."""
        return spaces.encode(self.spaces[0], obs)

    def decode(self, action: np.ndarray) -> np.ndarray:
        """Return actions `[N, ...]` of an agent as Gymnasium takes them."""
        return spaces.decode_actions(self.spaces[1], action)

    def start(self, num_envs: int, seed: int, **options: Any) -> Stepper:
        """Begin `N` episodes; `options` are those of `gymnasium.make`."""
        vector = self.make_vector(num_envs, **options)
        if vector.num_envs != num_envs:
            raise ValueError(f"{self.name} was asked for {num_envs} environments and made {vector.num_envs}.")
        stepper = Stepper(vector, self.name)
        stepper.reset(seed)
        return stepper


def make(
    name: str, frame_skip: int | None = None, frame_stack: int = 1, use_processes: bool = False, **options: Any
) -> HostEnvironment:
    """Return an environment by the id that Gymnasium knows it by.

    Args:
        name: such as `HalfCheetah-v5`, or `ALE/Pong-v5`, whose frames become gray, 84 x 84, by Gymnasium's
            `AtariPreprocessing`.
        frame_skip: of Atari, how many frames an action is repeated for; 4 by default.
        frame_stack: how many observations are put together along a new last axis. Let the buffer keep them once:
            `jb.ReplayBuffer(frames=jb.Frames(stack=4), ...)`. A transition of four frames of 84 x 84 then takes
            84 * 84 * (1 + 1/8) = 7,938 bytes for its observations, in the place of 56,448.
        use_processes: step every environment in a process of its own, which pays where steps are slow. Scripts then
            need `if __name__ == "__main__":` around what they do.
        **options: for `gymnasium.make`.
    """
    require_integer("environment", "frame_stack", frame_stack, 1)
    if frame_skip is not None:
        require_integer("environment", "frame_skip", frame_skip, 1)
        if not name.startswith("ALE/"):
            raise ValueError(
                f"environment(frame_skip={frame_skip}): {name} is no game of Atari (ALE/...); leave it out, or repeat "
                "actions in a factory of your own."
            )
    # Processes import what they unpickle: where nothing is wrapped they need nothing but Gymnasium.
    make_one = functools.partial(gymnasium.make, name, **options)
    if name.startswith("ALE/"):
        _require_atari()
        make_one = functools.partial(gymnasium.make, f"ale_py:{name}", frameskip=1, **options)
        make_one = functools.partial(_preprocessed, make_one, frame_skip or 4)
    if frame_stack > 1:
        make_one = functools.partial(_stacked, make_one, frame_stack)
    try:
        example = make_one()
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise ValueError(f"gymnasium:{name}: {_one_line(error)}{_advice(error)}") from error
    return from_factory(make_one, f"gymnasium:{name}", use_processes, example)


def from_factory(
    make_one: Callable[..., gymnasium.Env], name: str, use_processes: bool = False, example: gymnasium.Env | None = None
) -> HostEnvironment:
    """Return the environments that a function makes, one at a time; `example` is a first one, if there is one."""

    def make_vector(num_envs: int, **options: Any) -> VectorEnv:
        makers, mode = [functools.partial(make_one, **options)] * num_envs, AutoresetMode.DISABLED
        if use_processes:  # begun afresh: JAX has threads, and copies of a process with threads may wait for ever
            return AsyncVectorEnv(makers, context="spawn", autoreset_mode=mode)
        return SyncVectorEnv(makers, autoreset_mode=mode)

    env = make_one() if example is None else example
    obs, action = spaces.structure(env.observation_space), spaces.action_space(env.action_space, name)
    limit = _time_limit(env)
    env.close()
    return HostEnvironment(name, make_vector, obs, action, limit, (env.observation_space, env.action_space))


def from_vectors(make_vector: Callable[..., VectorEnv], name: str) -> HostEnvironment:
    """Return the environments that a function of their number makes, all at once."""
    vector = make_vector(1)
    if not isinstance(vector, VectorEnv):
        raise ValueError(f"{name} has an argument `num_envs` and so must make a VectorEnv; it made {_kind(vector)}.")
    obs = spaces.structure(vector.single_observation_space)
    action = spaces.action_space(vector.single_action_space, name)
    limit = None if vector.spec is None else vector.spec.max_episode_steps
    vector.close()
    own = vector.single_observation_space, vector.single_action_space
    return HostEnvironment(name, make_vector, obs, action, limit, own)


def refuse_obs_dtype(name: str, obs_dtype: str | None) -> None:
    """Refuse another dtype for observations of an environment on the host."""
    if obs_dtype is not None:
        raise ValueError(
            f"environment(obs_dtype={obs_dtype!r}): observations of {name} are stored as they come; leave it out."
        )


def _preprocessed(make_one: Callable[..., gymnasium.Env], frame_skip: int, **options: Any) -> gymnasium.Env:
    return gymnasium.wrappers.AtariPreprocessing(make_one(**options), frame_skip=frame_skip, screen_size=ATARI_SIZE)


def _stacked(make_one: Callable[..., gymnasium.Env], size: int, **options: Any) -> gymnasium.Env:
    """Put observations together along a new last axis; Gymnasium itself makes it the first one."""
    env = gymnasium.wrappers.FrameStackObservation(make_one(**options), size)
    space = env.observation_space
    if not isinstance(space, gymnasium.spaces.Box):
        raise ValueError(f"environment(frame_stack={size}): {env} shows {space}; only arrays can be stacked.")
    low, high = (np.moveaxis(bound, 0, -1) for bound in (space.low, space.high))
    moved = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)
    return gymnasium.wrappers.TransformObservation(env, lambda frames: np.moveaxis(frames, 0, -1), moved)


def _require_atari() -> None:
    missing = [name for name in ("ale_py", "cv2") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"games of Atari need {' and '.join(missing)}, which is not installed: pip install 'jaxrl-buffers[atari]'."
        )


def _time_limit(env: gymnasium.Env) -> int | None:
    spec = env.spec
    if spec is None or spec.max_episode_steps is not None:
        return None if spec is None else spec.max_episode_steps
    return spec.kwargs.get("max_num_frames_per_episode")  # of Atari: never fewer frames than steps


def _put(values: PyTree, index: int, value: PyTree) -> None:
    """Write one observation into an array of many."""
    for leaf, new in zip(jax.tree.leaves(values), jax.tree.leaves(value), strict=True):
        leaf[index] = new


def _like(flags: np.ndarray, leaf: np.ndarray) -> np.ndarray:
    """Return flags `[N]` with as many axes as a leaf."""
    return flags.reshape(-1, *[1] * (leaf.ndim - 1))


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _advice(error: BaseException) -> str:
    is_missing = isinstance(error, (ModuleNotFoundError, gymnasium.error.DependencyNotInstalled))
    return "; pip install 'jaxrl-buffers[gymnasium]'." if is_missing else "."
