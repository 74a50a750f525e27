"""The guide on Gymnasium does what it says: its code runs, and prints what is written below it."""

from __future__ import annotations

import contextlib
import io
import re

import pytest
from support.guides import ROOT, blocks

from algorithms.runs import command_line


@pytest.mark.parametrize("number", [0, 1])
def test_each_block_runs_by_itself(number):
    parts = [(language, text) for language, _, text in blocks("gymnasium") if language in ("python", "text")]
    (_, code), (_, expected) = parts[2 * number : 2 * number + 2]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "gymnasium.md", "exec"), {})
    assert printed.getvalue() == expected


def test_its_commands_are_understood():
    text = (ROOT / "docs" / "guides" / "gymnasium.md").read_text()
    commands = re.findall(r"^python scripts/train.py (.*)$", text, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        assert command_line.parse(command.split()).settings.environment.startswith("gymnasium:")
