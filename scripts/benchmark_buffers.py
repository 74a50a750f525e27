"""Time this library's buffers and others for comparison, and report which speed targets are met.

    python scripts/benchmark_buffers.py --quick
    python scripts/benchmark_buffers.py --capacities 2^20 --kinds prioritized --json result.json

The plain kinds, `uniform` and `prioritized`, are compared with flashbax. `frames`, whose rows have stacked images of
shape (84, 84, 4), is compared with a buffer that stores whole images. All other kinds are compared with the plain
prioritized buffer.

These are the cells. Each is timed on a full buffer whose transitions are 41 floats and two flags:

* `update`: set 256 priorities (prioritized only), at slots that are spread like stratified draws;
* `sample`: draw 256 transitions. Every leaf of the batch and the weights are summed up, so that the compiler leaves
  nothing out. flashbax has no weights, so they are computed for it: `probabilities^-beta`, divided by the largest of
  the batch;
* `add`: append 128 transitions;
* `loop`: add, sample and, if prioritized, update with priorities that come from the batch.

One repetition is one jitted `lax.scan` of many steps whose state is donated. The libraries take turns in one process
and get the same fresh random numbers. Times are microseconds per step: the median and, in brackets, the quartiles.
A ratio is the ratio of the medians. Its brackets are the quartiles of the ratios of neighboring repetitions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import time
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from benchmarked_buffers import (
    BATCH_SIZE,
    FLASHBAX,
    KINDS,
    NUM_ADDED,
    OURS,
    contenders,
    fbx,
    fill,
    random_chunks,
    run,
    step_inputs,
)
from benchmarked_buffers import make_ours as make_ours  # benchmark_commits.py finds it here, in old checkouts too

Record = dict[str, Any]
MIN_REPEATS = 5  # whatever the time limit
RATIO_CAPACITY, GROWTH_CAPACITIES = 2**20, (2**16, 2**22)
RATIO_TARGETS = {
    "uniform": {"add": 1, "sample": 0.8},
    "prioritized": {"loop": 0.4, "sample": 0.7, "update": 1, "add": 1},
}
GROWTH_TARGETS = {"uniform": 1.5, "prioritized": 2.0}
LOOP_TARGET = 2.0  # for all other kinds, relative to the plain prioritized loop
FRAMES_TARGETS = {"sample": 1.5, "bytes": 0.16}
FRAMES_CAPACITY = 2**13  # half a gigabyte if kept whole
# The operations of each cell and the steps of one repetition, which should take some ten milliseconds. `update` alone
# comes first: it names slots as they are before other cells move the ring.
CELLS = {
    "update": (("update",), 256),
    "sample": (("sample",), 256),
    "add": (("add",), 512),
    "loop": (("add", "sample", "update"), 128),
}


def measure(kind: str, capacity: int, args: argparse.Namespace) -> Iterator[Record]:
    """Fill the buffers of a kind and time the cells on them."""
    rng = np.random.default_rng(0)
    chunks = random_chunks(kind, rng)
    buffers = contenders(kind, capacity)
    states = {name: fill(buffer, capacity, chunks) for name, buffer in buffers.items()}
    num_bytes = {name: sum(leaf.nbytes for leaf in jax.tree.leaves(state)) for name, state in states.items()}
    for cell in [cell for cell in CELLS if cell in args.cells and (cell != "update" or buffers[OURS].update)]:
        operations, steps = CELLS[cell]
        steps = steps // 8 if kind == "frames" else steps
        runs = {name: jax.jit(partial(run, buffers[name], operations), donate_argnums=0) for name in buffers}
        times, begin = {name: [] for name in runs}, time.perf_counter()
        for repetition in range(args.repeats + 1):
            inputs = step_inputs(rng, capacity, steps, chunks.reward.shape[0])
            for name in list(runs)[:: -1 if repetition % 2 else 1]:
                start = time.perf_counter()
                states[name], _ = jax.block_until_ready(runs[name](states[name], chunks, inputs))
                times[name].append((time.perf_counter() - start) * 1e6 / steps)
            if repetition >= MIN_REPEATS and time.perf_counter() - begin > args.seconds:
                break
        times = {name: np.array(values[1:]) for name, values in times.items()}  # the first repetition compiled
        yield {"kind": kind, "cell": cell, "capacity": capacity, "bytes": num_bytes, **summarize(times)}


def summarize(times: dict[str, np.ndarray]) -> Record:
    """Return the quartiles of the times by library, and of the ratios of ours to theirs."""

    def quartiles(values: np.ndarray) -> dict[str, float]:
        return dict(zip(("q1", "median", "q3"), np.percentile(values, (25, 50, 75)).tolist(), strict=True))

    us = {name: quartiles(values) for name, values in times.items()}
    ratios = {name: quartiles(times[OURS] / values) for name, values in times.items() if name != OURS}
    for name, ratio in ratios.items():
        ratio["median"] = us[OURS]["median"] / us[name]["median"]
    return {"repeats": times[OURS].size, "us": us, "ratio": ratios}


def power(capacity: int) -> str:
    """Return a power of two as text, such as `2^20`."""
    exponent = capacity.bit_length() - 1
    return f"2^{exponent}" if capacity == 2**exponent else str(capacity)


def spread(values: dict[str, float], digits: int) -> str:
    """Write a median with its quartiles."""
    return "{median:.{digits}f} [{q1:.{digits}f}, {q3:.{digits}f}]".format(**values, digits=digits)


def growths(results: list[Record]) -> list[Record]:
    """Return by which factor our times grow with the capacity."""
    medians = {
        (result["kind"], result["cell"], result["capacity"]): result["us"][OURS]["median"]
        for result in results
        if result["kind"] != "frames"
    }
    capacities = {capacity for *_, capacity in medians} or {0}
    small, large = GROWTH_CAPACITIES if capacities >= set(GROWTH_CAPACITIES) else (min(capacities), max(capacities))
    found = []
    for kind, cell in dict.fromkeys(key[:2] for key in medians):
        name = f"{kind} {cell}, growth from {power(small)} to {power(large)}"
        factor = medians[kind, cell, large] / medians[kind, cell, small]
        found.append({"name": name, "kind": kind, "cell": cell, "from": small, "to": large, "factor": factor})
    return found if small < large else []


def targets(results: list[Record], grown: list[Record]) -> list[Record]:
    """Return the targets whose capacities were measured, and whether they were met."""
    found = []
    for result in results:
        kind, cell, capacity = (result[name] for name in ("kind", "cell", "capacity"))
        for rival, ratio in result["ratio"].items():
            limits = RATIO_TARGETS.get(kind, FRAMES_TARGETS if kind == "frames" else {"loop": LOOP_TARGET})
            wanted = FRAMES_CAPACITY if kind == "frames" else RATIO_CAPACITY
            if cell in limits and capacity == wanted:
                found.append((f"{kind} {cell} at {power(capacity)}, ratio to {rival}", limits[cell], ratio["median"]))
            if (kind, cell) == ("frames", "sample"):
                share = result["bytes"][OURS] / result["bytes"][rival]
                found.append((f"frames, bytes in proportion to {rival}", FRAMES_TARGETS["bytes"], share))
    for growth in grown:
        if (growth["from"], growth["to"]) == GROWTH_CAPACITIES and growth["kind"] in GROWTH_TARGETS:
            found.append((growth["name"], GROWTH_TARGETS[growth["kind"]], growth["factor"]))
    return [{"name": name, "limit": limit, "reached": value, "met": value <= limit} for name, limit, value in found]


def capacity_number(text: str) -> int:
    """Read `2^20` or `1048576`."""
    match = re.fullmatch(r"2\^(\d{1,2})|(\d{1,10})", text)
    capacity = 0 if not match else 2 ** int(match[1]) if match[1] else int(match[2])
    if capacity < BATCH_SIZE or capacity % NUM_ADDED or capacity >= 2**30:
        raise argparse.ArgumentTypeError(f"{text!r} is not a multiple of {NUM_ADDED} from {BATCH_SIZE} to below 2^30")
    return capacity


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    about, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(description=about, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: {message}\n")
    add = parser.add_argument
    add("--quick", action="store_true", help="capacities 2^13 and 2^16 and 5 repetitions, unless given: under 40 s")
    add("--kinds", nargs="+", choices=KINDS, default=tuple(RATIO_TARGETS), help="default: uniform prioritized")
    add("--cells", nargs="+", choices=CELLS, default=list(CELLS), help="default: all")
    add(
        "--capacities",
        nargs="+",
        type=capacity_number,
        help="2^20 or 1048576; default: 2^13 2^16 2^20 2^22; frames: 2^13",
    )
    add("--repeats", type=int, help="repetitions of each cell; default: 40")
    add("--seconds", type=float, default=np.inf, help="end a cell after so long, but not before 5 repetitions")
    add("--json", type=Path, metavar="PATH", help="write all results to this file too")
    args = parser.parse_args()
    args.capacities = sorted(set(args.capacities or ())) or [2**13, 2**16, *([] if args.quick else [2**20, 2**22])]
    args.repeats = (MIN_REPEATS if args.quick else 40) if args.repeats is None else args.repeats
    if args.repeats < 1 or not args.seconds > 0:
        parser.error("--repeats and --seconds must be positive")
    if set(args.cells) == {"update"} and set(args.kinds) <= {"uniform", "episodic"}:
        parser.error("--cells: update needs a kind with priorities")
    if args.json and (args.json.is_dir() or not os.access(args.json.resolve().parent, os.W_OK)):
        parser.error(f"--json: cannot write {args.json}")
    return args


def main() -> None:
    """Measure and report."""
    args = parse_arguments()
    if not fbx:
        print('flashbax is not installed, so only our own times follow: pip install -e ".[peers]"')
    row = "{:20}{:8}{:10}{:26}{:19}{:26}{}"
    print(row.format("kind", "cell", "capacity", "ours us", "beside", "us", "ratio"), flush=True)
    results = []
    for kind, capacity in itertools.product(args.kinds, args.capacities):
        if kind == "frames" and capacity != args.capacities[0]:
            continue
        capacity = FRAMES_CAPACITY if kind == "frames" else capacity
        for result in measure(kind, capacity, args):
            ours, *theirs = (spread(us, digits=1) for us in result["us"].values())
            ratios = [spread(ratio, digits=2) for ratio in result["ratio"].values()]
            rivals = [*result["ratio"], *theirs, *ratios] or ["", "", ""]
            print(row.format(kind, result["cell"], power(capacity), ours, *rivals).rstrip(), flush=True)
            results.append(result)
    machine = {"cpu_count": os.cpu_count(), "platform": jax.default_backend(), "device": jax.devices()[0].device_kind}
    versions = {name: metadata.version(name) for name in ("jax", "jaxlib", *([FLASHBAX] if fbx else []))}
    report = {"machine": machine | versions, "results": results, "growth": growths(results)}
    report["targets"] = targets(results, report["growth"])
    for growth in report["growth"]:
        print(f"ours     {growth['name']}: {growth['factor']:.2f}")
    for target in report["targets"]:
        verdict = "met" if target["met"] else "NOT MET"
        print(f"{verdict:8} {target['name']}: {target['reached']:.2f}, at most {target['limit']}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
