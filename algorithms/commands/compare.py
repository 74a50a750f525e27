"""Compares runs of one environment; `HELP` says how it is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from algorithms.commands.parsing import new_parser, parse
from algorithms.commands.program import Program
from algorithms.runs.command import run_folders
from algorithms.runs.comparing import Comparison, compare, write_page
from jaxrl_buffers._checks import one_line

HELP = """Compare runs of one environment: a table of their scores, and a page with their learning curves.

    {typed} runs/one_step runs/three_steps --out compare.html

All runs are compared with the first one. The score of a seed is its mean return in the last evaluation. If the runs
have made different numbers of steps, it is the last evaluation within the steps that all runs have made.
"""


def start(arguments: list[str], program: Program) -> NoReturn:
    """Run the command as the whole program, and end with its exit code."""
    sys.exit(main(arguments, program))


def main(arguments: list[str], program: Program) -> int:
    """Run the command; return its exit code."""
    parser = new_parser(program, HELP)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="The folder of a run, or of a sweep.")
    parser.add_argument("--out", type=Path, default=Path("compare.html"), help="The page; compare.html by default.")
    try:
        given = parse(parser, arguments)
        comparison = compare([folder.path for path in given.runs for folder in run_folders(path)])
        write_page(comparison, given.out)
    except (ValueError, OSError) as error:
        print(f"{program.name}: {one_line(error)}", file=sys.stderr)
        return 2
    is_terminal = sys.stdout.isatty()
    Console(width=None if is_terminal else 140).print(_table(comparison))
    print(f"{comparison.basis}; 95 % intervals over seeds")
    print(given.out)
    return 0


def _table(comparison: Comparison) -> Table:
    table = Table(title=comparison.title)
    table.add_column("run", overflow="fold")
    better = f"better than {comparison.runs[0].label}"
    for name in ("seeds", "mean", "interquartile mean", better):
        table.add_column(escape(name), justify="right")
    for run in comparison.runs:
        improvement = "" if run.improvement is None else run.improvement.spelled(2)
        figures = (run.mean.spelled(1), run.interquartile_mean.spelled(1), improvement)
        table.add_row(*map(escape, (run.label, str(len(run.scores.of_seeds)), *figures)))
    return table
