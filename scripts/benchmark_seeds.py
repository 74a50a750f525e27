"""What all cores are worth to several seeds: steps a second by themselves on cores, and along an axis of one program.

    python scripts/benchmark_seeds.py                            # DDQN and SAC, five seeds
    python scripts/benchmark_seeds.py --agents sac --seeds 2,8   # of one agent, for two numbers of seeds
    taskset -c 0,1 python scripts/benchmark_seeds.py             # with two cores

The network, batches and updates are those of `benchmark_training.py`. Both ways run in one process and take turns. Each
figure is the median of the repeats, in steps a second of all seeds together. A ratio is the median of the ratios of
neighboring repeats, with the quartiles in brackets. Compilation is not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from benchmark_training import TASKS, Cell, Experiment, Repeat, interleaved

from algorithms.runs.side_by_side import InOneProgram, OnCores, Way, num_cores
from algorithms.training import loop

CAPACITY = 10_000


def main(arguments: list[str]) -> int:
    """Measure, print the table and write JSON."""
    options = _options(arguments)
    print(f"{num_cores()} cores; environment steps a second, of all seeds together")
    rows = [
        _row(Cell(agent, num_seeds, hidden, CAPACITY), options)
        for agent in options.agents
        for hidden in options.hidden
        for num_seeds in options.seeds
    ]
    if options.json:
        results = {"device": str(jax.devices()[0]), "cores": num_cores(), "rows": rows}
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ", ".join(TASKS)
    parser.add_argument("--agents", type=_agents, default="ddqn,sac", help=f"separated by commas, among {known}")
    parser.add_argument("--hidden", type=_numbers, default="64", help="widths of the two hidden layers")
    parser.add_argument("--seeds", type=_numbers, default="5", help="numbers of seeds side by side")
    parser.add_argument("--steps", type=int, default=1_024, help="of every seed in one repeat")
    parser.add_argument("--repeats", type=int, default=9, help="of every figure")
    parser.add_argument("--json", type=Path, help="where to write the results")
    return parser.parse_args(arguments)


def _agents(text: str) -> list[str]:
    if unknown := set(text.split(",")) - set(TASKS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))} is not among {', '.join(TASKS)}")
    return text.split(",")


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers") from None


def _row(cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    ways: dict[str, Way] = {
        "on cores": OnCores(min(num_cores(), cell.num_seeds)),
        "in one program": InOneProgram(),
    }
    repeats = {name: _repeat(cell, way, options.steps) for name, way in ways.items()}
    times = {name: np.array(values) for name, values in interleaved(repeats, options.repeats).items()}
    row: dict[str, Any] = cell._asdict() | {
        name: float(1e6 * cell.num_seeds / np.median(values)) for name, values in times.items()
    }
    row["ratio"] = np.quantile(times["in one program"] / times["on cores"], [0.25, 0.5, 0.75]).tolist()
    text = "  ".join(f"{name} {row[name]:,.0f}" for name in ways)
    print(f"  {cell}  {text}  " + "{1:.2f}x ({0:.2f} to {2:.2f})".format(*row["ratio"]), flush=True)
    return row


def _repeat(cell: Cell, way: Way, num_steps: int) -> Repeat:
    """Return a function that runs all seeds for `num_steps` each, and returns microseconds a step of one seed."""
    agent, buffer, env, plan = Experiment.of(cell)

    def begin(key: jax.Array) -> Any:
        return loop.init(key, agent, buffer, env, plan)

    def advance(count: int) -> Callable[[jax.Array, Any], Any]:
        return lambda _, state: loop.run(state, agent, buffer, env, plan, count)

    keys = way.split(jax.random.split(jax.random.key(0), cell.num_seeds))
    num_iterations = max(num_steps // plan.update_every, 1)
    run = way.repeated(advance, num_iterations, keys, way.shapes(begin, keys))
    holder = [run(way.compiled(begin, gives_state=True)(keys))]

    def repeat() -> float:
        begun = time.perf_counter()
        holder[0] = run(holder[0])
        jax.block_until_ready(getattr(holder[0], "states", holder[0]))
        return 1e6 * (time.perf_counter() - begun) / (num_iterations * plan.update_every)

    return repeat


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
