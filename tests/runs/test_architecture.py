"""The page on the architecture says what the code does: its names exist, and are called in the order of its lists."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jax
import pytest
from support.scripts import load_script

from algorithms.training import loop

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
NAME = r"`((?:algorithms|jaxrl_buffers)\.[\w.]+)`"
ARGUMENTS = (
    *("ddqn", "CartPole-v1", "--n-step", "3", "--sampler", "prioritized", "--averaging", "0", "--hidden-sizes", "4"),
    *("--total-steps", "48", "--start-steps", "32", "--update-every", "16", "--num-updates", "1", "--num-envs", "2"),
    *("--mini-batch-size", "4", "--test-every", "0", "--num-test-episodes", "1", "--capacity", "64"),
    *("--final-episodes", "1"),
)


def walk(title: str) -> list[str]:
    """Return the names in the numbered list below a title."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^\d+\. {NAME}", section, re.MULTILINE)


def code_of(name: str) -> CodeType:
    found = inspect.unwrap(pkgutil.resolve_name(name))
    return getattr(found, "__func__", found).__code__


@pytest.fixture(scope="module")
def calls(tmp_path_factory) -> list[CodeType]:
    """Return what a short run calls, in order."""
    script = load_script("train")
    found: list[CodeType] = []
    folders = tuple(os.fspath(ROOT / package) for package in ("algorithms", "jaxrl_buffers"))

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folders):
            found.append(frame.f_code)

    run = loop.run

    @functools.wraps(run)
    def run_traced_anew(*args: Any, **options: Any) -> Any:
        jax.clear_caches()  # parts of the program have been traced before, to find out what they return
        return run(*args, **options)

    arguments = [*ARGUMENTS, "--out", os.fspath(tmp_path_factory.mktemp("run") / "short")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "run", run_traced_anew)
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            assert script.main(arguments) == 0
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return found


def test_every_name_exists():
    names = re.findall(NAME, PAGE)
    assert len(names) > 25
    for name in names:
        pkgutil.resolve_name(name)


def layers(package: str) -> list[list[str]]:
    """Return the rows of the table of a package's layers."""
    table = PAGE.partition(f"| `{package}` |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`(\w+)`", row.partition(" | ")[0]) for row in table.splitlines()]
    return [row for row in rows if row]


@pytest.mark.parametrize("package", ["algorithms", "jaxrl_buffers"])
def test_every_layer_exists(package):
    names = [layer for row in layers(package) for layer in row]
    assert len(names) > 6
    for layer in names:
        assert importlib.util.find_spec(f"{package}.{layer}") is not None


@pytest.mark.parametrize("title", ["The walk of a transition", "The walk of a setting"])
def test_the_walk_is_called_in_its_order(title, calls):
    names = walk(title)
    assert len(names) > 10
    at = 0
    for name in names:
        assert code_of(name) in calls[at:], f"{name} is not called behind the lines above it"
        at = calls.index(code_of(name), at) + 1


def test_a_run_builds_its_components_once(calls):
    names = ("algorithms.runs.build.build", "jaxrl_buffers.ReplayBuffer.__post_init__")
    assert [calls.count(code_of(name)) for name in names] == [1, 1]


def test_one_package_knows_nothing_of_the_other():
    for path in (ROOT / "jaxrl_buffers").rglob("*.py"):
        assert not re.findall(r"^\s*(?:from|import) algorithms\b", path.read_text("utf-8"), re.MULTILINE), path


def uses(path: Path) -> set[str]:
    """Return the modules that a file imports, also those that only type checkers see."""
    nodes = [*ast.walk(ast.parse(path.read_text("utf-8")))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    given = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return names | {f"{node.module}.{alias.name}" for node in given for alias in node.names}


# The only layer that names one above it: the annotations of its protocols have the type of the ring.
FOR_ANNOTATIONS = {("types", "storage")}


@pytest.mark.parametrize("package", ["algorithms", "jaxrl_buffers"])
def test_no_layer_uses_one_above_it(package):
    table = layers(package)
    height = {layer: number for number, row in enumerate(reversed(table)) for layer in row}
    checked = 0
    for layer in height:
        folder = ROOT / package / layer
        for path in folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]:
            used = {name.split(".")[1] for name in uses(path) if name.startswith(f"{package}.")}
            above = {other for other in used & {*height} if height[other] > height[layer]}
            assert {other for other in above if (layer, other) not in FOR_ANNOTATIONS} == set(), path
            checked += len(used & {*height})
    assert checked > 30
