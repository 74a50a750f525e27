"""The wheel and the source distribution hold what users need. The wheel works where there is no checkout."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.extras import PROGRAMS
from support.installed import Installed, link_needed

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NOT_PUBLISHED = (".ci/", ".github/")
MISSING = [name for name in ("build", "hatchling") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{MISSING} of the extra `test` is not installed")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of both files. The wheel is made from the source distribution."""
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    return built / f"jaxrl_buffers-{PROJECT['version']}-py3-none-any.whl"


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The wheel with its extra `train`, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    needed = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["train"]]
    return Installed(folder / "environment", wheel, link_needed(folder / "packages", needed))


def tracked() -> list[str]:
    """Return the files of the checkout, but for those that are ignored."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip("this is no checkout")
    return [name for name in done.stdout.splitlines() if (ROOT / name).exists()]


def test_the_wheel_holds_both_packages_whole(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == {name for name in tracked() if name.startswith(("algorithms/", "jaxrl_buffers/"))}
    kinds = {Path(name).suffix or Path(name).name for name in held}
    assert {".py", ".yaml", ".css", ".typed"} == kinds


def test_the_source_distribution_holds_what_the_tests_read(built):
    with tarfile.open(built / f"jaxrl_buffers-{PROJECT['version']}.tar.gz") as file:
        held = {name.partition("/")[2] for name in file.getnames()}
    assert held - {"PKG-INFO"} == {name for name in tracked() if not name.startswith(NOT_PUBLISHED)}


def test_what_is_imported_is_the_wheel(installed):
    code, out, errors = installed.run(
        "-c", "import algorithms, jaxrl_buffers as jb; print(algorithms.__file__, jb.__file__, jb.__version__)"
    )
    assert (code, errors) == (0, "")
    *files, version = out.split()
    assert all(Path(file).is_relative_to(installed.folder) for file in files)
    assert version == PROJECT["version"]


def test_the_commands_of_the_wheel(installed):
    small = "--total-steps 2000 --hidden-sizes 8 --num-test-episodes 5 --final-episodes 5 --out run"
    told = {}
    for line in (f"train ddqn CartPole-v1 {small}", "evaluate run --episodes 5", "plot run", "compare run"):
        code, out, errors = installed.run("-m", "algorithms", *line.split())
        assert code == 0, errors
        told[line.split()[0]] = out
    assert "ddqn on CartPole-v1" in told["train"]
    assert "5 episodes" in told["evaluate"]
    assert told["plot"].splitlines() == ["run/curve.png", "run/priorities.png", "run/ages.png"]
    assert told["compare"].endswith("compare.html\n")


@pytest.fixture(scope="module")
def with_one_extra(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("extras")
    return Installed(folder / "environment", wheel, link_needed(folder / "core", PROJECT["dependencies"]))


@pytest.mark.parametrize("extra", PROGRAMS)
def test_an_extra_brings_all_that_it_is_for(with_one_extra, extra, tmp_path):
    """Beside it there is only what the package itself needs."""
    needed = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]
    with_one_extra.use(link_needed(tmp_path / "packages", needed))
    program, printed = PROGRAMS[extra]
    code, out, errors = with_one_extra.run("-c", program)
    assert code == 0, errors
    assert out == f"{printed}\n"


def test_every_extra_is_tested():
    """`train` by the commands of the wheel, `docs` by the site; `test` and `peers` are for development."""
    assert {*PROJECT["optional-dependencies"]} == {*PROGRAMS, "train", "docs", "test", "peers"}


def test_every_extra_is_explained():
    table = (ROOT / "docs" / "start.md").read_text("utf-8").partition("| extra | for |")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", "".join(row.split("|")[1:2]))]
    assert sorted(named) == sorted(PROJECT["optional-dependencies"])


def test_pip_finds_all_that_the_wheel_asks_for(wheel, tmp_path):
    """As for a user with an empty environment: the newest versions that fit together, without installing them."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if subprocess.run([*pip, "index", "versions", "six"], capture_output=True, timeout=60).returncode:
        pytest.skip("there is no index of packages")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"], check=True)
    options = ("install", "--dry-run", "--quiet", "--only-binary=:all:", "--report", tmp_path / "report.json")
    command = [*pip, "--python", tmp_path / "empty" / "bin" / "python", *options, f"{wheel}[train]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "report.json").read_text())["install"]
    versions = {one["metadata"]["name"].lower(): one["metadata"]["version"] for one in found}
    assert versions["jaxrl-buffers"] == PROJECT["version"]
    asked = [Requirement(one) for one in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["train"])]
    assert len(asked) >= 12
    assert all(one.specifier.contains(versions[one.name.lower()]) for one in asked)


def test_without_an_extra(wheel, tmp_path):
    """Buffers need none. Commands say which one they need."""
    packages = link_needed(tmp_path / "packages", PROJECT["dependencies"], without=["matplotlib"])
    core = Installed(tmp_path / "environment", wheel, packages)
    work = "import jaxrl_buffers as jb; jb.checkpoint, jb.from_config; print(jb.prioritized(8).length)"
    assert core.run("-c", work) == (0, "8\n", "")
    told = "python -m algorithms train: matplotlib is not installed; use: pip install 'jaxrl-buffers[train]'\n"
    assert core.run("-m", "algorithms", "train", "ddqn", "CartPole-v1") == (2, "", told)
