"""Print what training costs on many devices: what crosses between them, their memory, and speed on parts of a CPU.

    python scripts/benchmark_scaling.py                                  # measures on this machine's CPU
    bash scripts/test --accelerators                                     # sets up the environment with the compilers
    .venv-accelerators/bin/python scripts/benchmark_scaling.py           # also compiles for TPU v5e and H100
    .venv-accelerators/bin/python scripts/benchmark_scaling.py --only compiled --json result.json

The program is SAC with networks of 256x256 and prioritized replay in Pendulum-v1, see parallel_programs.py. Every
iteration takes one step in 16 environments a device, and makes one update with 256 samples a device.

Compiled, for 10^9 transitions in all, split over the devices. No such program runs:

* collectives, bytes: how often devices exchange data in one iteration, and the size of what each has afterwards;
* memory: what each device holds all the time, and what it needs in addition for a while; as the compiler says;
* seconds to compile, on this machine.

Measured, with this CPU counted as two devices. Rounds of both alternate, and the speed is that of the fastest:

* one seed: two devices of 128 samples against one device of 256 samples. Networks of 256x256 use all cores already;
* two seeds with networks of 64x64: one seed on each device against both seeds on one device.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ["JAX_NUM_CPU_DEVICES"] = "2"  # JAX reads it when it is imported

import compilers
import jax
from compiled_programs import collectives
from parallel_programs import Task, bytes_of_device, num_parameters

from algorithms.training import parallel

Record = dict[str, Any]
NUM_TRANSITIONS = 10**9
NUM_ENVS = 16  # on each device
TARGETS = {"one seed": 0.85, "two seeds": 1.7}


def measure_compiled(counts: dict[str, list[int]], num_transitions: int = NUM_TRANSITIONS) -> list[Record]:
    """Compile for so many devices of each kind, print a line for each, and return the figures."""
    print(f"{'':9}{'devices':>8}{'collectives':>13}{'bytes':>11}{'memory':>11}{'in addition':>13}{'seconds':>9}")
    return [_compiled(kind, count, num_transitions) for kind in counts for count in counts[kind]]


def _compiled(kind: str, count: int, num_transitions: int) -> Record:
    rows = -(-num_transitions // (count * NUM_ENVS))
    task = Task(slots=rows * NUM_ENVS, num_envs=NUM_ENVS, platform=kind)
    mesh = parallel.make_mesh(count, devices=compilers.devices(kind, count))
    like = task.shapes(mesh)
    record = {"kind": kind, "devices": count, "held": bytes_of_device(like), "parameters": num_parameters(like)}
    begun = time.perf_counter()
    try:
        compiled = task.run(mesh, 3).lower(like).compile()
    except jax.errors.JaxRuntimeError as error:
        record["error"] = str(error).splitlines()[0]
        print(f"{compilers.NAMES[kind]:9}{count:8,}   does not fit: {record['held'] / 1e9:,.1f} GB on a device")
        return record
    memory, crossing = compiled.memory_analysis(), collectives(compiled)
    record |= {
        "seconds": time.perf_counter() - begun,
        "collectives": [one.operation for one in crossing],
        "bytes": sum(one.num_bytes for one in crossing),
        "memory": memory.argument_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
    }
    print(
        f"{compilers.NAMES[kind]:9}{count:8,}{len(crossing):13}{record['bytes']:11,}{record['memory'] / 1e9:8.2f} GB"
        f"{record['temporary'] / 1e6:10.1f} MB{record['seconds']:9.1f}"
    )
    return record


def measure_cpu(num_iterations: int, num_rounds: int) -> list[Record]:
    """Measure on one and on two devices of the CPU, print a line for each comparison, and return the figures."""
    small, large = (64, 64), (256, 256)
    keys = jax.random.split(jax.random.key(0), 2)
    one_seed = (
        (Task(large, 2**17, 2 * NUM_ENVS, 256), parallel.make_mesh(1), keys[0]),
        (Task(large, 2**16, NUM_ENVS, 128), parallel.make_mesh(2), keys[0]),
    )
    task = Task(small, 2**16, NUM_ENVS, 256)
    two_seeds = tuple((task, parallel.make_mesh(1, num_groups), keys) for num_groups in (1, 2))
    cases = {"one seed": one_seed, "two seeds": two_seeds}
    return [_compared(name, case, num_iterations, num_rounds) for name, case in cases.items()]


def _compared(name: str, cases: Any, num_iterations: int, num_rounds: int) -> Record:
    programs = [(task.run(mesh, num_iterations), task.begin(mesh)(key)) for task, mesh, key in cases]
    states = [jax.block_until_ready(run(state)) for run, state in programs]  # compiled, and warm
    best = [float("inf")] * len(states)
    for _ in range(num_rounds):
        for number, (run, _) in enumerate(programs):
            begun = time.perf_counter()
            states[number] = jax.block_until_ready(run(states[number]))
            best[number] = min(best[number], time.perf_counter() - begun)
    num_steps = 2 * NUM_ENVS * num_iterations  # the same in both: of one seed, or of both
    speeds = [num_steps / seconds for seconds in best]
    ratio, target = speeds[1] / speeds[0], TARGETS[name]
    verdict = "met" if ratio >= target else "NOT MET"
    print(f"{name:10}{speeds[0]:10,.0f} steps/s on one device,{speeds[1]:10,.0f} on two: {ratio:.2f}x, ", end="")
    print(f"at least {target}x: {verdict}")
    return {"name": name, "steps_per_second": speeds, "ratio": ratio, "target": target, "met": ratio >= target}


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    about, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=about, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: {message}\n")
    parser.add_argument("--quick", action="store_true", help="few devices and few rounds, to see that it works")
    parser.add_argument("--only", choices=("measured", "compiled"), help="leave out the other part")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all results to this file too")
    args = parser.parse_args()
    if args.json and (args.json.is_dir() or not os.access(args.json.resolve().parent, os.W_OK)):
        parser.error(f"--json: cannot write {args.json}")
    return args


def main() -> None:
    """Measure, compile and report."""
    args = parse_arguments()
    results: Record = {}
    if args.only != "compiled":
        results["measured"] = measure_cpu(*((20, 1) if args.quick else (500, 7)))
    if args.only == "measured":
        print("not compiled for TPU and GPU, as asked.")
    elif set(compilers.installed()) == set(compilers.NAMES):
        counts = {kind: list(numbers) for kind, numbers in compilers.TOPOLOGIES.items()}
        if args.quick:
            results["compiled"] = measure_compiled({"gpu": counts["gpu"][:2]}, num_transitions=10**6)
        else:
            results["compiled"] = measure_compiled(counts)
    else:
        print("the compilers for TPU and GPU are not installed here; `bash scripts/test --accelerators` installs them.")
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
