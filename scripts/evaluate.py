"""Measure the policy of a run, and film it; the same as `python -m algorithms evaluate`. `--help` explains it."""

from __future__ import annotations

import functools
import sys

from algorithms.commands import evaluate
from algorithms.commands.program import Program

PROGRAM = Program.of_script("evaluate")
main = functools.partial(evaluate.main, program=PROGRAM)

if __name__ == "__main__":
    evaluate.start(sys.argv[1:], PROGRAM)
