"""Films of policies show their episodes, without a window."""

from __future__ import annotations

import ctypes.util
import gc
import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from support.host_walk import HostWalk, make_host_walk
from support.scripts import load_script
from support.trained import agent_states, save_agent, small_settings, untrained
from support.walk import Walk

from algorithms import SAC, Policy, environments
from algorithms.environments import custom, drawing
from algorithms.environments.gymnasium import from_factory
from algorithms.runs import film

pytest.importorskip("pygame")
image = pytest.importorskip("PIL.Image")
ffmpeg = pytest.importorskip("imageio_ffmpeg")

HAS_OPENGL = any(map(ctypes.util.find_library, ("EGL", "OSMesa")))


def pictures(path: Path) -> list[np.ndarray]:
    """Return what a film shows."""
    if path.suffix == ".gif":
        with image.open(path) as opened:
            shown = []
            for number in range(opened.n_frames):
                opened.seek(number)
                shown.append(np.asarray(opened.convert("RGB")))
            return shown
    command = [ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    shown = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    return [*np.frombuffer(shown, np.uint8).reshape(-1, 400, 600, 3)]


def assert_moves(shown: list[np.ndarray]) -> None:
    """Pictures are not blank, and the last one is not the first."""
    assert all(picture.std() > 1 for picture in shown)
    assert np.abs(shown[0].astype(int) - shown[-1]).max() > 50


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # of the reader in this test
@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_a_film_shows_the_episode_that_is_evaluated(suffix, tmp_path):
    policy, path = untrained(environments.make("CartPole-v1")), tmp_path / f"film{suffix}"
    filmed, played = policy.film(path, key=3), policy.evaluate(1, key=3)
    assert filmed == (played.lengths[0], played.returns[0])
    shown = pictures(path)
    assert shown[0].shape == (400, 600, 3)
    assert_moves(shown)
    if suffix == ".mp4":
        assert len(shown) == filmed.length
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_film_is_no_faster_than_viewers(tmp_path, monkeypatch):
    monkeypatch.setitem(film.MOST_FPS, ".gif", 5)
    untrained(environments.make("CartPole-v1")).film(tmp_path / "film.gif", max_steps=2)
    duration = 0  # equal pictures are one, which is shown for longer
    with image.open(tmp_path / "film.gif") as opened:
        for number in range(opened.n_frames):
            opened.seek(number)
            duration += opened.info["duration"]
    assert duration == 2 * 1_000 / 5


@pytest.mark.parametrize("name", ["Pendulum-v1", "MaskedCartPole-v1", "Breakout-MinAtar", "Catch-bsuite"])
def test_drawings_of_gymnax(name, tmp_path):
    env = environments.make(name)
    policy = untrained(env) if name != "Pendulum-v1" else acting_in_box(env)
    filmed = policy.film(tmp_path / "film.gif", max_steps=5)
    assert filmed.length == 5
    assert filmed.episode_return is None
    assert_moves(pictures(tmp_path / "film.gif"))


def acting_in_box(env):
    agent = SAC(env.action_space)
    return Policy(agent, agent.init(jax.random.key(0), env.obs, env.action_space.example), env)


def test_pictures_of_gymnasium(tmp_path):
    policy = untrained(environments.make("gymnasium:CartPole-v1"))
    filmed, played = policy.film(tmp_path / "film.gif", key=3), policy.evaluate(1, key=3)
    assert filmed == (played.lengths[0], played.returns[0])
    assert_moves(pictures(tmp_path / "film.gif"))


@pytest.fixture
def no_display(monkeypatch):
    for variable in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.setenv(variable, "")  # and so what is chosen meanwhile is forgotten behind the test
    if not HAS_OPENGL:
        pytest.skip("there is no OpenGL; see the next test")


def test_pictures_of_mujoco(no_display, tmp_path):
    pytest.importorskip("mujoco")
    acting_in_box(environments.make("gymnasium:HalfCheetah-v5")).film(tmp_path / "film.gif", max_steps=2)
    assert all(picture.std() > 1 for picture in pictures(tmp_path / "film.gif"))


@pytest.mark.filterwarnings("ignore:Accessing:DeprecationWarning")  # of Brax
def test_pictures_of_brax(no_display):
    pytest.importorskip("brax")
    env = environments.make("brax:inverted_pendulum")
    draw, fps = drawing.drawer(env)
    states = jax.jit(lambda key: env.reset(key, 2).inner)(jax.random.key(0))
    one, other = (draw(jax.tree.map(lambda leaf, index=index: leaf[index], states)) for index in (0, 1))
    assert (one.shape, one.dtype, fps) == ((240, 320, 3), np.uint8, 25)
    assert_moves([one, other])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of Gymnasium, on forgetting the viewer
def test_a_lack_of_opengl_is_explained(tmp_path, monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.setenv("MUJOCO_GL", "nothing")
    policy = acting_in_box(environments.make("gymnasium:HalfCheetah-v5"))
    with pytest.raises(ValueError, match=r"OpenGL does not work .*apt-get install libegl1") as error:
        policy.film(tmp_path / "film.gif", max_steps=2)
    assert "\n" not in str(error.value)
    assert not [*tmp_path.iterdir()]
    del error, policy
    gc.collect()  # here, where warnings of that are ignored


class DrawnWalk(Walk):
    """Draws where it is."""

    picture = staticmethod(lambda place: np.full((4, 6, 3), 10 * int(place) + 60, np.uint8))

    def render(self, state, params):
        return self.picture(state.place)


def test_an_environment_of_ones_own_draws_itself(tmp_path):
    walk = DrawnWalk()
    untrained(environments.wrap(walk)).film(tmp_path / "film.gif")
    assert pictures(tmp_path / "film.gif")[0].shape == (4, 6, 3)
    walk.picture = lambda place: np.zeros((4, 6))
    with pytest.raises(ValueError, match=r"returned float64\[4, 6\]; a picture is uint8\[H, W, 3\]"):
        untrained(environments.wrap(walk)).film(tmp_path / "other.gif")
    assert not (tmp_path / "other.gif").exists()
    with pytest.raises(ValueError, match=r"has no method `render\(state, params\)`"):
        untrained(environments.wrap(Walk())).film(tmp_path / "other.gif")


class DrawnHostWalk(HostWalk):
    """Draws where it is, if it is asked to."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def render(self):
        return np.full((4, 6, 3), 60 + 10 * self.place, np.uint8)


def test_a_function_of_ones_own_is_told_to_draw(tmp_path, monkeypatch):
    module = type(sys)("own_drawn")
    module.make_drawn = lambda render_mode=None: gymnasium.wrappers.TimeLimit(DrawnHostWalk(render_mode), 5)
    module.make_plain = lambda: gymnasium.wrappers.TimeLimit(DrawnHostWalk(), 5)
    monkeypatch.setitem(sys.modules, "own_drawn", module)
    untrained(custom.make("own_drawn:make_drawn")).film(tmp_path / "film.gif", max_steps=3)
    assert pictures(tmp_path / "film.gif")[0].shape == (4, 6, 3)
    for env in (custom.make("own_drawn:make_plain"), from_factory(lambda render_mode=None: make_host_walk(), "Walk")):
        with pytest.raises(ValueError, match="must take `render_mode` and hand it on"):
            untrained(env).film(tmp_path / "other.gif", max_steps=3)


def test_missing_extras_are_named(tmp_path, monkeypatch):
    policy = untrained(environments.make("CartPole-v1"))
    for missing, suffix in (("imageio_ffmpeg", ".mp4"), ("PIL", ".gif"), ("pygame", ".gif")):
        for module in (film, drawing):
            find = lambda name, missing=missing: None if name == missing else True  # noqa: E731
            monkeypatch.setattr(module.importlib.util, "find_spec", find)
        with pytest.raises(
            ValueError, match=rf"{missing}, which is not installed: pip install 'jaxrl-buffers\[video\]'"
        ):
            policy.film(tmp_path / f"film{suffix}")


def test_the_script_films_the_first_seed(tmp_path, capsys, monkeypatch):
    settings = small_settings(num_seeds=2)
    save_agent(tmp_path / "run", settings, agent_states(settings))
    monkeypatch.chdir(tmp_path)
    assert load_script("evaluate").main(["run", "--episodes", "1", "--render", "film.gif", "--json"]) == 0
    told = capsys.readouterr().err
    assert told.startswith("film.gif: seed 0, ")
    assert_moves(pictures(tmp_path / "film.gif"))


def test_nothing_is_left_in_the_environment_of_the_process(tmp_path, monkeypatch):
    monkeypatch.setenv("SDL_AUDIODRIVER", "mine")
    monkeypatch.delenv("PYGAME_HIDE_SUPPORT_PROMPT", raising=False)
    before = dict(os.environ)
    untrained(environments.make("CartPole-v1")).film(tmp_path / "film.gif", max_steps=1)
    assert dict(os.environ) == before
