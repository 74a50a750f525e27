"""How the code is built: files and functions are short, nothing is overridden, and no test imports from another one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path for folder in ("algorithms", "jaxrl_buffers", "scripts", "tests") for path in (ROOT / folder).rglob("*.py")
)
MOST_LINES_OF_FILE, MOST_LINES_OF_FUNCTION = 300, 40


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Return the name of every function of a file, and the number of its lines without decorators and docstring."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                docstring = node.body[0]
                assert docstring.end_lineno is not None
                lines -= docstring.end_lineno - docstring.lineno + 1
            yield node.name, lines


def imported(path: Path) -> Iterator[str]:
    """Return the names of all modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_test_imports_from_another_one():
    """What several tests need is in `support` or `models`."""
    tests = [path for path in FILES if path.name.startswith("test_")]
    found = {path.name: [name for name in imported(path) if ".test_" in f".{name}"] for path in tests}
    assert {name: others for name, others in found.items() if others} == {}
    assert len(found) > 100


def test_names_of_tests_say_what_is_tested():
    """Numbers of findings, or of rows of a table, mean nothing to those who do not have that list."""
    names = [name for path in FILES for name, _ in functions(path) if name.startswith("test_")]
    assert [name for name in names if re.match(r"test_(rows?|finding|s)_?\d+", name)] == []
    assert len(names) > 1_000


class Class(NamedTuple):
    """What the text of a class says about it."""

    bases: list[str]
    implemented: set[str]  # names of methods and properties, except abstract ones and those that Python calls itself


def classes() -> dict[str, Class]:
    """Return all classes of both packages by name, protocols excepted."""
    found = {}
    for path in FILES:
        if path.relative_to(ROOT).parts[0] in ("algorithms", "jaxrl_buffers"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef) and "Protocol" not in (bases := [*map(ast.unparse, node.bases)]):
                    methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
                    abstract = {
                        one.name for one in methods if "abc.abstractmethod" in map(ast.unparse, one.decorator_list)
                    }
                    own = {one.name for one in methods if not one.name.startswith("__")}
                    found[node.name] = Class(bases, own - abstract)
    return found


def test_nothing_that_a_base_implements_is_overridden():
    known, num_derived = classes(), 0
    for name, kind in known.items():
        waiting, above = [*kind.bases], set()
        while waiting:
            base = waiting.pop()
            if base in known and base != name and base not in above:
                above.add(base)
                waiting += known[base].bases
        num_derived += bool(above)
        for base in above:
            assert kind.implemented & known[base].implemented == set(), (name, base)
    assert num_derived > 40


def test_no_file_is_long():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in FILES}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES_OF_FILE} == {}


def test_no_function_is_long():
    found = {f"{path.relative_to(ROOT)}: {name}": lines for path in FILES for name, lines in functions(path)}
    assert {name: lines for name, lines in found.items() if lines > MOST_LINES_OF_FUNCTION} == {}
    assert len(found) > 1_000
