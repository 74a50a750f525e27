"""What pages say and show of other libraries, by running them where they are installed."""

from __future__ import annotations

import importlib.metadata
import re

import jax
import pytest
from support.guides import ROOT
from support.pages import BLOCK, INSTALLABLE, NOT_RUN, OTHERS, PAGES
from support.scripts import load_script

BLOCKS_OF = {
    (page, title): [text for _, found, _, text in BLOCK.findall(source) if found == title]
    for page, source in PAGES.items()
    for title in sorted(OTHERS)
    if f'title="{title}"' in source
}


def test_every_migration_has_code_side_by_side():
    assert {title for _, title in BLOCKS_OF} == OTHERS
    for name, text in PAGES.items():
        titles = [title for _, title, *_ in BLOCK.findall(text)]
        assert sum(title in OTHERS for title in titles) == titles.count("here"), name


@pytest.mark.parametrize(("page", "title"), [one for one in BLOCKS_OF if one[1] in INSTALLABLE])
def test_code_of_others_runs(page, title, tmp_path, monkeypatch):
    if title == "SB3":
        pytest.importorskip("stable_baselines3", reason="needs Stable-Baselines3, of the extra `peers`")
    monkeypatch.chdir(tmp_path)
    names = {}
    with jax.numpy_rank_promotion("allow"):
        for text in BLOCKS_OF[page, title]:
            exec(compile(text, page, "exec"), names)


@pytest.mark.parametrize(("page", "title"), BLOCKS_OF)
def test_pages_say_whether_code_of_others_is_run(page, title):
    text = " ".join(PAGES[page].split())
    told = "The tests run only our side" if title in NOT_RUN else "The tests run both sides"
    assert told in text
    for block in BLOCKS_OF[page, title]:
        compile(block, page, "exec")


def test_what_is_said_of_flashbax_is_what_is_seen():
    script = load_script("check_peers")
    with jax.numpy_rank_promotion("allow"):
        stale, bad, exact = script.stale_updates(), script.bad_priorities(), script.exact_leaves()
    broken, ours = re.search(r"of 64 sequences, (\d+) join .*; here (\d+)$", stale).groups()
    assert f"of 64 sequences drawn afterwards, {broken} joined rows" in PAGES["why.md"]
    assert f"| {ours}; flashbax {broken} |" in (ROOT / "README.md").read_text("utf-8")
    assert bad.startswith("probabilities are [nan]")
    assert exact.startswith("the sum is 0.0;")


def test_what_is_said_of_frames_is_what_is_seen():
    share = load_script("check_peers").bytes_of_frames().removesuffix(" of the bytes")
    command = "`python scripts/check_peers.py`"
    row = f"| bytes of a buffer of stacked images with `Frames` | {share} of those without | {command} |"
    assert row in (ROOT / "README.md").read_text("utf-8")
    assert f"in {share} of the bytes" in PAGES["benchmarks.md"]


def test_every_library_that_is_compared_has_a_version_and_a_day():
    """Where one of them is installed, it is this version."""
    table = (
        PAGES["why.md"].partition("| library | version or commit | read on |\n|---|---|---|\n")[2].partition("\n\n")[0]
    )
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]
    compared = re.findall(r"^## (.*)$", PAGES["why.md"], re.MULTILINE)
    assert [name for name, *_ in rows] == [
        name for name in compared if name not in ("In short", "What was not compared")
    ]
    for name, version, day in rows:
        assert re.search(r"\d\.\d|\b[0-9a-f]{7}\b", version), name
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", day), name
    versions = {name: version for name, version, _ in rows}
    assert versions["flashbax"] == importlib.metadata.version("flashbax")
