"""Seconds until a task is solved: this library, rejax and SBX, each with the settings that its own project tuned.

    python scripts/benchmark_time_to_solve.py --rejax REJAX_PYTHON --sbx SBX_PYTHON --json solved.json
    python scripts/benchmark_time_to_solve.py --tasks "SAC Pendulum-v1"                # one task, this library only

A task counts as solved at the first evaluation, over ten seeds with ten episodes each, whose mean return reaches the
bar. The clock starts when the training program has been imported, and includes compilation, training and evaluations.
Compiled programs of earlier runs are not used. All seeds train side by side: here on all cores, in rejax by `vmap`, and
in SBX in one process for each core. rejax needs an environment of its own, because it does not work with gymnax 1:

    python -m venv rejax-venv && rejax-venv/bin/pip install rejax gymnax==0.0.9
    python -m venv sbx-venv && sbx-venv/bin/pip install sbx-rl

Only times on a machine that does nothing else mean something.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "time_to_solve"
NUM_SEEDS = 10


class Task(NamedTuple):
    """What is to be solved, and how each library is asked to."""

    name: str
    environment: str
    bar: float
    interval: int  # steps between two evaluations
    ours: str
    peer: str  # the name of the algorithm in rejax and SBX


TASKS = (
    Task("PPO CartPole-v1", "CartPole-v1", 475, 5_000, "ppo", "ppo"),
    Task("DDQN CartPole-v1", "CartPole-v1", 475, 5_000, "ddqn", "dqn"),
    Task("SAC Pendulum-v1", "Pendulum-v1", -180, 1_000, "sac", "sac"),
)


class Solved(NamedTuple):
    """How long a library took; None if it did not reach the bar."""

    seconds: float | None
    steps: int | None
    best: float  # the highest mean over seeds in any evaluation


def main(arguments: list[str]) -> int:
    """Measure, print the table and write JSON."""
    options = _options(arguments)
    rows = []
    for task in TASKS:
        if options.tasks is None or task.name in options.tasks:
            found = {name: _measure(commands, task.bar, options.limit) for name, commands in _commands(task, options)}
            print(_line(task, found), flush=True)
            rows.append({"task": task._asdict(), **{name: one._asdict() for name, one in found.items()}})
    if options.json:
        told = {"load": os.getloadavg(), "cores": os.cpu_count(), "seeds": NUM_SEEDS, "rows": rows}
        options.json.write_text(json.dumps(told, indent=2) + "\n")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rejax", metavar="PYTHON", help="the interpreter of an environment with rejax")
    parser.add_argument("--sbx", metavar="PYTHON", help="the interpreter of an environment with SBX")
    names = [task.name for task in TASKS]
    parser.add_argument("--tasks", action="append", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a library is given up")
    parser.add_argument("--json", type=Path, help="where to write the results")
    return parser.parse_args(arguments)


def _commands(task: Task, options: argparse.Namespace) -> list[tuple[str, list[list[str]]]]:
    """Return the processes of each library that is asked for; together they train all seeds."""
    settings = ["--num-seeds", str(NUM_SEEDS), "--test-every", str(task.interval), "--num-test-episodes", "10"]
    words = [sys.executable, str(FOLDER / "our_seeds.py"), task.ours, task.environment, *settings]
    found = [("ours", [words])]
    of_peer = [task.peer, task.environment, str(task.interval)]
    if options.rejax:
        command = [options.rejax, str(FOLDER / "rejax_seeds.py"), *of_peer, "0", str(NUM_SEEDS)]
        found.append(("rejax", [command]))
    if options.sbx:
        shares = _shares(NUM_SEEDS, min(os.cpu_count() or 1, NUM_SEEDS))
        script = [options.sbx, str(FOLDER / "sbx_seeds.py"), *of_peer]
        found.append(("SBX", [[*script, str(first), str(count)] for first, count in shares]))
    return found


def _shares(total: int, parts: int) -> list[tuple[int, int]]:
    """Return where each of some nearly equal parts begins, and how large it is."""
    ends = [total * part // parts for part in range(parts + 1)]
    return [(begin, end - begin) for begin, end in itertools.pairwise(ends)]


def _measure(commands: list[list[str]], bar: float, limit: float) -> Solved:
    """Run the processes until the mean over all seeds reaches the bar, they end, or the time is up."""
    lines: queue.Queue[tuple[int, float, dict[str, Any] | None]] = queue.Queue()
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false", "JAX_PLATFORMS": "cpu"}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for command in commands]
    readers = [threading.Thread(target=_read, args=(*one, lines)) for one in enumerate(processes)]
    for reader in readers:
        reader.start()
    try:
        return _watch(lines, len(processes), bar, limit)
    finally:
        for process, reader in zip(processes, readers, strict=True):
            process.kill()
            reader.join()
            with process:  # closes its output, and waits for its end
                pass


def _read(number: int, process: subprocess.Popen[str], lines: queue.Queue[Any]) -> None:
    for line in process.stdout or ():
        if line.startswith("{"):
            lines.put((number, time.monotonic(), json.loads(line)))
    lines.put((number, time.monotonic(), None))


def _watch(lines: queue.Queue[Any], num_processes: int, bar: float, limit: float) -> Solved:
    ready: list[float] = []
    rounds: dict[int, list[list[float]]] = {}  # the returns of each process after so many steps
    best, num_ended = float("-inf"), 0
    while num_ended < num_processes:
        try:
            _, now, line = lines.get(timeout=limit)
        except queue.Empty:
            break
        if line is None:
            num_ended += 1
        elif "ready" in line:
            ready.append(now)
        else:
            of_round = rounds.setdefault(line["steps"], [])
            of_round.append(line["returns"])
            if len(of_round) == num_processes:
                mean = statistics.mean(score for scores in of_round for score in scores)
                best = max(best, mean)
                if mean >= bar:
                    return Solved(now - min(ready), line["steps"], best)
        if ready and now - min(ready) > limit:
            break
    return Solved(None, None, best)


def _line(task: Task, found: dict[str, Solved]) -> str:
    parts = []
    for name, (seconds, steps, best) in found.items():
        told = f"not solved (best {best:.1f})" if seconds is None else f"{seconds:.1f} s after {steps:,} steps"
        ours = found["ours"].seconds
        ratio = f", {seconds / ours:.1f}x" if name != "ours" and seconds is not None and ours is not None else ""
        parts.append(f"{name} {told}{ratio}")
    return f"{task.name}, bar {task.bar:g}: " + "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
