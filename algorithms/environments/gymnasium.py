"""Gymnasium's environments, by name or from a function of the user. They are stepped on the host."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import re
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from algorithms.environments import _gymnasium_making as making
from algorithms.environments import _gymnasium_spaces as spaces
from algorithms.environments._vector_processes import LostEnvironment
from algorithms.environments.described import info_like, transition_like, with_info
from algorithms.environments.spaces import Space
from algorithms.environments.stepping import Stepper
from jaxrl_buffers._checks import one_line, require_integer
from jaxrl_buffers.types import PyTree, Transition

cloudpickle.register_pickle_by_value(making)  # for the processes of AsyncVectorEnv


@dataclasses.dataclass(frozen=True)
class HostEnvironment:
    """Any number of copies of one Gymnasium environment, for `train_on_host`.

    Args:
        name: the name of the environment, for messages.
        make_vector: `make_vector(num_envs, **options)` makes `num_envs` environments side by side. The options are
            those of `gymnasium.make`, such as `render_mode`.
        obs: shapes and dtypes of one encoded observation; see `encode`.
        action_space: the space of actions.
        max_episode_length: the largest number of steps in an episode; None if it is not known.
        spaces: Gymnasium's spaces of one observation and of one action.
        make_tests: like `make_vector`, for evaluations. None means `make_vector`.
        info_names: names of the numbers in the environment's `info` that are stored with every step; see `with_info`.

    Example:
        >>> import numpy as np
        >>> from algorithms import environments
        >>> env = environments.make("gymnasium:CartPole-v1")
        >>> steps = env.start(num_envs=2, seed=0)
        >>> steps.step(np.array([0, 1])).transition.next_obs.shape
        (2, 4)
        >>> steps.close()
    """

    name: str
    make_vector: Callable[..., VectorEnv[Any, Any, Any]]
    obs: PyTree
    action_space: Space
    max_episode_length: int | None
    spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
    make_tests: Callable[..., VectorEnv[Any, Any, Any]] | None = None
    goal: None = None
    info_names: tuple[str, ...] = ()

    def transition(self, extras: PyTree = ()) -> Transition:
        """Return the shapes and dtypes of one stored step."""
        return transition_like(self.obs, self.action_space, with_info(extras, info_like(self.info_names)))

    def with_info(self, names: Sequence[str]) -> HostEnvironment:
        """Return the same environment, which stores these numbers of its `info` with every step, as `extras["info"]`.

        The metrics of a run have their means over steps, as `info_<name>`, and their means over the last steps of
        episodes, as `info_<name>_at_end`. A step without the number does not count.
        """
        return dataclasses.replace(self, info_names=tuple(names))

    def encode(self, obs: Any) -> PyTree:
        """Turn one or many observations of Gymnasium into the arrays that agents see."""
        return spaces.encode(self.spaces[0], obs)

    def encode_rows(self, rows: Transition) -> Transition:
        """Turn rows `[K, ...]` in Gymnasium's own terms, such as those of a data set, into those that agents see.

        Observations that are encoded already stay as they are. Actions must be Gymnasium's.
        """
        obs, next_obs = (spaces.encode_stored(self.spaces[0], one) for one in (rows.obs, rows.next_obs))
        return rows._replace(obs=obs, next_obs=next_obs, action=spaces.encode_actions(self.spaces[1], rows.action))

    @property
    def action_bounds(self) -> tuple[Any, Any]:
        """The smallest and the largest action, in Gymnasium's own terms."""
        return spaces.bounds(self.spaces[1])

    def decode(self, action: Any) -> Any:
        """Turn actions `[N, ...]` of an agent, of NumPy or JAX, into actions of Gymnasium."""
        return spaces.decode_actions(self.spaces[1], action)

    def start(self, num_envs: int, seed: int | None = None, **options: Any) -> Stepper:
        """Make `N` environments, with options of `gymnasium.make`. If there is a seed, also begin their episodes."""
        return self._start(self.make_vector, num_envs, seed, options)

    def start_tests(self, num_envs: int, seed: int | None = None, **options: Any) -> Stepper:
        """Make environments for an evaluation, like `start`. They run in this process, even with `use_processes`."""
        return self._start(self.make_tests or self.make_vector, num_envs, seed, options)

    def _start(
        self,
        make_vector: Callable[..., VectorEnv[Any, Any, Any]],
        num_envs: int,
        seed: int | None,
        options: dict[str, Any],
    ) -> Stepper:
        vector = make_vector(num_envs, **options)
        if vector.num_envs != num_envs:
            raise ValueError(f"{self.name} was asked for {num_envs} environments and made {vector.num_envs}.")
        stepper = Stepper(vector, self.name, self.info_names)
        if seed is not None:
            stepper.reset(seed)
        return stepper


def make(
    name: str, frame_skip: int | None = None, frame_stack: int = 1, use_processes: bool = False, **options: Any
) -> HostEnvironment:
    """Return the environment that is registered with Gymnasium under an id.

    Args:
        name: the id, such as `HalfCheetah-v5` or `ALE/Pong-v5`. Gymnasium's `AtariPreprocessing` turns the frames of
            Atari games into gray frames of 84 x 84, with an axis of one channel if frames are not stacked.
        frame_skip: the number of frames for which an action is repeated, 4 by default. Only Atari games have it.
        frame_stack: the number of observations that are stacked along a new last axis. A buffer with
            `jb.ReplayBuffer(frames=jb.Frames(stack=4), ...)` stores each frame only once. The observations of a
            transition of four frames of 84 x 84 then take 84 * 84 * (1 + 1/8) = 7,938 bytes instead of 56,448.
        use_processes: whether to step every environment in its own process. This is faster if steps are slow. A script
            must then have its code under `if __name__ == "__main__":`.
        **options: arguments of `gymnasium.make`.
    """
    if not name:
        raise ValueError("environment 'gymnasium:' has no name; give one, such as gymnasium:HalfCheetah-v5.")
    require_integer("environment", "frame_stack", frame_stack, 1)
    if frame_skip is not None:
        require_integer("environment", "frame_skip", frame_skip, 1)
        if not name.startswith(making.ATARI):
            raise ValueError(
                f"environment(frame_skip={frame_skip}): {name} is not an Atari game, such as ALE/Pong-v5; leave it "
                "out, or repeat actions in a factory of your own."
            )
    given = name, frame_skip or 4, frame_stack, use_processes
    try:
        return _make_once(*given, tuple(sorted(options.items())))
    except TypeError:  # an option cannot be hashed; any other TypeError is raised again
        return _make(*given, options)


@functools.cache  # making an environment to read its spaces takes up to a second
def _make_once(
    name: str, frame_skip: int, frame_stack: int, use_processes: bool, options: tuple[tuple[str, Any], ...]
) -> HostEnvironment:
    return _make(name, frame_skip, frame_stack, use_processes, dict(options))


def _make(
    name: str, frame_skip: int, frame_stack: int, use_processes: bool, options: dict[str, Any]
) -> HostEnvironment:
    make_one = functools.partial(making.make, name, **options)
    if name.startswith(making.ATARI):
        _require_atari()
        make_one = functools.partial(making.make_atari, name, frame_skip, frame_stack == 1, **options)
    try:
        example = make_one()
    except (gymnasium.error.Error, ImportError) as error:  # the latter from old versions of MuJoCo's tasks, too
        raise ValueError(f"gymnasium:{name}: {_one_line(error)}{_advice(name, error)}") from error
    except (TypeError, AttributeError, AssertionError) as error:  # constructors raise these for unknown options
        if not options:
            raise
        reason = _one_line(error).partition(" was raised from the environment creator")[0]
        raise ValueError(f"gymnasium:{name} does not take {options}: {reason}.") from error
    return from_factory(make_one, f"gymnasium:{name}", use_processes, example, frame_stack)


def from_factory(
    make_one: Callable[..., gymnasium.Env[Any, Any]],
    name: str,
    use_processes: bool = False,
    example: gymnasium.Env[Any, Any] | None = None,
    frame_stack: int = 1,
) -> HostEnvironment:
    """Return environments from a function that makes one at a time. `example` is one that it has already made."""
    env = make_one() if example is None else example
    if frame_stack > 1:
        env = making.stacked(functools.partial(_same, env), frame_stack)
        make_one = functools.partial(making.stacked, make_one, frame_stack)
    spaces.warn_of_images(env.observation_space, name)
    obs, action = spaces.structure(env.observation_space), spaces.action_space(env.action_space, name)
    limit = _time_limit(env)
    env.close()
    own, side_by_side = (env.observation_space, env.action_space), functools.partial(_side_by_side, make_one)
    if use_processes:
        in_processes = functools.partial(_in_processes, make_one, name)
        return HostEnvironment(name, in_processes, obs, action, limit, own, make_tests=side_by_side)
    return HostEnvironment(name, side_by_side, obs, action, limit, own)


def _same(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return env


def _side_by_side(
    make_one: Callable[..., gymnasium.Env[Any, Any]], num_envs: int, **options: Any
) -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([functools.partial(make_one, **options)] * num_envs, autoreset_mode=AutoresetMode.DISABLED)


def _in_processes(
    make_one: Callable[..., gymnasium.Env[Any, Any]], name: str, num_envs: int, **options: Any
) -> VectorEnv[Any, Any, Any]:
    makers = [functools.partial(making.in_process, make_one, **options)] * num_envs
    # Processes are spawned, not forked: JAX has threads, and a forked process with threads may hang.
    try:
        return AsyncVectorEnv(makers, context="spawn", autoreset_mode=AutoresetMode.DISABLED)
    except (EOFError, ConnectionError) as error:
        raise LostEnvironment(
            f"{name}: a process ended before its environment was made; see what it printed, or step environments "
            "without processes of their own."
        ) from error


def from_vectors(make_vector: Callable[..., VectorEnv[Any, Any, Any]], name: str) -> HostEnvironment:
    """Return environments from a function `make_vector(num_envs)` that makes all of them at once."""
    vector = make_vector(1)
    if not isinstance(vector, VectorEnv):
        raise ValueError(
            f"{name} has an argument `num_envs` and so must make a VectorEnv; it made a {type(vector).__name__}."
        )
    spaces.warn_of_images(vector.single_observation_space, name)
    obs = spaces.structure(vector.single_observation_space)
    action = spaces.action_space(vector.single_action_space, name)
    limit = None if vector.spec is None else vector.spec.max_episode_steps
    vector.close()
    own = vector.single_observation_space, vector.single_action_space
    return HostEnvironment(name, make_vector, obs, action, limit, own)


def refuse_obs_dtype(name: str, obs_dtype: str | None) -> None:
    """Refuse an `obs_dtype` for an environment on the host."""
    if obs_dtype is not None:
        raise ValueError(
            f"environment(obs_dtype={obs_dtype!r}): observations of {name} are stored as they come; leave it out."
        )


def _require_atari() -> None:
    missing = [name for name in ("ale_py", "cv2") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"Atari games need {' and '.join(missing)}, which is not installed: pip install 'jaxrl-buffers[atari]'."
        )


def _time_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """Return the time limit from the registration of an environment, or from a wrapper around it."""
    spec = env.spec
    if spec is not None:
        # Atari games limit the number of frames, which is at least the number of steps.
        return spec.max_episode_steps or spec.kwargs.get("max_num_frames_per_episode")
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            return env._max_episode_steps
        env = env.env
    return None


def _one_line(error: BaseException) -> str:
    return one_line(error).rstrip(".")


def _advice(name: str, error: BaseException) -> str:
    """Return the end of an error about an environment that Gymnasium cannot make."""
    if isinstance(error, gymnasium.error.UnregisteredEnv):
        game = re.sub(r"(NoFrameskip|Deterministic)?(-v\d+)?$", "", name)
        if importlib.util.find_spec("ale_py") is not None and making.is_atari_game(game):
            return f"; did you mean gymnasium:ALE/{game}-v5?"
        return "" if str(error).endswith("?") else "; see `gymnasium.pprint_registry()`."
    if isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError):  # it is there no longer
        newest = making.newest(name)
        return "." if newest is None else f"; use gymnasium:{newest}."
    is_missing = isinstance(error, (ModuleNotFoundError, gymnasium.error.DependencyNotInstalled))
    return "; pip install 'jaxrl-buffers[gymnasium]'." if is_missing and "mujoco" in str(error).lower() else "."
