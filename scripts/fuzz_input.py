"""Try bad input on train.py and plot.py. Each must be refused in one line with exit code 2, and must write nothing.

    python scripts/fuzz_input.py --lines 500 --files 200 --processes 10

Every bad input is a good one in which one thing is certainly wrong. Good inputs are tried too. They must get as far as
training, which is left out. Everything runs in one process, except a sample of the command lines.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plot
import train
from fuzz_cases import Case, Cases

from algorithms.runs import run

SCRIPTS = Path(__file__).parent
MOST_CHARACTERS = 2_500


class Reached(Exception):
    """Training would begin now."""


def main(arguments: list[str]) -> int:
    """Run the command; return 1 if any input was not treated as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=500, help="Bad command lines.")
    parser.add_argument("--files", type=int, default=200, help="Bad files.")
    parser.add_argument("--good", type=int, default=30, help="Good command lines and files.")
    parser.add_argument("--processes", type=int, default=10, help="How many of the bad lines get a process, too.")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return Fuzz(random.Random(options.seed)).run(options)


class Fuzz:
    """Tries inputs in the present folder.

    Args:
        rng: what everything is drawn from.
    """

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.cases = Cases(rng)
        self.mains = {"train": train.main, "plot": plot.main}
        self.failures: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.slowest = (0.0, "")

    def run(self, options: argparse.Namespace) -> int:
        """Try as many inputs as asked for; print a summary; return the exit code."""
        Path("file").write_text("kept")
        Path("existing").mkdir()
        Path("loop").symlink_to("loop")
        os.mkfifo("pipe")
        lines = [self.cases.bad_line() for _ in range(options.lines)]
        for case in lines:
            self.attempt(case)
        for _ in range(options.files):
            with self.cases.bad_file() as case:
                self.attempt(case)
        for _ in range(options.good):
            with self.cases.good() as case:
                self.attempt(case)
        possible = [case for case in lines if not any("\0" in argument for argument in case.arguments)]
        for case in self.rng.sample(possible, min(options.processes, len(possible))):
            self.attempt_in_a_process(case)
        for failure in self.failures:
            print(failure)
        for kind, count in sorted(self.counts.items()):
            print(f"{count:5}  {kind}")
        print(
            f"{sum(self.counts.values())} inputs, {len(self.failures)} of them not treated as they should be; ", end=""
        )
        print(f"the slowest took {self.slowest[0]:.1f} s: {self.slowest[1]}")
        return 1 if self.failures else 0

    def attempt(self, case: Case) -> None:
        """Try one input in this process."""
        before, begun = _snapshot(), time.monotonic()
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _no_training():
                code = self.mains[case.script](list(case.arguments))
        except Reached:
            code = "training"
        except SystemExit as stop:
            code = f"SystemExit({stop.code})"
        except Exception:
            code = traceback.format_exc()
        self.slowest = max(self.slowest, (time.monotonic() - begun, f"{case.kind} {_shown(case)}"))
        self._judge(case, code, out.getvalue(), err.getvalue(), before)

    def attempt_in_a_process(self, case: Case) -> None:
        """Try one input in a new process, as users do."""
        before = _snapshot()
        command = [sys.executable, SCRIPTS / f"{case.script}.py", *case.arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self._judge(case._replace(kind=f"{case.kind}, in a process"), done.returncode, done.stdout, done.stderr, before)

    def _judge(self, case: Case, code: Any, out: str, err: str, before: Any) -> None:
        self.counts[case.kind] += 1
        wrong = []
        if code != ("training" if case.is_good else 2):
            wrong.append(f"ended with {code}")
        if not case.is_good and (len(err.splitlines()) != 1 or len(err) > MOST_CHARACTERS or out):
            wrong.append(f"printed {err[-500:]!r} and {out[-500:]!r}")
        if not case.is_good and _snapshot() != before:
            wrong.append("changed files")
        if wrong:
            self.failures.append(f"{case.kind}: {_shown(case)}: {'; '.join(wrong)}")


@contextlib.contextmanager
def _no_training() -> Iterator[None]:
    """Stop where training would begin."""

    def stop(*_: Any, **__: Any) -> None:
        raise Reached

    begin, run.train = run.train, stop
    try:
        yield
    finally:
        run.train = begin


def _snapshot() -> dict[str, Any]:
    """Return what lies in the present folder."""
    found = {}
    for path in Path().rglob("*"):
        found[str(path)] = path.read_bytes() if path.is_file() and not path.is_symlink() else path.lstat().st_mode
    return found


def _shown(case: Case) -> str:
    return " ".join(repr(argument if len(argument) < 60 else f"{argument[:50]}...") for argument in case.arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
