"""No module imports itself by way of others."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATHS = [
    path.relative_to(ROOT) for package in ("algorithms", "jaxrl_buffers") for path in (ROOT / package).rglob("*.py")
]
MODULES = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in PATHS}
# Imports that only type checkers see, and that close a circle. This list may only become shorter.
CLOSING = {
    ("algorithms.environments._obs_dtype", "algorithms.environments.environment"),
    ("algorithms.runs.on_devices", "algorithms.runs.side_by_side"),
    ("algorithms.training.plan_checks", "algorithms.training.plan"),
    ("jaxrl_buffers", "jaxrl_buffers.checkpoint"),
    ("jaxrl_buffers._statistics", "jaxrl_buffers.replay"),
    ("jaxrl_buffers.types", "jaxrl_buffers.storage.reader"),
    ("jaxrl_buffers.types", "jaxrl_buffers.storage.ring"),
}


def imported(tree: ast.AST) -> set[str]:
    """Return the modules of both packages that are imported anywhere in a tree."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            given = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in MODULES else str(node.module) for name in given}
    return names & {*MODULES}


def graphs() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return what each module imports when it runs, and what it imports only for type checkers."""
    runs, checks = {}, {}
    for name, path in MODULES.items():
        tree = ast.parse((ROOT / path).read_text("utf-8"))
        blocks = [
            node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ]
        checks[name] = set().union(*(imported(ast.Module(block.body, [])) for block in blocks))
        for block in blocks:
            block.body = []
        runs[name] = imported(tree)
    return runs, checks


def reached(graph: dict[str, set[str]], begin: str) -> set[str]:
    """Return the modules that a module imports, also by way of others."""
    found, waiting = set(), [begin]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def test_no_module_imports_itself_by_way_of_others():
    runs, checks = graphs()
    graphlib.TopologicalSorter(runs).prepare()  # raises a CycleError that has the circle
    both = {name: runs[name] | checks[name] for name in MODULES}
    closing = {(name, other) for name in MODULES for other in checks[name] if name in reached(both, other)}
    assert closing == CLOSING
    assert sum(map(len, runs.values())) > 1_000
