"""The documentation is built without a warning, and every page opens in a real browser."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.browser import BROWSER, as_a_browser_sees
from support.guides import ROOT
from support.site import broken_links, visit

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("matplotlib")
pytest.importorskip("mkdocs")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_no_link_is_broken(site):
    assert broken_links(site) == []


def text_of(site: Path, page: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", (site / page).read_text("utf-8")))


def test_signatures_are_in_lines_and_have_numbers(site):
    """They are broken into lines only if the extra `docs` brings a formatter."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert any(one.startswith("ruff") for one in extras["docs"])
    text = text_of(site, "reference/training.html")
    assert "\nPlan(\n    total_steps: int,\n    num_envs: int = 1,\n" in text
    assert "Suggested" not in text


def test_what_a_function_returns_is_one_text(site):
    """It is not cut into a list at the ends of its lines."""
    text = " ".join(text_of(site, "reference/training.html").split())
    assert (
        "The last state, and metrics with an entry for each of E evaluations. The metrics are means and counts" in text
    )


def is_code(cell) -> bool:
    return cell["cell_type"] == "code"


PICTURES = {"quickstart": ["png"], "replay_by_pictures": ["png", "gif", "gif", "png", "gif"], "sweep": ["png"]}


@pytest.mark.parametrize("name", PICTURES)
def test_notebooks_are_shown_with_their_pictures(site, name):
    """All cells were executed, from the first to the last, and the curves and bars are there."""
    cells = json.loads((ROOT / "docs" / "notebooks" / f"{name}.ipynb").read_text("utf-8"))["cells"]
    page = (site / "notebooks" / f"{name}.html").read_text("utf-8")
    assert all("".join(cell["source"]) in text_of(site, f"notebooks/{name}.html") for cell in cells if is_code(cell))
    pictures = re.findall(rf'<img alt="[^"]+" src="({name}-\d\.(\w+))"', page)
    assert [kind for _, kind in pictures] == PICTURES[name]
    for path, kind in pictures:
        with Image.open(site / "notebooks" / path) as picture:
            assert getattr(picture, "n_frames", 1) == (10 if kind == "gif" else 1)
            assert len(picture.convert("RGB").getcolors(2**20)) > 20


@pytest.mark.parametrize("page", ["ddqn", "ddpg", "td3", "sac", "mpo", "ppo"])
def test_algorithms_have_results_with_curves(site, page):
    text = (site / "algorithms" / f"{page}.html").read_text("utf-8")
    curves = re.findall(r'<img alt="([^"]+)" src="(\.\./results/pictures/[^"]+\.svg)"', text)
    assert curves
    for name, path in curves:
        assert (site / "algorithms" / path).exists()
        drawn = (site / "algorithms" / path).read_text("utf-8")
        assert page in drawn or name.startswith(("Samplers", "Steps"))
    assert f"<code>{page} " in text


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome")
def test_pages_that_are_opened_as_files_show_no_search(site, tmp_path):
    """It would find nothing, as no page may read files."""
    found = as_a_browser_sees(site / "index.html", tmp_path)
    assert re.search(r'<html[^>]* class="[^"]*from-file', found)
    style = (site / "pictures" / "site.css").read_text("utf-8")
    assert re.search(r"\.from-file :is\(\.md-search[^{]*{\s*display: none", style)


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome")
def test_problems_are_noticed(tmp_path):
    """The next test would not pass just because nothing is found."""
    (tmp_path / "bad.html").write_text(
        '<html><head></head><body><a href="gone.html">x</a><script>console.error("told"); nothing.at.all</script>'
        '<img src="http://elsewhere.invalid/x.png"><div style="width:900px">wide</div></body></html>'
    )
    assert broken_links(tmp_path) == ["bad.html: gone.html"]
    address, found = visit(tmp_path, ["bad.html"], 400, tmp_path)
    page = found["bad.html"]
    assert len(page["problems"]) == 3
    assert [one for one in page["requests"] if not one.startswith(address)] == ["http://elsewhere.invalid/x.png"]
    assert page["overflow"] > 400


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome")
@pytest.mark.parametrize("width", [400, 1400])
def test_every_page_opens(site, tmp_path, width):
    """Without an error in the console, a request to another place, or text beyond the screen."""
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if path.name != "404.html")
    address, found = visit(site, pages, width, tmp_path)
    assert [*found] == pages
    assert len(pages) > 40
    for name, page in found.items():
        assert page["problems"] == [], name
        assert [one for one in page["requests"] if not one.startswith(address)] == [], name
        assert page["overflow"] <= 0, name
        assert page["text"] > 200, name
        assert page["title"], name
