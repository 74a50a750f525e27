"""Time two checkouts of this project against each other, and print the ratio of their times for every row.

    git worktree add ../before COMMIT
    python scripts/benchmark_commits.py ../before . --kinds uniform prioritized --agents ddqn sac

Each checkout has one process, which runs the functions of its own scripts/benchmark_buffers.py and
scripts/benchmark_training.py with its own code. The two take turns, so that a disturbance of the machine affects
both. Times are microseconds per step. Compilation is not counted.

The memory that a process happens to get changes its times by up to 10 %. So every row is timed in several rounds, each
with two new processes. The ratio of a round is the median of the new checkout divided by that of the old one; above 1,
the new checkout is slower. Printed are the medians of all rounds, and in brackets the least and the largest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

MIN_REPEATS = 5  # whatever the time limit
MAIN_KINDS = ("uniform", "prioritized")  # these are timed with all cells and capacities, the other kinds once
OTHER_CELL, OTHER_CAPACITY = "loop", 2**20
Row = list[Any]  # which script, and what of it: ["buffers", kind, cell, capacity] or ["training", *Cell]


class Worker:
    """A process that runs the benchmarks of one checkout."""

    def __init__(self, folder: Path):
        command = [sys.executable, "-P", __file__, "--worker"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(folder / "scripts")])}
        self._process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, row: Row | None) -> None:
        """Ask the process to prepare a row, or, with None, to run one repetition of the last row."""
        assert self._process.stdin
        print(json.dumps(row), file=self._process.stdin, flush=True)

    def answer(self) -> float:
        """Wait for the answer, and return the microseconds per step."""
        assert self._process.stdout
        if not (line := self._process.stdout.readline()):
            sys.exit("benchmark_commits.py: a worker ended early; what it wrote is above.")
        return float(line)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()  # which also closes both pipes


def work() -> None:
    """Answer what the parent asks."""
    import jaxrl_buffers

    if Path(jaxrl_buffers.__file__).parents[1] != Path.cwd():
        sys.exit(f"benchmark_commits.py: the code of {Path.cwd()} is not what Python imports there.")
    answers, sys.stdout = sys.stdout, sys.stderr
    repeat: Callable[[], float] | None = None
    for line in sys.stdin:
        if row := json.loads(line):
            repeat = None  # frees its memory before the next row allocates its own
            repeat = {"buffers": prepare_buffer, "training": prepare_training}[row[0]](*row[1:])
        assert repeat
        print(repeat(), file=answers, flush=True)


def prepare_buffer(kind: str, cell: str, capacity: int) -> Callable[[], float]:
    """Fill a buffer; return a function that runs one cell of benchmark_buffers.py once."""
    import benchmark_buffers as benchmark
    import jax
    import numpy as np

    rng = np.random.default_rng(0)
    chunks = benchmark.random_chunks(kind, rng)
    buffer = benchmark.make_ours(kind, capacity)
    operations, steps = benchmark.CELLS[cell]
    steps = steps // 8 if kind == "frames" else steps
    run = jax.jit(partial(benchmark.run, buffer, operations), donate_argnums=0)
    holder = [benchmark.fill(buffer, capacity, chunks)]

    def repeat() -> float:
        inputs = benchmark.step_inputs(rng, capacity, steps, chunks.reward.shape[0])
        begun = time.perf_counter()
        holder[0], _ = jax.block_until_ready(run(holder[0], chunks, inputs))
        return 1e6 * (time.perf_counter() - begun) / steps

    return repeat


def prepare_training(*cell: Any) -> Callable[[], float]:
    """Return a function that runs one cell of benchmark_training.py once."""
    import benchmark_training as benchmark

    return benchmark._training(benchmark.Cell(*cell))


def rows_of(options: argparse.Namespace) -> list[Row]:
    """Return the rows that were asked for."""
    import benchmark_buffers as benchmark

    rows: list[Row] = []
    for kind in options.kinds:
        if kind not in MAIN_KINDS:
            capacity = benchmark.FRAMES_CAPACITY if kind == "frames" else OTHER_CAPACITY
            rows.append(["buffers", kind, OTHER_CELL, capacity])
            continue
        cells = [cell for cell in benchmark.CELLS if kind == "prioritized" or cell != "update"]
        rows += [["buffers", kind, cell, capacity] for capacity in options.capacities for cell in cells]
    return rows + [["training", agent, 1, hidden, 10_000] for agent in options.agents for hidden in options.hidden]


def time_round(options: argparse.Namespace, row: Row) -> tuple[float, float]:
    """Time one row in two new processes; return the medians of the old and of the new checkout."""
    workers = {"old": Worker(options.old.resolve()), "new": Worker(options.new.resolve())}
    times = compare(workers, row, options.seconds)
    for worker in workers.values():
        worker.close()
    return statistics.median(times["old"]), statistics.median(times["new"])


def show(values: Any, digits: int) -> str:
    """Write the median, and in brackets the least and the largest."""
    middle, least, most = (f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} [{least}, {most}]"


def compare(workers: dict[str, Worker], row: Row, seconds: float) -> dict[str, list[float]]:
    """Time one row in both workers by turns."""
    times: dict[str, list[float]] = {name: [] for name in workers}
    for worker in workers.values():  # both compile at the same time
        worker.ask(row)
    for worker in workers.values():
        worker.answer()
    begun = time.perf_counter()
    while len(times["old"]) < MIN_REPEATS or time.perf_counter() - begun < seconds:
        for name in list(workers)[:: -1 if len(times["old"]) % 2 else 1]:
            workers[name].ask(None)
            times[name].append(workers[name].answer())
    return times


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    import benchmark_buffers
    import benchmark_training

    about, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(description=about, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: {message}\n")
    add = parser.add_argument
    add("old", type=Path, help="the folder of a checkout")
    add("new", type=Path, help="the folder of another one")
    kinds, agents = benchmark_buffers.KINDS, tuple(benchmark_training.TASKS)
    add("--kinds", nargs="*", choices=kinds, default=kinds, help="of buffers; default: all")
    capacity = benchmark_buffers.capacity_number
    add("--capacities", nargs="+", type=capacity, default=[2**16, 2**20], help="of plain buffers; default: 2^16 2^20")
    add("--agents", nargs="*", choices=agents, default=agents, help="default: all")
    add("--hidden", nargs="+", type=int, default=[64], help="widths of the agents' hidden layers; default: 64")
    add("--rounds", type=int, default=5, help="how often every row is timed in new processes; default: 5")
    add("--seconds", type=float, default=2.0, help="of both checkouts together, for every round of a row; default: 2")
    options = parser.parse_args()
    for folder in (options.old, options.new):
        if not (folder / "scripts" / "benchmark_buffers.py").is_file():
            parser.error(f"{folder} is not a checkout of this project")
    return options


def main() -> None:
    """Compare and report."""
    options = parse_arguments()
    import numpy as np
    from benchmark_buffers import power

    line = "{:44}{:26}{:26}{}"
    print(line.format("row", "old us", "new us", "new / old"), flush=True)
    for row in rows_of(options):
        rounds = [time_round(options, row) for _ in range(options.rounds)]
        name = " ".join(power(part) if isinstance(part, int) and part >= 1024 else str(part) for part in row)
        old, new = np.array(rounds).T
        print(line.format(name, show(old, 1), show(new, 1), show(new / old, 3)), flush=True)


if __name__ == "__main__":
    work() if sys.argv[1:] == ["--worker"] else main()
