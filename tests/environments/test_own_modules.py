"""Modules of environments of one's own are found again where they were."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.trained import small_settings

from algorithms import environments
from algorithms.environments import custom
from algorithms.runs import own_environment
from algorithms.runs.run_folder import RunFolder
from algorithms.training.evaluation import time_limit

TEXT = "from support.walk import Walk\nimport own_sibling\ndef make_env(): return Walk()\n"


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    """Forget the modules of a test behind it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield
    forget()


def forget():
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def project(path: Path, module: str = "own_walk.py") -> Path:
    (path / module).parent.mkdir(parents=True, exist_ok=True)
    (path / module).write_text(TEXT)
    (path / "own_sibling.py").write_text("")
    return path


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("own_walk.py", "own_walk"),
        ("own_package/walk.py", "own_package.walk"),
        ("own_package/__init__.py", "own_package"),
    ],
)
@pytest.mark.parametrize("moved", ["nothing", "both", "run"])
def test_a_run_finds_its_module_from_elsewhere(module, name, moved, tmp_path, monkeypatch):
    """As a module, in a package without or with a file of its own; also after moving the run, alone or with all."""
    folder = project(tmp_path / "project", module)
    monkeypatch.chdir(folder)
    settings = small_settings(environment=f"{name}:make_env")
    RunFolder("runs/x").create(settings)
    assert own_environment.keep(settings.environment, Path("runs/x")) == {"environment_folders": ["../..", str(folder)]}
    monkeypatch.chdir(tmp_path / "here")
    forget()
    sys.path[:] = [path for path in sys.path if path != str(folder)]
    run = folder / "runs" / "x"
    if moved == "both":
        folder = folder.rename(tmp_path / "other")
        run = folder / "runs" / "x"
    elif moved == "run":
        run = run.rename(tmp_path / "alone")
    assert RunFolder(run).settings() == settings
    assert custom.home(settings.environment) == folder


def test_a_copy_is_found_beside_its_run(tmp_path, monkeypatch):
    """And not the original, which may have changed meanwhile."""
    monkeypatch.chdir(project(tmp_path / "copy"))
    run = {"environment_folders": ["../..", str(project(tmp_path / "original"))]}
    own_environment.find("own_walk:make_env", tmp_path / "copy" / "runs" / "x", run)
    environments.make("own_walk:make_env")
    assert custom.home("own_walk:make_env") == tmp_path / "copy"


def test_the_module_of_a_run_goes_before_one_in_the_working_directory(tmp_path):
    folder, _ = project(tmp_path / "project"), project(tmp_path / "here")
    own_environment.find("own_walk:make_env", folder, {"environment_folders": [str(folder)]})
    environments.make("own_walk:make_env")
    assert custom.home("own_walk:make_env") == folder


def test_a_module_that_is_gone(tmp_path, monkeypatch):
    monkeypatch.chdir(project(tmp_path / "project"))
    RunFolder("runs/x").create(small_settings(environment="own_walk:make_env"))
    monkeypatch.chdir(tmp_path / "here")
    forget()
    sys.path[:] = [path for path in sys.path if not path.startswith(str(tmp_path))]
    run = RunFolder(tmp_path / "project" / "runs" / "x")
    module = tmp_path / "project" / "own_walk.py"
    module.write_text(TEXT.replace("make_env", "make_other"))
    with pytest.raises(ValueError, match=rf"{module} has no function 'make_env'; did you mean own_walk:make_other\?$"):
        run.settings()
    forget()
    module.unlink()
    with pytest.raises(
        ValueError, match=rf"^environment 'own_walk:make_env': there is no .*was in {module.parent} when"
    ):
        run.settings()
    project(tmp_path / "here")  # where one works now
    assert run.settings().environment == "own_walk:make_env"


def test_another_module_of_that_name_is_not_taken_in_silence(tmp_path, monkeypatch):
    monkeypatch.chdir(project(tmp_path / "one"))
    environments.make("own_walk:make_env")
    run = {"environment_folders": [str(project(tmp_path / "other"))]}
    with pytest.raises(ValueError, match=rf"in {tmp_path}/other, but one in {tmp_path}/one is loaded already"):
        own_environment.find("own_walk:make_env", tmp_path, run)


def test_what_a_module_itself_lacks_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(project(tmp_path / "one"))
    (tmp_path / "one" / "own_sibling.py").unlink()
    with pytest.raises(ValueError, match=r"own_walk needs own_sibling, which is not installed\.$"):
        environments.make("own_walk:make_env")


def test_environments_of_libraries_need_no_folder(tmp_path):
    for name in ("CartPole-v1", "gymnasium:CartPole-v1", "brax:ant"):
        assert own_environment.keep(name, tmp_path) == {}
        own_environment.find(name, tmp_path, {"environment_folders": ["/nowhere"]})


def test_a_time_limit_is_found_or_asked_for_before_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_timed.py").write_text(
        "from gymnasium.wrappers import TimeLimit, TransformReward\nfrom support.host_walk import HostWalk\n"
        "def make_timed(): return TransformReward(TimeLimit(HostWalk(), 7), float)\n"
        "def make_endless(): return HostWalk()\n"
    )
    assert environments.make("own_timed:make_timed").max_episode_length == 7
    with pytest.raises(ValueError, match=r"make_endless has no known time limit.*--env\.max-episode-steps 500"):
        small_settings(environment="own_timed:make_endless")
    with pytest.raises(ValueError, match="Blackjack-v1 has no known time limit"):
        time_limit(environments.make("gymnasium:Blackjack-v1"), None)
    assert time_limit(environments.make("gymnasium:Blackjack-v1", max_episode_steps=500), None) == 500
