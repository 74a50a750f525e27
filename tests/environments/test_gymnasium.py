"""Gymnasium's environments: the true successor of every step, and spaces in our terms."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
import warnings

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from support.host_walk import GOAL, TIME_LIMIT, HostWalk, make_host_walk

from algorithms import Box, Discrete, environments
from algorithms.environments import _gymnasium_spaces as spaces
from algorithms.environments.gymnasium import from_factory, from_vectors
from algorithms.environments.stepping import Stepper

MODES = list(AutoresetMode)


IN_PROCESSES = functools.partial(AsyncVectorEnv, context="spawn")


def _steps(mode: AutoresetMode, kind=SyncVectorEnv, make=make_host_walk, num_envs: int = 2) -> Stepper:
    steps = Stepper(kind([make] * num_envs, autoreset_mode=mode), "Walk")
    steps.reset(0)
    return steps


def _rows(steps: Stepper, num_steps: int) -> list[list]:
    """Return the rows of every environment, which act at random."""
    random, rows = np.random.default_rng(0), [[] for _ in range(steps.num_envs)]
    for _ in range(num_steps):
        transition, finished, is_row = steps.step(random.integers(0, 2, steps.num_envs))
        for env in np.flatnonzero(is_row):
            rows[env].append(jax.tree.map(lambda leaf, env=env: leaf[env], (transition, finished)))
    return rows


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [SyncVectorEnv, IN_PROCESSES], ids=["in one process", "in processes"])
def test_every_row_is_a_step_of_the_task(mode, kind):
    steps = _steps(mode, kind)
    ends = set()
    for rows in _rows(steps, 60):
        begin, total = np.zeros(2, np.float32), 0.0
        for transition, finished in rows:
            np.testing.assert_array_equal(transition.obs, begin)
            place = transition.obs[0] + 2 * transition.action - 1
            np.testing.assert_array_equal(transition.next_obs, [place, transition.obs[1] + 1])
            assert transition.reward == place
            assert transition.terminated == (place >= GOAL)
            assert transition.truncated == (transition.next_obs[1] >= TIME_LIMIT)
            total += place
            is_end = transition.terminated or transition.truncated
            assert finished.ended == is_end
            if is_end:
                ends.add("terminated" if transition.terminated else "truncated")
                assert (finished.episode_return, finished.episode_length) == (total, transition.next_obs[1])
            begin, total = (np.zeros(2), 0.0) if is_end else (transition.next_obs, total)
        assert len(rows) > 30
    steps.close()
    assert ends == {"terminated", "truncated"}


def test_only_a_reset_on_the_next_step_is_no_row():
    steps = _steps(AutoresetMode.NEXT_STEP, num_envs=2)
    are_rows = [steps.step(np.array([1, 0])).is_row.tolist() for _ in range(6)]
    assert are_rows == [[True, True]] * 3 + [[False, True], [True, True], [True, False]]


def test_vectors_that_reset_on_the_next_step_by_themselves():
    env = from_vectors(lambda num_envs: gymnasium.make_vec("CartPole-v1", num_envs), "CartPole")
    steps = env.start(2, seed=0)
    rows = _rows(steps, 100)
    assert max(abs(row.next_obs[2]) for rows in rows for row, _ in rows if row.terminated) > 0.2  # fell over
    assert all(abs(row.obs[2]) < 0.21 for rows in rows for row, _ in rows)  # nothing begins where something fell


def test_environments_in_processes_of_their_own():
    env = environments.make("gymnasium:Pendulum-v1", use_processes=True)
    steps, other = env.start(2, seed=3), environments.make("gymnasium:Pendulum-v1").start(2, seed=3)
    for _ in range(3):
        action = np.full((2, 1), 0.5, np.float32)
        jax.tree.map(np.testing.assert_array_equal, steps.step(action), other.step(action))
    steps.close()


def test_seeds_decide_the_first_observations():
    env = environments.make("gymnasium:Pendulum-v1")
    first = [env.start(2, seed).obs for seed in (0, 0, 1)]
    np.testing.assert_array_equal(first[0], first[1])
    np.testing.assert_array_equal(first[0][1], first[2][0])  # environment i has the seed plus i
    assert (first[0] != first[2]).any()


class Shown(gymnasium.Env):
    """Shows samples of a space."""

    action_space = gymnasium.spaces.Discrete(2, start=5)

    def __init__(self, space):
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert action in (5, 6)
        return self.observation_space.sample(), 0.0, False, False, {}


SHOWN = {
    "vector": (gymnasium.spaces.Box(-1, 1, (3,), np.float64), jax.ShapeDtypeStruct((3,), np.float32)),
    "image": (gymnasium.spaces.Box(0, 255, (8, 6, 3), np.uint8), jax.ShapeDtypeStruct((8, 6, 3), np.uint8)),
    "counts": (gymnasium.spaces.Box(0, 9, (2,), np.int64), jax.ShapeDtypeStruct((2,), np.int32)),
    "choice": (gymnasium.spaces.Discrete(4, start=-1), jax.ShapeDtypeStruct((4,), np.bool_)),
    "choices": (gymnasium.spaces.MultiDiscrete([3, 2]), jax.ShapeDtypeStruct((5,), np.bool_)),
    "table of choices": (gymnasium.spaces.MultiDiscrete([[3, 2], [2, 2]]), jax.ShapeDtypeStruct((9,), np.bool_)),
    "bits": (gymnasium.spaces.MultiBinary(3), jax.ShapeDtypeStruct((3,), np.bool_)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [*SHOWN, "dict", "tuple"])
def test_observations_of_every_space(name, mode):
    if name in SHOWN:
        space, expected = SHOWN[name]
    elif name == "dict":
        space = gymnasium.spaces.Dict({"a": SHOWN["vector"][0], "b": gymnasium.spaces.Dict({"c": SHOWN["choice"][0]})})
        expected = {"a": SHOWN["vector"][1], "b": {"c": SHOWN["choice"][1]}}
    else:
        space, expected = gymnasium.spaces.Tuple([SHOWN["vector"][0]]), (SHOWN["vector"][1],)
    assert spaces.structure(space) == expected
    steps = _steps(mode, make=lambda: TimeLimit(Shown(space), 2), num_envs=2)
    for _ in range(5):
        transition = steps.step(np.array([0, 1])).transition
        found = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), transition.next_obs)
        assert found == expected


def test_a_choice_is_marked_by_one_true():
    np.testing.assert_array_equal(spaces.encode(SHOWN["choice"][0], np.array([-1, 2])), np.eye(4)[[0, 3]].astype(bool))
    found = spaces.encode(SHOWN["choices"][0], np.array([[2, 0]]))
    np.testing.assert_array_equal(found, [[False, False, True, True, False]])
    later = gymnasium.spaces.MultiDiscrete([3, 2], start=[5, -1])
    np.testing.assert_array_equal(spaces.encode(later, np.array([[7, -1]])), found)


def test_actions_in_our_terms():
    box = gymnasium.spaces.Box(np.array([[-1, 0]], np.float32), np.array([[1, 2]], np.float32))
    assert spaces.action_space(box, "X") == Box((-1.0, 0.0), (1.0, 2.0))
    found = spaces.decode_actions(box, np.array([[0.5, 2.0000002]], np.float32))
    np.testing.assert_array_equal(found, [[[0.5, 2.0]]])
    assert spaces.action_space(gymnasium.spaces.Discrete(3, start=5), "X") == Discrete(3)


@pytest.mark.parametrize(
    ("space", "part"),
    [
        (gymnasium.spaces.Box(-np.inf, np.inf, (2,)), "unbounded actions"),
        (gymnasium.spaces.MultiDiscrete([2, 2]), "agents need Discrete or Box"),
    ],
)
def test_actions_that_no_agent_can_choose_are_refused(space, part):
    with pytest.raises(ValueError, match=part):
        spaces.action_space(space, "X")


def test_observations_that_are_no_arrays_are_refused():
    with pytest.raises(ValueError, match=r"observations of Text cannot be stored"):
        spaces.structure(gymnasium.spaces.Text(5))


def test_vectors_must_say_when_they_reset():
    vector = SyncVectorEnv([HostWalk])
    vector.metadata = {}
    with pytest.raises(ValueError, match="autoreset_mode=None"):
        Stepper(vector, "Walk")


def test_stacked_observations_have_the_newest_last():
    env = environments.make("gymnasium:Pendulum-v1", frame_stack=3)
    assert env.obs.shape == (3, 3)
    steps = env.start(1, seed=0)
    first = steps.obs[0]
    np.testing.assert_array_equal(first, np.repeat(first[:, :1], 3, axis=1))
    after = steps.step(np.zeros((1, 1), np.float32)).transition.next_obs[0]
    np.testing.assert_array_equal(after[:, :2], first[:, 1:])
    assert (after[:, 2] != after[:, 1]).any()


@pytest.mark.parametrize("use_processes", [False, True])
def test_observations_of_an_own_environment_are_stacked(use_processes):
    env = environments.make("support.host_walk:make_host_walk", frame_stack=3, use_processes=use_processes)
    assert (env.obs.shape, env.max_episode_length) == ((2, 3), 5)
    steps = env.start(1, seed=0)
    np.testing.assert_array_equal(steps.step(np.array([1])).transition.next_obs[0], [[0, 0, 1], [0, 0, 1]])
    steps.close()


@pytest.mark.parametrize(
    ("shape", "is_image"),
    [((84, 84), False), ((3, 64, 64), False), ((64, 64, 3, 4), False), ((64, 64, 3), True), ((8, 8), True)],
)
def test_images_that_are_not_seen_as_images_are_told(shape, is_image):
    space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from_factory(lambda: Shown(space), "Shown")
    expected = f"Shown has observations of uint8{list(shape)}; if these are images, change them to [height, width, "
    assert [str(one.message).startswith(expected) for one in caught] == [True] * (not is_image)


@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [("Hopper-v5", "mujoco", "gymnasium"), ("ALE/Pong-v5", "ale_py", "atari"), ("ALE/Pong-v5", "cv2", "atari")],
)
def test_what_is_missing_can_be_installed(name, missing, extra, monkeypatch):
    """As in an environment without the extra, where the module is neither loaded nor found."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == missing else found(name, *more)
    )
    for module in [module for module in sys.modules if module.split(".")[0] == missing or "envs.mujoco" in module]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ValueError, match=re.escape(f"pip install 'jaxrl-buffers[{extra}]'")) as error:
        environments.make(f"gymnasium:{name}", max_episode_steps=77)  # not one that was made before
    assert "\n" not in str(error.value)


class Wrong(gymnasium.Env):
    """Returns four values, as environments did once, or observations of another shape."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, returned):
        self.returned = returned

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return self.returned


@pytest.mark.parametrize(
    "returned", [(np.zeros(3), 0.0, False, {}), (np.zeros(4), 0.0, False, False, {})], ids=["values", "shape"]
)
def test_a_wrong_step_is_explained(returned):
    steps = from_factory(lambda: Wrong(returned), "Wrong").start(2, seed=0)
    message = r"Wrong failed in `step`, which must return \(obs, reward, terminated, truncated, info\).*shape \(3,\)"
    with pytest.raises(RuntimeError, match=message) as error:
        steps.step(np.zeros(2, int))
    assert isinstance(error.value.__cause__, ValueError)


class FailsLater(Wrong):
    """Fails in the second reset."""

    num_resets = 0

    def reset(self, *, seed=None, options=None):
        self.num_resets += 1
        if self.num_resets > 1:
            raise ValueError("no level 2")
        return np.zeros(3, np.float32), {}


def test_a_reset_that_fails_later_is_explained():
    steps = from_factory(lambda: FailsLater((np.zeros(3), 0.0, True, False, {})), "Later").start(1, seed=0)
    with pytest.raises(RuntimeError, match=r"Later failed in `reset`, which must return \(obs, info\).*no level 2"):
        steps.step(np.zeros(1, int))


def test_lengths_of_episodes_are_whole_numbers():
    steps = environments.make("gymnasium:CartPole-v1").start(2, seed=0)
    finished = steps.step(np.zeros(2, int)).finished
    assert (finished.episode_length.dtype, finished.episode_return.dtype) == (np.int32, np.float32)
    steps.close()
