"""Runs rows by scripts/train.py, several at a time. A run that was stopped is continued from its last checkpoint."""

from __future__ import annotations

import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from algorithms.runs.reproducing.results import UNKNOWN, Result, Results, Times
from algorithms.runs.reproducing.rows import Row
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.side_by_side import num_cores
from jaxrl_buffers import _durable as durable

STOPPED = 128  # exit codes above this one: train.py was stopped by a signal, and its run can be continued


class Failed(NamedTuple):
    """A row whose run ended without a result."""

    row: Row
    exit_code: int
    message: str  # the last line that it wrote


class Jobs:
    """Runs rows in processes of their own.

    Args:
        results: where results are kept.
        folder: of the runs. The folder of a run is removed once its result is kept.
        num_jobs: how many rows are run at a time; each gets an equal share of the cores.
        script: the training script.
        is_quiet: whether the machine does nothing else, so that times on the wall mean something.
    """

    def __init__(self, results: Results, folder: Path, num_jobs: int, script: Path, is_quiet: bool = False):
        self._results, self._folder, self._script, self._is_quiet = results, folder, script, is_quiet
        self._num_jobs, self._cores = num_jobs, max(num_cores() // num_jobs, 1)
        self._waiting: collections.deque[Row] = collections.deque()
        self._running: dict[Row, int] = {}  # rows, and the ids of their processes
        self._lock = threading.RLock()  # of the two above; a signal may come while its thread has it
        self._is_stopped = False
        self.failed: list[Failed] = []

    def run(self, rows: Sequence[Row], on_result: Callable[[Row, Result], None], on_tick: Callable[[], None]) -> None:
        """Run rows, the first ones first.

        Args:
            rows: what to run.
            on_result: called in this thread after each result was kept.
            on_tick: called in this thread a few times a second.
        """
        self._waiting.extend(rows)
        done: collections.deque[tuple[Row, Result]] = collections.deque()
        threads = [threading.Thread(target=self._work, args=(done,)) for _ in range(min(self._num_jobs, len(rows)))]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) or done:
            while done:
                on_result(*done.popleft())
            on_tick()
            time.sleep(0.2)

    def stop(self) -> None:
        """Ask all runs to save themselves and end; the first call counts."""
        with self._lock:
            if self._is_stopped:
                return
            self._is_stopped = True
            self._waiting.clear()
            for process in self._running.values():
                os.kill(process, signal.SIGTERM)

    def shares(self) -> dict[Row, float]:
        """Return which rows are running, and the share of its steps that each has made at its last evaluation."""
        with self._lock:
            rows = [*self._running]
        return {row: self._share(row) for row in rows}

    def _share(self, row: Row) -> float:
        try:
            metrics = RunFolder(self._folder / row.file_name).metrics()
        except (OSError, ValueError):  # it is being removed
            return 0.0
        return metrics[-1]["steps"] / row.settings()["plan"]["total_steps"] if metrics else 0.0

    def _work(self, done: collections.deque[tuple[Row, Result]]) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    return
                row = self._waiting.popleft()
            try:
                result = self._run(row)
            except (OSError, ValueError) as error:  # such as a full disk; the other rows go on
                self.failed.append(Failed(row, 2, str(error)))
                continue
            if result is not None:
                done.append((row, result))

    def _run(self, row: Row) -> Result | None:
        out = self._folder / row.file_name
        clock = _Clock(self._folder / f"{row.file_name}.times", self._is_quiet)
        log = self._folder / f"{row.file_name}.log"
        is_begun = out.exists() and RunFolder(out).settings().to_dict() == row.settings()
        if not is_begun:
            shutil.rmtree(out, ignore_errors=True)
        what = ["--resume", str(out)] if is_begun else [*row.words, "--out", str(out)]
        self._folder.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            process = self._start(row, [*what, "--cores", str(self._cores)], file)
            if process is None:
                return None
            clock.begin(is_continued=is_begun)
            _, status, usage = os.wait4(process.pid, 0)
            with self._lock:
                del self._running[row]
            process.returncode = os.waitstatus_to_exitcode(status)
            times = clock.end(usage.ru_utime + usage.ru_stime)
        if process.returncode:
            if not self._is_stopped:
                self.failed.append(Failed(row, process.returncode, _last_line(log)))
            return None
        result = Result.of_run(row, RunFolder(out), times)
        self._results.write(row, result)
        shutil.rmtree(out)
        clock.remove()
        log.unlink()
        return result

    def _start(self, row: Row, arguments: list[str], log: TextIO) -> subprocess.Popen[bytes] | None:
        """Start a run, unless runs were asked to end."""
        command = [sys.executable, str(self._script), *arguments]
        with self._lock:
            if self._is_stopped:
                return None
            # In a session of its own, so that Ctrl-C reaches it once: by `stop`.
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            self._running[row] = process.pid
        return process


class _Clock:
    """Adds up the times of a run that may be stopped and continued.

    Args:
        path: a file for the times so far. It says so if a part of the run was cut off, and its times are not known.
        is_quiet: whether the machine does nothing else.
    """

    def __init__(self, path: Path, is_quiet: bool = False):
        self._path, self._is_quiet = path, is_quiet
        self._before, self._begun = Times(), 0.0

    def begin(self, is_continued: bool) -> None:
        """Start measuring."""
        if is_continued:
            self._before = Times(**json.loads(self._path.read_text())) if self._path.exists() else UNKNOWN
        self._begun = time.monotonic()
        self._keep(UNKNOWN)

    def end(self, cpu_seconds: float) -> Times:
        """Stop measuring, and return the times of the whole run."""
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        times = self._before.plus(Times(time.monotonic() - self._begun, cpu_seconds, load, self._is_quiet))
        self._keep(times)
        return times

    def remove(self) -> None:
        """Remove the file."""
        self._path.unlink()

    def _keep(self, times: Times) -> None:
        durable.write_text(self._path, json.dumps(times._asdict()))


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""
