"""What the docstrings of workarounds for compilers promise: versions, figures, and tests that exist."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from jaxrl_buffers import _xla
from jaxrl_buffers._random import hashing

LABELS = ("Seen on:", "Gains:", "Pinned by:", "Can go when:")
PRIVATE = [_xla.values._with_last_axis_first]
DOCSTRINGS = {
    part.__name__: inspect.getdoc(part) for part in [*(getattr(_xla, name) for name in _xla.__all__), *PRIVATE, hashing]
}


@pytest.fixture(scope="module")
def tests():
    """Return the names of all tests."""
    files = Path(__file__).parents[1].rglob("test_*.py")
    return {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)}


@pytest.mark.parametrize("name", DOCSTRINGS)
def test_each_says_what_it_is_for_and_which_tests_pin_it(name, tests):
    docstring = DOCSTRINGS[name]
    lines = [line.strip() for line in docstring.splitlines()]
    assert [label for label in LABELS for line in lines if line.startswith(label)] == [*LABELS]
    pins = docstring[docstring.index("Pinned by:") : docstring.index("Can go when:")]
    found = re.findall(r"`(test_\w+)", pins)
    assert found
    assert [test for test in found if test not in tests] == []
