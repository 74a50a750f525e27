"""Change a source file in one place at a time, and list the changes that no test notices.

    python scripts/mutate.py algorithms/agents/losses.py --tests tests/agents/test_losses.py --sample 60 --seed 0

Each change runs in a process of its own, forked after the imports and before JAX starts. Tests that are quick or that
noticed many changes run first, and compiled programs are kept. If a change survives, either it makes no difference or a
test is missing.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import os
import random
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

IMPORTS = ("flax.linen", "optax", "matplotlib.pyplot", "rlax", "distrax", "scipy.stats", "pydantic", "orbax.checkpoint")
PAIRS: list[tuple[Any, Any]] = [
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
    *((ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitAnd, ast.BitOr), (ast.And, ast.Or)),
    *(("min", "max"), ("minimum", "maximum"), ("argmin", "argmax"), ("any", "all"), ("zeros", "ones"), ("exp", "log")),
    *(("params", "target"), ("obs", "next_obs")),
]
OPPOSITES = {one: two for pair in PAIRS for one, two in (pair, pair[::-1])}
OPPOSITES |= {ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.FloorDiv: ast.Mult}
SKIPPED = (ast.Raise, ast.Import, ast.ImportFrom, ast.JoinedStr, ast.arg)


def alternatives(node: Any, bound: set[str]) -> Iterator[ast.AST]:
    """Yield what a node can be changed to; `bound` are the names that would also exist without it."""
    change: Any = copy.copy(node)
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            yield ast.Constant(not value if isinstance(value, bool) else value + 1)
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign() if type(node.op) in OPPOSITES:
            change.op = OPPOSITES[type(node.op)]()
            yield change
        case ast.Compare():
            change.ops = [OPPOSITES[type(node.ops[0])](), *node.ops[1:]]
            yield change
        case ast.UnaryOp():
            yield node.operand
        case ast.Attribute(attr=name) if name in OPPOSITES:
            change.attr = OPPOSITES[name]
            yield change
        case ast.Call(func=called, args=args, keywords=keywords):
            name = getattr(called, "attr", getattr(called, "id", ""))
            if name == "where" and len(args) == 3:
                yield ast.Call(called, [args[0], args[2], args[1]], keywords)
            elif name in ("stop_gradient", "keep"):
                yield args[0]
            elif len(args) > 1 and name[:1].islower():
                yield ast.Call(called, args[:-1], keywords)
            yield from (ast.Call(called, args, [one for one in keywords if one is not left]) for left in keywords)
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.Return(value=ast.Tuple(elts=[first, second, *rest])):
            yield ast.Return(ast.Tuple([second, first, *rest], ast.Load()))
        case ast.If() | ast.While():
            yield type(node)(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Assign(targets=[target]) if names(target) <= bound:
            yield ast.Pass()


def names(node: ast.AST) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}


def edits(node: ast.AST, bound: set[str]) -> Iterator[tuple[Any, Any, Any, ast.AST]]:
    """Yield `(place, at, old, new)` for all changes below a node, except those of annotations, texts and errors."""
    bound = set(bound) if isinstance(node, ast.FunctionDef) else bound
    for field, value in ast.iter_fields(node):
        for at, child in enumerate(value) if isinstance(value, list) else [(field, value)]:
            if isinstance(child, ast.arg):
                bound.add(child.arg)
            is_code = isinstance(child, ast.AST) and not isinstance(child, SKIPPED)
            if not is_code or field in ("annotation", "returns", "decorator_list"):
                continue
            place = value if isinstance(value, list) else vars(node)
            yield from ((place, at, child, new) for new in alternatives(child, bound))
            yield from edits(child, bound)
            if isinstance(child, ast.Assign):
                bound |= names(child)


class Runner:
    """Runs tests with changed code, as a plugin of pytest."""

    def __init__(self, path: Path, arguments: list[str]):
        self.path, self.arguments, self.folder = path, arguments, Path(tempfile.mkdtemp())
        self.costs: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: self.costs.get(item.nodeid, 0))

    def pytest_runtest_logreport(self, report: Any) -> None:
        with (self.folder / "report").open("a") as file:
            print(report.nodeid, report.duration, int(report.failed), sep="\t", file=file)

    def passes(self, tree: ast.AST, timeout: float) -> bool:
        """Run the tests in a forked process, at most until one fails."""
        code = compile(ast.fix_missing_locations(tree), str(self.path), "exec")
        (self.folder / "report").write_text("")
        if (pid := os.fork()) == 0:
            signal.alarm(int(timeout))
            self._test(code)
        status = os.waitpid(pid, 0)[1]
        for line in (self.folder / "report").read_text().splitlines():
            test, duration, failed = line.split("\t")
            self.costs[test] = self.costs.get(test, 0.01 + float(duration)) / (1 + int(failed))
        return status == 0

    def _test(self, code: Any) -> None:
        """Run the tests with `code` instead of the file, and end this process."""
        import pytest

        original, output = SourceFileLoader.get_code, (self.folder / "output").open("w")
        SourceFileLoader.get_code = lambda own, name: code if Path(own.path) == self.path else original(own, name)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        # With rewritten assertions, pytest would read a file that is also a test from disk, without the change.
        os._exit(pytest.main(["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", *self.arguments], plugins=[self]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--tests", nargs="+", required=True, help="files or tests, as for pytest")
    parser.add_argument("--select", default="", help="an expression that chooses among them, as for pytest -k")
    parser.add_argument("--sample", type=int, help="how many changes to try; by default all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", type=int, nargs="+", help="of these changes, only those of these lines")
    options = parser.parse_args()
    os.environ |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir(), "mutate_cache")))
    sys.path[:0] = [os.getcwd(), "tests"]
    runpy.run_path("tests/conftest.py")
    for name in IMPORTS:
        importlib.import_module(name)

    tree, begin = ast.parse(options.path.read_text()), time.monotonic()
    runner = Runner(options.path.resolve(), [*options.tests, "-k", options.select])
    if not runner.passes(tree, 1_000):
        sys.exit(f"the tests fail without a change; see {runner.folder}/output.")
    limit, found, num_noticed = 3 * (time.monotonic() - begin) + 30, list(edits(tree, set())), 0
    random.Random(options.seed).shuffle(found)
    tried = [edit for edit in found[: options.sample] if not options.lines or edit[2].lineno in options.lines]
    print(f"{options.path}: {len(tried)} of {len(found)} changes, {len(runner.costs)} tests", flush=True)
    for place, at, old, new in sorted(tried, key=lambda edit: edit[2].lineno):
        place[at] = new
        if runner.passes(tree, limit):
            print(f"  {old.lineno}: {ast.unparse(old)}  ->  {ast.unparse(new)}", flush=True)
        else:
            num_noticed += 1
        place[at] = old
    print(f"{options.path}: {num_noticed} of {len(tried)} noticed", flush=True)


if __name__ == "__main__":
    main()
