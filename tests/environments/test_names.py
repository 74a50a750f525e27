"""One name space of environments, and errors of one line."""

from __future__ import annotations

import sys

import pytest
from support.walk import Walk

from algorithms import environments
from algorithms.environments import custom
from algorithms.environments.gymnasium import HostEnvironment


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that writes a module into the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)

    yield write
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def test_a_function_in_the_working_directory(module):
    module("own_walk", "from support.host_walk import *\nfrom support.walk import Walk\nmake_env = lambda: Walk()\n")
    env = environments.make("own_walk:make_env")
    assert (env.name, env.max_episode_length) == ("own_walk:make_env", 5)
    assert isinstance(env.env, Walk)
    env = environments.make("own_walk:make_host_walk")
    assert isinstance(env, HostEnvironment)
    assert (env.name, env.max_episode_length) == ("own_walk:make_host_walk", 5)


def test_a_function_gets_options(module):
    module(
        "own_cart", "import gymnasium\ndef make(limit): return gymnasium.make('CartPole-v1', max_episode_steps=limit)"
    )
    assert environments.make("own_cart:make", limit=7).max_episode_length == 7


def test_a_function_of_the_number_makes_a_vector(module):
    module("own_vector", "import gymnasium\ndef make(num_envs): return gymnasium.make_vec('CartPole-v1', num_envs)")
    steps = environments.make("own_vector:make").start(3, seed=0)
    assert steps.obs.shape == (3, 4)
    module("own_one", "import gymnasium\ndef make(num_envs): return gymnasium.make('CartPole-v1')")
    with pytest.raises(ValueError, match="must make a VectorEnv"):
        environments.make("own_one:make")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("own_gone:make_env", "there is no module 'own_gone'; run from the folder"),
        ("own_thing:make_nothing", "has no function 'make_nothing'"),
        ("own_thing:make_env", "returned 3; it must return an environment in the interface of gymnax, Brax or"),
        ("own_thing:NUMBER", "has no function 'NUMBER'"),
        ("gymnasium:Nothing-v0", "gymnasium:Nothing-v0: "),
        ("gymnasium:HalfCheetah-v999", "v999"),
        ("CartPole-v7", "did you mean CartPole-v1"),
    ],
)
def test_bad_names_are_refused_in_one_line(name, part, module):
    module("own_thing", "NUMBER = 3\ndef make_env(): return 3\n")
    with pytest.raises(ValueError, match=part) as error:
        environments.make(name)
    assert "\n" not in str(error.value)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "brax", None)
    monkeypatch.delitem(sys.modules, "algorithms.environments.brax", raising=False)
    with pytest.raises(ValueError, match=r"pip install 'jaxrl-buffers\[brax\]'"):
        environments.make("brax:ant")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'jaxrl-buffers\[atari\]'"):
        environments.make("gymnasium:ALE/Pong-v5")


def test_options_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="are stored as they come"):
        environments.make("gymnasium:CartPole-v1", obs_dtype="uint8")
    with pytest.raises(ValueError, match="is not an Atari game"):
        environments.make("gymnasium:CartPole-v1", frame_skip=4)


def test_environments_that_are_ready_stay_as_they_are(monkeypatch):
    env = environments.wrap(Walk())
    monkeypatch.setitem(sys.modules, "own_ready", type(sys)("own_ready"))
    sys.modules["own_ready"].make_env = lambda: env
    assert custom.make("own_ready:make_env") is env
