"""What `python -m algorithms` does first, before imports that take long and begin to use devices.

Python imports the package `algorithms` before its `__main__`, so the package imports this module before all others. In
any other program it does nothing. `scripts/train.py` does the same before it imports the package.
"""

from __future__ import annotations

import signal
import sys


def _arguments() -> list[str] | None:
    """Return the words after `python -m algorithms`; None in any other program."""
    if sys.argv[:1] != ["-m"]:  # as it is while Python looks for the module to run
        return None
    module = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    return sys.argv[1:] if module == "algorithms" else None


def _start(arguments: list[str]) -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C ends this program at once, except during a run, which is saved first. A KeyboardInterrupt could get
        # lost in callbacks of JAX, or print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if arguments[:1] == ["train"]:
        from jaxrl_buffers import cluster  # takes long to import, so Ctrl-C must work before it

        cluster.connect_or_exit("python -m algorithms train", arguments[1:])


if (_given := _arguments()) is not None:
    _start(_given)
