"""One name space of environments, and errors of one line."""

from __future__ import annotations

import sys

import gymnasium
import pytest
from support.walk import Walk

from algorithms import environments
from algorithms.environments import _gymnasium_making as making
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
    with pytest.raises(ValueError, match=r"given {'limit': 7, 'size': 2}: got an unexpected keyword argument 'size'"):
        environments.make("own_cart:make", limit=7, size=2)


def test_a_function_of_the_number_makes_a_vector(module):
    module("own_vector", "import gymnasium\ndef make(num_envs): return gymnasium.make_vec('CartPole-v1', num_envs)")
    steps = environments.make("own_vector:make").start(3, seed=0)
    assert steps.obs.shape == (3, 4)
    module("own_one", "import gymnasium\ndef make(num_envs): return gymnasium.make('CartPole-v1')")
    with pytest.raises(ValueError, match="must make a VectorEnv"):
        environments.make("own_one:make")


def test_a_function_is_called_once_and_gets_what_it_takes(module):
    """The environment that shows the spaces is not made twice; a function of any options gets the render mode."""
    module(
        "own_open",
        "import gymnasium\nasked = []\ndef make(**options):\n    asked.append(options)\n"
        "    return gymnasium.make('CartPole-v1', **options)\n",
    )
    env = custom.make("own_open:make", use_processes=True)
    asked = sys.modules["own_open"].asked
    assert asked == [{}]
    assert env.make_tests is not None  # evaluations stay in this process
    env.start_tests(1, seed=0, render_mode="rgb_array").close()
    assert asked[1:] == [{"render_mode": "rgb_array"}]


def test_options_reach_environments_in_processes(monkeypatch):
    made = []
    monkeypatch.setattr("algorithms.environments.gymnasium.AsyncVectorEnv", lambda makers, **_: made.extend(makers))
    env = environments.make("gymnasium:CartPole-v1", use_processes=True)
    env.make_vector(3, max_episode_steps=7)
    assert len(made) == 3
    assert made[0]().spec.max_episode_steps == 7


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("own_gone:make_env", "there is no module 'own_gone'; run from the folder"),
        ("own_thing:make_nothing", "has no function 'make_nothing'"),
        ("own_thing:make_env", "returned 3; it must return an environment in the interface of gymnax, Brax or"),
        ("own_thing:make_sized", "function was given no options: missing a required argument: 'size'; give it options"),
        ("own_thing:NUMBER", "has no function 'NUMBER'"),
        ("gymnasium:Nothing-v0", "gymnasium:Nothing-v0: "),
        ("gymnasium:HalfCheetah-v999", "v999"),
        ("CartPole-v7", "did you mean CartPole-v1"),
        ("HalfCheetah-v5", r"did you mean gymnasium:HalfCheetah-v5\?$"),
        ("ALE/Pong-v5", r"did you mean gymnasium:ALE/Pong-v5\?$"),
        ("xyzw", "gymnasium:NAME or brax:NAME or my_module:function"),
        ("gym:HalfCheetah-v5", r"no module 'gym'; did you mean gymnasium:HalfCheetah-v5\?$"),
        ("own_thing.py:make_env", r"did you mean own_thing:make_env\?$"),
        ("own_thing:make_envs", r"has no function 'make_envs'; did you mean own_thing:make_env\?$"),
        ("own_thing:CartPole-v1", r"has no function 'CartPole-v1'; did you mean gymnasium:CartPole-v1\?$"),
        ("gymnasium:HalfCheetah-v3", "moved to the gymnasium-robotics project .*; use gymnasium:HalfCheetah-v5"),
        ("gymnasium:Humanoid-v2", "moved to the gymnasium-robotics project .*; use gymnasium:Humanoid-v5"),
        ("gymnasium:", "environment 'gymnasium:' has no name; give one, such as"),
        ("gymnasium:HalfCheeta-v5", r"Did you mean: `HalfCheetah`\?$"),
    ],
)
def test_bad_names_are_refused_in_one_line(name, part, module):
    module("own_thing", "NUMBER = 3\ndef make_env(): return 3\ndef make_sized(size): return 3\n")
    with pytest.raises(ValueError, match=part) as error:
        environments.make(name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["Pong-v5", "Pong", "PongNoFrameskip-v4", "PongDeterministic-v4"])
def test_old_names_of_atari_lead_to_the_new_one(name, monkeypatch):
    pytest.importorskip("ale_py", reason="needs the extra `atari`")

    def fail(name, **options):  # as before ale_py has registered its games
        raise gymnasium.error.NameNotFound("Environment `Pong` doesn't exist.")

    monkeypatch.setattr(making, "make", fail)
    with pytest.raises(ValueError, match=r"did you mean gymnasium:ALE/Pong-v5\?$"):
        environments.make(f"gymnasium:{name}")


def test_what_gymnasium_lacks_is_named_once(monkeypatch):
    """The extra of this library brings MuJoCo, and nothing for other environments."""

    def fail(name, **options):
        raise gymnasium.error.DependencyNotInstalled(f"{lacking} is not installed")

    monkeypatch.setattr(making, "make", fail)
    lacking = "Box2D"
    with pytest.raises(ValueError, match=r"gymnasium:CarRacing-v3: Box2D is not installed\.$"):
        environments.make("gymnasium:CarRacing-v3")
    lacking = "MuJoCo"
    with pytest.raises(ValueError, match=r"MuJoCo is not installed; pip install 'jaxrl-buffers\[gymnasium\]'\.$"):
        environments.make("gymnasium:HalfCheetah-v4")


def test_a_name_without_a_version_is_as_quiet_as_with_one(monkeypatch):
    quiet = []
    monkeypatch.setattr(making, "_quiet_mujoco", lambda: quiet.append(True))
    monkeypatch.setattr(gymnasium, "make", lambda name, **options: name)
    for name, is_quiet in {
        "HalfCheetah": True,
        "HalfCheetah-v5": True,
        "CartPole": False,
        "CartPole-v1": False,
    }.items():
        making.make(name)
        assert bool(quiet) == is_quiet
        quiet.clear()


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "brax", None)
    monkeypatch.delitem(sys.modules, "algorithms.environments.brax", raising=False)
    with pytest.raises(ValueError, match=r"pip install 'jaxrl-buffers\[brax\]'"):
        environments.make("brax:ant")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'jaxrl-buffers\[atari\]'"):
        environments.make("gymnasium:ALE/Pong-v5", frame_skip=7)  # as nobody else made it, so it is not kept


def test_options_that_do_not_fit_are_refused(module):
    module("own_walk", "from support.host_walk import make_host_walk\n")
    for name in ("gymnasium:CartPole-v1", "own_walk:make_host_walk"):
        with pytest.raises(ValueError, match="are stored as they come"):
            environments.make(name, obs_dtype="uint8")
    with pytest.raises(ValueError, match="is not an Atari game"):
        environments.make("gymnasium:CartPole-v1", frame_skip=4)


def test_environments_that_are_ready_stay_as_they_are(monkeypatch):
    env = environments.wrap(Walk())
    monkeypatch.setitem(sys.modules, "own_ready", type(sys)("own_ready"))
    sys.modules["own_ready"].make_env = lambda: env
    assert custom.make("own_ready:make_env") is env
