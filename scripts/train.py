"""Train an agent; the same as `python -m algorithms train`. `--help` explains it."""

from __future__ import annotations

import functools
import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as in algorithms/_starting.py, which says why

from jaxrl_buffers import cluster

if __name__ == "__main__":
    cluster.connect_or_exit("train.py", sys.argv[1:])  # before `algorithms` is imported, which starts to use devices

from algorithms.commands import train
from algorithms.commands.program import Program

PROGRAM = Program.of_script("train")
main = functools.partial(train.main, program=PROGRAM)

if __name__ == "__main__":
    train.start(sys.argv[1:], PROGRAM)
