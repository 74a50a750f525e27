"""The page of a comparison of runs, read as HTML and in a browser."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from support.browser import BROWSER, count_pixels, screenshot
from support.compared import SETTINGS, make_pair, make_run

from algorithms.runs.comparing import chart, compare, write_page
from algorithms.runs.plotting import COLORS


@pytest.fixture
def pair(tmp_path):
    return make_pair(tmp_path)


class Structure(HTMLParser):
    """What is in a page: elements, attributes that point elsewhere, text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.links, self.text = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "xlink:href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_whole_and_needs_nothing_else(pair, tmp_path):
    page = tmp_path / "page.html"
    found = compare(pair)
    write_page(found, page)
    text = page.read_text(encoding="utf-8")
    structure = Structure(text)
    assert structure.open == []
    assert structure.links == []
    assert not {"script", "link", "img", "iframe"} & {*structure.tags}
    assert not re.search(r"url\(|@import|https?://", text)
    for part in ("ddqn on CartPole-v1", "n_step=1", "n_step=3", "after 300 steps, 7 episodes", "1.00", str(pair[0])):
        assert part in structure.text
    for run in found.runs:
        assert run.interquartile_mean.spelled(1).replace(" ", "", 1) in structure.text
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    wide = next(ElementTree.fromstring(one) for one in pictures if 'class="curves"' in one)
    lines = [path for path in wide.iter("path") if path.get("class") == "line"]
    assert [path.get("stroke") for path in lines] == [*COLORS[:2]]
    ends = []
    for path in lines:
        points = np.array(re.findall(r"[ML]([\d.]+) ([\d.]+)", path.get("d")), float)
        assert points.shape == (3, 2)
        assert np.all(np.diff(points[:, 0]) > 0)
        assert np.all(np.diff(points[:, 1]) < 0)  # returns grow, and coordinates count from above
        ends.append(points[-1, 1])
    assert ends[0] > ends[1]
    tips = [title.text for title in wide.iter("title")]
    assert tips[2] == "n_step=1: 21.5 after 300 steps"


def test_names_are_only_text(tmp_path):
    """Nothing that stands in a folder's name becomes a part of the page."""
    folders = [make_run(tmp_path / name, 1.0).path for name in ("<b>a & b</b>", '"quoted"')]
    write_page(compare(folders), tmp_path / "page.html")
    structure = Structure((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "b" not in structure.tags
    assert str(folders[0]) in structure.text


@pytest.mark.parametrize("case", ["one seed", "one run", "one evaluation", "gap", "many runs", "equal"])
def test_pages_of_unusual_runs(tmp_path, case):
    seeds = 1 if case == "one seed" else 3
    steps = (300,) if case == "one evaluation" else (100, 200, 300)
    count = {"one run": 1, "many runs": 14}.get(case, 2)
    level = 0.0 if case == "equal" else 10.0
    folders = [
        make_run(tmp_path / str(n), level * n, dataclasses.replace(SETTINGS, n_step=n + 1), seeds, steps)
        for n in range(count)
    ]
    if case == "gap":
        lines = folders[0].metrics()
        lines[1]["returns"][0][0] = None
        (folders[0].path / "metrics.jsonl").unlink()
        for line in lines:
            folders[0].append(line)
    found = compare([folder.path for folder in folders])
    write_page(found, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "nan" not in text.replace("SFMono", "")
    assert Structure(text).open == []
    assert text.count('class="line"') == 2 * count  # for wide and for narrow screens


def test_a_band_surrounds_its_line(pair):
    drawn = ElementTree.fromstring(chart.curves(compare(pair), 900, 400))
    band, line = (
        np.array([point.split() for point in re.split("[ML]", path.get("d").removesuffix("Z"))[1:]], float)
        for kind in ("band", "line")
        for path in drawn.findall("path")[:4]
        if path.get("class") == kind and path.get("fill", path.get("stroke")) == COLORS[0]
    )
    below, above = band[: len(line)], band[len(line) :][::-1]
    np.testing.assert_array_equal(below[:, 0], line[:, 0])
    np.testing.assert_array_equal(above[:, 0], line[:, 0])
    assert np.all((above[:, 1] < line[:, 1]) & (line[:, 1] < below[:, 1]))  # pixels are counted from above


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome: apt-get install chromium")
def test_the_page_in_a_browser(pair, tmp_path):
    """Both curves are to be seen in their colors, and nothing reaches beyond the edge of a narrow screen."""
    page = tmp_path / "page.html"
    write_page(compare(pair), page)
    for width, least in ((1200, 400), (500, 150)):
        pixels = screenshot(page, width, 1500, tmp_path)
        assert pixels.shape[1] == width
        for color in COLORS[:2]:
            assert count_pixels(pixels, color) > least
        assert count_pixels(pixels, COLORS[2]) == 0
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 100  # letters and bands
        assert np.all(pixels[:, -4:-1] == pixels[:, -1:])  # the margin
