"""The changelog tells the truth about the version and about names that will go."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import algorithms  # noqa: F401 - so that all components are known
import jaxrl_buffers as jb
from algorithms.commands import MODULES
from algorithms.runs import old_settings
from jaxrl_buffers import _renamed as renamed
from jaxrl_buffers.component import Component

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
SOURCES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for package in ("algorithms", "jaxrl_buffers")
    for path in (ROOT / package).rglob("*.py")
}
WARNING = re.compile(r"warnings\.warn\([^\n]*(?:Deprecation|Future)Warning")
TOLD = re.compile(r"`(\w+)` of ([A-Za-z_ ]+(?:\(\))?) (?:is now called|will be removed)")  # by those that say it whole
BY_TABLE = {  # whose names are in tables, which `in_tables` reads
    "jaxrl_buffers/_renamed.py",
    "jaxrl_buffers/component.py",
    "algorithms/runs/old_settings.py",
}


def components(base: type[Component] = Component) -> list[type[Component]]:
    return [kind for one in base.__subclasses__() for kind in (one, *components(one))]


def in_tables() -> dict[str, str]:
    """Return old names and new ones, from the tables of those that warn of several."""
    found = dict(renamed.SAMPLERS)
    for kind in components():
        if kind.__module__.startswith(("algorithms.", "jaxrl_buffers.")):
            found |= {f"{old} of {kind.__name__}": new for old, new in kind.renamed.items()}
    found |= {f"{old} in settings": new for old, new in old_settings.RENAMED.items()}
    return found | {"buffer in settings": "sampler"}


def deprecated() -> dict[str, str]:
    """Return the changelog's old names and the new ones, without punctuation."""
    table = CHANGELOG.partition("### Deprecated")[2].partition("|---|---|\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([^|,]+?)(?:, [^|]*)? \| `(\w+)`[^|]* \|$", table, re.MULTILINE)
    assert len(rows) == len(table.splitlines())
    return {old.replace("`", ""): new for old, new in rows}


def test_all_old_names_are_listed_and_no_others():
    told = {f"{old} of {where}" for text in SOURCES.values() for old, where in TOLD.findall(text)}
    assert {*deprecated()} == {*in_tables(), *told}


def test_the_new_names_are_right():
    listed = deprecated()
    assert {old: listed[old] for old in in_tables()} == in_tables()
    for text in SOURCES.values():
        for old, where, new in re.findall(r"`(\w+)` of ([A-Za-z_ ]+(?:\(\))?) is now called `(\w+)`", text):
            assert listed[f"{old} of {where}"] == new


def test_every_warning_is_known():
    """A new one either says the old name whole, or belongs to a table that is read here."""
    warning = {name for name, text in SOURCES.items() if WARNING.search(text)}
    assert len(warning) >= 7
    assert warning == {name for name, text in SOURCES.items() if TOLD.search(text)} | BY_TABLE


def test_every_warning_says_when_the_old_name_goes():
    version = int(re.search(r"go with version (\d+)\.", CHANGELOG)[1])
    assert version > int(jb.__version__.split(".")[0])
    for name, text in SOURCES.items():
        if WARNING.search(text):
            assert f"removed in version {version}" in text, name


def test_one_version_everywhere():
    newest = re.search(r"^## (\S+)", CHANGELOG, re.MULTILINE)[1]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"]
    assert {PROJECT["version"], newest, cited, jb.__version__} == {PROJECT["version"]}


def test_commands_ask_for_what_the_extra_brings():
    brought = {re.match(r"[\w-]+", one)[0] for one in PROJECT["optional-dependencies"]["train"]}
    assert {*MODULES} == brought


def test_the_same_pythons_everywhere():
    marks = [re.search(r":: (3\.\d+)$", one) for one in PROJECT["classifiers"]]
    versions = [mark[1] for mark in marks if mark]
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert f"on Python {', '.join(versions[:-1])} and {versions[-1]}." in CHANGELOG
    for page in ("README.md", "CONTRIBUTING.md", "docs/start.md"):
        assert f"Python {versions[0]} or newer" in (ROOT / page).read_text("utf-8")


def test_the_forms_of_issues():
    forms = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / ".github").rglob("*.yml")}
    if not forms:
        pytest.skip("the source distribution has none")
    for form in (forms["bug"], forms["feature"], forms["question"]):
        assert form["name"]
        assert form["description"]
        names = [part["id"] for part in form["body"]]
        assert len({*names}) == len(names)
    versions = next(part for part in forms["bug"]["body"] if part["id"] == "versions")["attributes"]["description"]
    code = re.fullmatch(r"python -c '(.*)'", versions)[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{jb.__version__}\njax: ")


def test_the_citation_is_complete():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert {"cff-version", "message", "title", "authors", "license", "version"} <= {*cited}
    assert cited["license"] == PROJECT["license"]


def test_no_pickle_is_read():
    """As SECURITY.md says of checkpoints and data sets: they could run any code."""
    reading = re.compile(r"\bpickle\.loads?\(|allow_pickle=True|\bimport (dill|joblib|shelve)\b")
    assert [name for name, text in SOURCES.items() if reading.search(text)] == []
