"""Bad input by the dozen; `python scripts/fuzz_input.py` tries hundreds."""

from __future__ import annotations

import random

import pytest
from support.scripts import load_script


@pytest.fixture(scope="module")
def script():
    return load_script("fuzz_input")


def test_bad_input_is_refused_and_good_input_is_not(script, capsys):
    amounts = ("--lines", "60", "--files", "40", "--good", "3", "--processes", "1", "--seed", "1")
    code = script.main(list(amounts))
    text = capsys.readouterr().out
    assert code == 0, text
    assert "104 inputs, 0 of them" in text


def test_what_goes_wrong_is_noticed(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fuzz = script.Fuzz(random.Random(0))
    names, good, bad = ["ddqn", "CartPole-v1"], ["--seed", "3"], ["--seed", "-3"]
    fuzz.attempt(script.Case("refused", [*names, *bad]))
    fuzz.attempt(script.Case("begun", [*names, *good, "--out", "a"], is_good=True))
    assert fuzz.failures == []
    fuzz.attempt(script.Case("not refused", [*names, *good, "--out", "b"]))
    fuzz.attempt(script.Case("not begun", [*names, *bad], is_good=True))
    fuzz.mains["train"] = lambda arguments: 1 / 0
    fuzz.attempt(script.Case("traceback", [*names, *bad]))
    fuzz.mains["train"] = lambda arguments: print("one\ntwo") or 2
    fuzz.attempt(script.Case("several lines", [*names, *bad]))
    for failure, words in zip(
        fuzz.failures,
        ("changed files", "ended with 2", "ZeroDivisionError", r"printed '' and 'one\ntwo\n'"),
        strict=True,
    ):
        assert words in failure
