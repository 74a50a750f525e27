"""Compare runs of one environment; the same as `python -m algorithms compare`. `--help` explains it."""

from __future__ import annotations

import functools
import sys

from algorithms.commands import compare
from algorithms.commands.program import Program

PROGRAM = Program.of_script("compare")
main = functools.partial(compare.main, program=PROGRAM)

if __name__ == "__main__":
    compare.start(sys.argv[1:], PROGRAM)
