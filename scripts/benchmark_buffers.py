"""Time this library's buffers, and flashbax's beside them, and tell which speed targets are met.

    python scripts/benchmark_buffers.py --quick
    python scripts/benchmark_buffers.py --capacities 2^20 --kinds prioritized --json result.json

The cells, each timed on a full buffer whose transitions are 41 floats and two flags:

* `update`: set 256 priorities (prioritized only), at slots spread as stratified draws spread them;
* `sample`: draw 256 transitions. Every leaf of the batch and the weights are summed up, so that nothing is left out;
  flashbax has no weights, so its side forms `probabilities^-beta`, divided by the largest of the batch;
* `add`: append 128 transitions;
* `loop`: add, sample and, if prioritized, update with priorities that come from the batch.

One repetition is one jitted `lax.scan` of many steps whose state is donated. The libraries take turns in one process
and get the same fresh random numbers. Times are microseconds a step: the median and, in brackets, the quartiles. A
ratio is that of the medians, with the quartiles of the ratios of neighboring repetitions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl_buffers as jb

try:
    import flashbax as fbx
except ImportError:
    fbx = None

PyTree = Any
Record = dict[str, Any]
OURS, FLASHBAX = "jaxrl_buffers", "flashbax"
KINDS = ("uniform", "prioritized")
NUM_ADDED, BATCH_SIZE = 128, 256
NUM_CHUNKS = 64  # different chunks, which adds take in turn
ALPHA, BETA = 0.6, 0.4
MIN_REPEATS = 5  # whatever the time limit
RATIO_CAPACITY, GROWTH_CAPACITIES = 2**20, (2**16, 2**22)
RATIO_TARGETS = {
    "uniform": {"add": 1, "sample": 0.8},
    "prioritized": {"loop": 0.4, "sample": 0.7, "update": 1, "add": 1},
}
GROWTH_TARGETS = {"uniform": 1.5, "prioritized": 2.0}
# The operations of each cell and the steps of one repetition, which should take some ten milliseconds. `update` alone
# comes first: it names slots as they are before other cells move the ring.
CELLS = {
    "update": (("update",), 256),
    "sample": (("sample",), 256),
    "add": (("add",), 512),
    "loop": (("add", "sample", "update"), 128),
}


class Buffer(NamedTuple):
    """One buffer of one library behind a common face."""

    init: Callable[[PyTree], PyTree]  # example -> state
    add: Callable[[PyTree, PyTree], PyTree]  # state, leaves [128, ...] -> state
    sample: Callable[[PyTree, jax.Array], tuple[PyTree, PyTree, PyTree]]  # state, key -> batch, weights, handle
    update: Callable[[PyTree, PyTree, jax.Array], PyTree] | None  # state, handle, priorities -> state
    handle: Callable[[jax.Array], PyTree]  # slots, numbered as they were first filled -> handle


def make_ours(kind: str, capacity: int) -> Buffer:
    """Return this library's buffer."""
    sampler = jb.Prioritized(alpha=ALPHA, beta=BETA) if kind == "prioritized" else jb.Uniform()
    buffer = jb.ReplayBuffer(sampler, jb.NStep(n=1), length=capacity // NUM_ADDED, num_envs=NUM_ADDED)

    def sample(state: PyTree, key: jax.Array) -> tuple[PyTree, PyTree, PyTree]:
        batch, handle, weights = buffer.sample(state, key, BATCH_SIZE)
        return batch, weights, handle if kind == "prioritized" else ()

    return Buffer(
        init=buffer.init,
        add=lambda state, chunk: buffer.add(state, jax.tree.map(lambda leaf: leaf[None], chunk)),
        sample=sample,
        update=buffer.update_priorities if kind == "prioritized" else None,
        handle=lambda slots: jb.Handle(slots % NUM_ADDED, slots // NUM_ADDED),
    )


def make_flashbax(kind: str, capacity: int) -> Buffer:
    """Return flashbax's buffer of independent transitions."""
    options = {"max_length": capacity, "min_length": 1, "sample_batch_size": BATCH_SIZE, "add_batches": True}
    if kind == "uniform":
        buffer = fbx.make_item_buffer(**options)
        return Buffer(buffer.init, buffer.add, lambda *xs: (buffer.sample(*xs).experience, (), ()), None, jnp.asarray)
    buffer = fbx.make_prioritised_item_buffer(**options, priority_exponent=ALPHA, device=jax.default_backend())

    def sample(state: PyTree, key: jax.Array) -> tuple[PyTree, PyTree, PyTree]:
        drawn = buffer.sample(state, key)
        weights = drawn.probabilities**-BETA
        return drawn.experience, weights / jnp.max(weights), drawn.indices

    return Buffer(buffer.init, buffer.add, sample, buffer.set_priorities, jnp.asarray)


PEERS = {OURS: make_ours} | ({FLASHBAX: make_flashbax} if fbx else {})


def random_chunks(rng: np.random.Generator) -> jb.Transition:
    """Return what is added: leaves `[64, 128, ...]`."""
    obs, action, next_obs = (rng.normal(size=(NUM_CHUNKS, NUM_ADDED, size)) for size in (17, 6, 17))
    terminated, truncated = rng.random((2, NUM_CHUNKS, NUM_ADDED)) < 0.01
    chunks = jb.Transition(obs, action, rng.normal(size=(NUM_CHUNKS, NUM_ADDED)), terminated, truncated, next_obs)
    return jax.tree.map(jnp.asarray, chunks)


def step_inputs(rng: np.random.Generator, capacity: int, steps: int) -> tuple[jax.Array, ...]:
    """Draw for each step the chunk to add, a key to sample with, and slots `[256]` to update with priorities."""
    keys = jax.random.wrap_key_data(rng.integers(2**32, size=(steps, 2), dtype=np.uint32), impl="threefry2x32")
    places = (np.arange(BATCH_SIZE) + rng.random((steps, BATCH_SIZE))) / BATCH_SIZE
    slots, priorities = (places * capacity).astype(np.int32), rng.lognormal(size=places.shape)
    return jax.block_until_ready((jnp.arange(steps) % NUM_CHUNKS, keys, jnp.asarray(slots), jnp.asarray(priorities)))


def run(buffer: Buffer, operations: tuple[str, ...], state: PyTree, chunks: jb.Transition, inputs: tuple) -> PyTree:
    """Scan over the steps of one repetition; return the state and the sum of all that was sampled."""

    def step(carry: tuple[PyTree, jax.Array], xs: tuple) -> tuple[tuple[PyTree, jax.Array], None]:
        (state, total), (number, key, handle, priorities) = carry, xs
        if operations == ("sample",):
            # Real loops change the state. Where XLA sees that this one does not, it hoists parts of flashbax's draw
            # and then misses a simplification.
            state = jax.lax.optimization_barrier(state)
        if "add" in operations:
            chunk = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False), chunks)
            state = buffer.add(state, chunk)
        if "sample" in operations:
            batch, weights, handle = buffer.sample(state, key)
            total += sum(jnp.sum(leaf, dtype=jnp.float32) for leaf in jax.tree.leaves((batch, weights, handle)))
            priorities = jnp.abs(batch.reward)
        if "update" in operations and buffer.update:
            state = buffer.update(state, handle, priorities)
        return (state, total), None

    numbers, keys, slots, priorities = inputs
    return jax.lax.scan(step, (state, jnp.float32(0)), (numbers, keys, buffer.handle(slots), priorities))[0]


def fill(buffer: Buffer, capacity: int, chunks: jb.Transition) -> PyTree:
    """Return a full state with log-normal priorities: a few are much larger than most."""
    numbers = jnp.arange(capacity // NUM_ADDED) % NUM_CHUNKS
    inputs = (numbers, numbers, jnp.arange(capacity).reshape(-1, NUM_ADDED), jnp.exp(chunks.obs[:, :, 0])[numbers])
    add_and_update = jax.jit(partial(run, buffer, ("add", "update")), donate_argnums=0)
    return add_and_update(buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunks)), chunks, inputs)[0]


def measure(kind: str, capacity: int, args: argparse.Namespace) -> Iterator[Record]:
    """Fill a buffer of each library and time the cells on it."""
    rng = np.random.default_rng(0)
    chunks = random_chunks(rng)
    buffers = {name: make(kind, capacity) for name, make in PEERS.items()}
    states = {name: fill(buffer, capacity, chunks) for name, buffer in buffers.items()}
    for cell in [cell for cell in CELLS if cell in args.cells and (cell != "update" or buffers[OURS].update)]:
        operations, steps = CELLS[cell]
        runs = {name: jax.jit(partial(run, buffers[name], operations), donate_argnums=0) for name in buffers}
        times, begin = {name: [] for name in runs}, time.perf_counter()
        for repetition in range(args.repeats + 1):
            inputs = step_inputs(rng, capacity, steps)
            for name in list(runs)[:: -1 if repetition % 2 else 1]:
                start = time.perf_counter()
                states[name], _ = jax.block_until_ready(runs[name](states[name], chunks, inputs))
                times[name].append((time.perf_counter() - start) * 1e6 / steps)
            if repetition >= MIN_REPEATS and time.perf_counter() - begin > args.seconds:
                break
        times = {name: np.array(values[1:]) for name, values in times.items()}  # the first repetition compiled
        yield {"kind": kind, "cell": cell, "capacity": capacity, **summarize(times)}


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
    """Write a power of two as such."""
    exponent = capacity.bit_length() - 1
    return f"2^{exponent}" if capacity == 2**exponent else str(capacity)


def spread(values: dict[str, float], digits: int) -> str:
    """Write a median with its quartiles."""
    return "{median:.{digits}f} [{q1:.{digits}f}, {q3:.{digits}f}]".format(**values, digits=digits)


def growths(results: list[Record]) -> list[Record]:
    """Return by which factor our times grow with the capacity."""
    medians = {(result["kind"], result["cell"], result["capacity"]): result["us"][OURS]["median"] for result in results}
    capacities = {capacity for *_, capacity in medians}
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
        limit = RATIO_TARGETS[result["kind"]].get(result["cell"])
        if limit and result["capacity"] == RATIO_CAPACITY and FLASHBAX in result["ratio"]:
            name = f"{result['kind']} {result['cell']} at {power(RATIO_CAPACITY)}, ratio to {FLASHBAX}"
            found.append((name, limit, result["ratio"][FLASHBAX]["median"]))
    for growth in grown:
        if (growth["from"], growth["to"]) == GROWTH_CAPACITIES:
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
    add("--kinds", nargs="+", choices=KINDS, default=KINDS, help="default: all")
    add("--cells", nargs="+", choices=CELLS, default=list(CELLS), help="default: all")
    add("--capacities", nargs="+", type=capacity_number, help="2^20 or 1048576; default: 2^13 2^16 2^20 2^22")
    add("--repeats", type=int, help="repetitions of each cell; default: 40")
    add("--seconds", type=float, default=np.inf, help="end a cell after so long, but not before 5 repetitions")
    add("--json", type=Path, metavar="PATH", help="write all results to this file too")
    args = parser.parse_args()
    args.capacities = sorted(set(args.capacities or ())) or [2**13, 2**16, *([] if args.quick else [2**20, 2**22])]
    args.repeats = (MIN_REPEATS if args.quick else 40) if args.repeats is None else args.repeats
    if args.repeats < 1 or not args.seconds > 0:
        parser.error("--repeats and --seconds must be positive")
    if set(args.cells) == {"update"} and "prioritized" not in args.kinds:
        parser.error("--cells: update needs --kinds prioritized")
    if args.json and (args.json.is_dir() or not os.access(args.json.resolve().parent, os.W_OK)):
        parser.error(f"--json: cannot write {args.json}")
    return args


def main() -> None:
    """Measure and report."""
    args = parse_arguments()
    if not fbx:
        print('flashbax is not installed, so only our own times follow: pip install -e ".[peers]"')
    row = "{:13}{:8}{:10}" + "{:26}" * (2 * len(PEERS) - 1)
    theirs = [f"ratio to {name}" for name in PEERS if name != OURS]
    print(row.format("kind", "cell", "capacity", *(f"{name} us" for name in PEERS), *theirs).rstrip(), flush=True)
    results = []
    for kind, capacity in itertools.product(args.kinds, args.capacities):
        for result in measure(kind, capacity, args):
            times = [spread(us, digits=1) for us in result["us"].values()]
            ratios = [spread(ratio, digits=2) for ratio in result["ratio"].values()]
            print(row.format(kind, result["cell"], power(capacity), *times, *ratios).rstrip(), flush=True)
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
