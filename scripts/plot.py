"""Draw what a training run left in its folder; the same as `python -m algorithms plot`. `--help` explains it."""

from __future__ import annotations

import functools
import sys

from algorithms.commands import plot
from algorithms.commands.program import Program

PROGRAM = Program.of_script("plot")
main = functools.partial(plot.main, program=PROGRAM)

if __name__ == "__main__":
    plot.start(sys.argv[1:], PROGRAM)
