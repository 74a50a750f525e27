"""The pages of the documentation say what is true: their code runs, and what they name exists."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import subprocess
import sys

import jax
import pytest
import yaml
from support.agents import AGENTS, OBS, sample
from support.guides import ROOT
from support.pages import BLOCK, DOCS, OTHERS, PAGES
from support.scripts import load_script

import jaxrl_buffers as jb

# Guides whose code is run by tests of their own, which write files, start processes or need more packages.
OTHER_TESTS = [path.read_text("utf-8") for path in (ROOT / "tests").glob("*/test_*.py") if path.parent.name != "docs"]
FOLLOWS_GUIDES = re.compile(r"from support\.guides import|^class Guide:", re.MULTILINE)
ELSEWHERE = {
    guide.stem
    for guide in (DOCS / "guides").glob("*.md")
    if any(f'"{guide.stem}"' in text and FOLLOWS_GUIDES.search(text) for text in OTHER_TESTS)
}
WITH_CODE = [name for name, text in PAGES.items() if "```python" in text and DOCS.joinpath(name).stem not in ELSEWHERE]
ON_TWO_DEVICES = [page for page in WITH_CODE if "JAX_NUM_CPU_DEVICES=2" in PAGES[page]]


def test_only_few_guides_have_tests_of_their_own():
    assert {"gymnasium", "logs", "policies"} <= ELSEWHERE
    assert not {"own_loop", "priorities", "n_steps", "memories", "hindsight", "frames", "checks"} & ELSEWHERE


@pytest.mark.parametrize("page", ON_TWO_DEVICES)
def test_code_runs_on_two_devices(page):
    """In a process of its own, because the number of devices is fixed when JAX begins."""
    found = BLOCK.findall(PAGES[page])
    code = "".join(text for language, _, _, text in found if language == "python")
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "2", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(text for language, _, mark, text in found if language == "text" and not mark)


@pytest.mark.parametrize("page", [page for page in WITH_CODE if page not in ON_TWO_DEVICES])
def test_code_runs(page, tmp_path, monkeypatch):
    """One block after the other. What is written below a block is what it prints."""
    monkeypatch.chdir(tmp_path)
    names, printed = {}, ""
    for language, title, mark, text in BLOCK.findall(PAGES[page]):
        if language == "text" and mark != "example":
            assert printed == text
        elif language == "python" and title not in OTHERS:  # see test_other_libraries.py
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(text, page, "exec"), names)
            printed = output.getvalue()


def test_every_block_is_understood():
    """A block with another beginning would not be found by the tests."""
    for name, text in PAGES.items():
        fences = re.findall(r"^ *```", text, re.MULTILINE)
        assert len(fences) == 2 * len(re.findall(r"^```\w+(?: [^\n]+)?\n.*?^```$", text, re.MULTILINE | re.DOTALL)), (
            name
        )


def test_code_is_not_cut_off():
    """On a screen of usual width, also where two blocks stand side by side."""
    for name, text in (PAGES | {"README.md": (ROOT / "README.md").read_text("utf-8")}).items():
        for language, title, _, code in BLOCK.findall(text):
            longest = max(code.splitlines(), key=len)
            assert language == "text" or len(longest) <= (72 if title in {"here", *OTHERS} else 100), (name, longest)


@pytest.mark.parametrize("name", sorted({agent.split("_")[0] for agent in AGENTS}))
def test_every_algorithm_tells_its_equations_and_differences(name):
    source = (ROOT / "algorithms" / "agents" / f"{name}.py").read_text("utf-8")
    text = ast.get_docstring(ast.parse(source))
    assert re.search(r"^    \w+ +(=|~) ", text, re.MULTILINE)
    assert "https://arxiv.org/abs/" in text
    assert re.search(r"^Differences from the papers?:\n\n\* ", text, re.MULTILINE)
    assert re.search(r"^Differences from PyTorchRL:\n\n\* ", text, re.MULTILINE)
    page = PAGES[f"algorithms/{name}.md"]
    assert f"::: algorithms.agents.{name}\n" in page
    assert f"<!-- results of {name} -->" in page
    assert "## Pseudo-code" in page


@pytest.mark.parametrize("page", PAGES)
def test_names_exist(page):
    for name in re.findall(r"`jb\.([A-Za-z_][\w.]*)", PAGES[page]):
        found = jb
        for part in name.rstrip(".").split("."):
            found = getattr(found, part)


@pytest.mark.parametrize("agent", AGENTS)
def test_every_metric_of_an_agent_is_explained(agent):
    """The table of metrics on its page has those that it reports, and no others."""
    one = AGENTS[agent]()
    state = jax.eval_shape(lambda: one.init(jax.random.key(0), OBS, one.action_space.example))
    batch = jax.eval_shape(lambda: sample(one, jax.random.key(0)))
    reported = jax.eval_shape(one.gradients, state, batch, jax.eval_shape(lambda: jax.random.key(0)))[1].metrics
    table = PAGES[f"algorithms/{agent.split('_')[0]}.md"].partition("| metric |")[2].partition("\n\n")[0]
    explained = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.partition(" | ")[0])}
    of_continuous = {"multiplier_variance", "kl_variance"} if agent.endswith("_discrete") else set()
    assert explained - of_continuous == set(reported)


def test_every_task_and_library_has_a_page():
    guides = "own_loop priorities n_steps memories hindsight frames offline_data gymnasium own_environment own_parts"
    guides += " own_agent sweeps checkpoints logs many_devices accelerators checks from_pytorchrl"
    wanted = {f"guides/{name}" for name in guides.split()}
    wanted |= {f"algorithms/{name}" for name in ("index", *{agent.split("_")[0] for agent in AGENTS})}
    wanted |= {f"migration/{name}" for name in ("alf", "l2r", "flashbax", "stable_baselines3")}
    wanted |= {"start", "concepts", "why", "guarantees", "benchmarks", "architecture"}
    assert {f"{name}.md" for name in wanted} <= {*PAGES}


def test_every_page_is_in_the_navigation():
    def pages(tree):
        if isinstance(tree, str):
            return [tree]
        return [page for part in (tree.values() if isinstance(tree, dict) else tree) for page in pages(part)]

    navigation = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert len(navigation) == len(set(navigation))
    assert set(navigation) - set(PAGES) == {
        "changes.md",
        "results/tables.md",
        "tests.md",
        "notebooks/quickstart.md",
        "notebooks/replay_by_pictures.md",
        "notebooks/sweep.md",
    }  # made by scripts/docs_hooks.py
    others = set(PAGES) - set(navigation)
    assert all(page.startswith("guides/") for page in others)  # scripts/docs_hooks.py adds them


def test_every_guarantee_has_a_test():
    text = PAGES["guarantees.md"].partition("## What is not guaranteed")[0]
    lines = re.findall(r"^- .*?(?=\n- |\n\n)", text, re.MULTILINE | re.DOTALL)
    assert len(lines) > 40
    for line in lines:
        path, name = re.search(r"\[test\]\(\.\./(tests/[\w/]+\.py)#(test_\w+)\)$", line).groups()
        functions = [node.name for node in ast.parse((ROOT / path).read_text("utf-8")).body if hasattr(node, "name")]
        assert name in functions, line


def test_drawings_are_those_of_the_script():
    script = load_script("draw_concepts")
    assert {path.stem for path in (DOCS / "pictures").glob("*.svg")} == set(script.DRAWINGS)
    for name, draw in script.DRAWINGS.items():
        assert (DOCS / "pictures" / f"{name}.svg").read_text("utf-8") == draw()


def test_files_that_contributing_names_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    paths = re.findall(r"`((?:docs|tests|scripts|algorithms|jaxrl_buffers)/[\w/.]*)`", text)
    assert len(paths) > 15
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    for path in paths:
        assert (ROOT / path).exists(), path
    assert {*re.findall(r"`(test_\w+\.py)`", text)} <= tests
    assert len(re.findall(r"^ *- \[x\] ", text, re.MULTILINE)) == text.count("- [x]") > 10


def test_versions_agree():
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert jb.__version__ == version
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], str(citation["date-released"])[:2]) == (version, "20")
    assert f"jaxrl_buffers-{version}-py3" in PAGES["start.md"]


def test_figures_are_those_of_the_benchmarks():
    """Pages that sum up tables of the benchmarks have their smallest and their largest ratio."""
    tables = PAGES["benchmarks.md"]
    buffers = tables.partition("## Buffers, beside flashbax")[2].partition("\n\n## ")[0]
    ratios = [float(one) for one in re.findall(r"\| ([\d.]+) \[", buffers)]
    in_jax, on_host = (
        [float(one) for one in re.findall(r"([\d.]+)x(?= \|)", part)]
        for part in tables.partition("## Training, beside SBX")[2].partition("\n\n## ")[0].split("Gymnasium's own")
    )
    assert len(ratios) >= 7
    assert len(in_jax) == 10
    (slowest,) = re.findall(r"an update alone ([\d.]+) \[", buffers)
    told = f"take {min(ratios)} to {max(ratios)} of the time on one day; an update alone took {slowest} times as long"
    assert told in PAGES["why.md"]
    steps = f"{min(in_jax)} to {max(in_jax):g} times the steps per second in JAX environments, "
    assert steps + f"{min(on_host)} to {max(on_host)} times in Gymnasium's" in PAGES["why.md"]
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"{ratios[-1]} of the time of flashbax" in readme
    assert f"{in_jax[0]} times those of SBX" in readme
    share = re.search(r"([\d.]+) of the bytes", PAGES["guides/frames.md"])[1]
    assert f"| {share} of those without |" in readme


def test_figures_are_dated():
    sections = PAGES["benchmarks.md"].split("\n## ")[1:]
    assert len([section for section in sections if "|---|" in section]) >= 3
    for section in sections:
        assert "|---|" not in section or re.search(r"\b20\d\d-\d\d-\d\d\b", section), section.partition("\n")[0]
