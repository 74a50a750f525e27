"""`python -m algorithms COMMAND ...` runs one of `algorithms.commands`."""

from __future__ import annotations

import sys

from algorithms.commands import start

if __name__ == "__main__":
    start(sys.argv[1:])
