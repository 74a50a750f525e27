"""Compile this library and flashbax for TPU v5e and H100, and print the compilers' estimates. No program runs.

    bash scripts/test --accelerators                                     # sets up the environment with the compilers
    .venv-accelerators/bin/python scripts/benchmark_accelerators.py
    .venv-accelerators/bin/python scripts/benchmark_accelerators.py --quick --json result.json

The loops are those of benchmark_buffers.py. In every step they add 128 transitions of 41 floats and two flags, sample
256, sum up every leaf of the batch and the weights, and update 256 priorities, if there are any. Every step takes its
rows and its key from arrays; this, and making random numbers from the key, is counted too. flashbax has no n-step
returns, so its sequences of three steps are summed up to n-step returns.

* cycles: the TPU compiler's estimate for one step, without gathers, scatters and plain writes of slices;
* copies: arrays of 100,000 elements or more that are copied, padded, converted or transposed in every step;
* kernels: operations of one step that the device starts separately.

The training programs are a chunk of scripts/train.py with batches of 256: ten iterations, each of which takes one step
in every environment and makes one update. Their cycles are the sum over all loops of one step of each. The seconds of
compiling are measured on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import compilers
import jax
import jax.numpy as jnp
import numpy as np
from benchmark_buffers import power
from benchmarked_buffers import (
    ALPHA,
    BATCH_SIZE,
    BETA,
    FLASHBAX,
    NUM_ADDED,
    OURS,
    Buffer,
    fbx,
    make_flashbax,
    make_ours,
    random_chunks,
)
from compiled_programs import Report, report

import jaxrl_buffers as jb
from algorithms import Plan
from algorithms.runs.build import build
from algorithms.runs.settings import Settings
from algorithms.training import loop

Record = dict[str, Any]
SMALL, LARGE = 2**16, 2**20
LARGE_ARRAY = 100_000  # elements
GAMMA = 0.99
NUM_ITERATIONS = 10


class Cell(NamedTuple):
    """One loop."""

    sampler: str
    n_step: int
    capacity: int

    def __str__(self) -> str:
        return f"{self.sampler} {self.n_step}-step, {power(self.capacity)}"


SAMPLERS, N_STEPS = ("uniform", "prioritized"), (1, 3)
CELLS = [Cell(sampler, n, capacity) for sampler in SAMPLERS for n in N_STEPS for capacity in (SMALL, LARGE)]
# At 2^20 slots.
CYCLES = {("uniform", 1): 30e3, ("uniform", 3): 45e3, ("prioritized", 1): 175e3, ("prioritized", 3): 190e3}
KERNELS = {("uniform", 1): 9, ("uniform", 3): 14, ("prioritized", 1): 36, ("prioritized", 3): 38}
GROWTH = 1.2  # of cycles, from 2^16 slots to 2^20
PROGRAM = {"temp_bytes": 20e6, "cycles": 0.8e6}
SECONDS = {"tpu": 20, "gpu": 12}


def make_buffer(library: str, kind: str, cell: Cell) -> Buffer:
    """Return the buffer of a library, as it is on a kind of accelerator."""
    if library == OURS:
        return make_ours(cell.sampler, cell.capacity, view=jb.NStep(cell.n_step, GAMMA), platform=kind)
    with mock.patch("jax.devices"):  # flashbax chooses its functions by the devices that JAX has
        if cell.n_step == 1:
            return make_flashbax(cell.sampler, cell.capacity, kind)
        return make_flashbax_sequences(cell, kind)


def make_flashbax_sequences(cell: Cell, kind: str) -> Buffer:
    """Return flashbax's buffer of sequences, summed up to n-step returns."""
    options = {
        "add_batch_size": NUM_ADDED,
        "sample_batch_size": BATCH_SIZE,
        "sample_sequence_length": cell.n_step,
        "period": 1,
        "min_length_time_axis": cell.n_step,
        "max_length_time_axis": cell.capacity // NUM_ADDED,
    }
    is_uniform = cell.sampler == "uniform"
    if is_uniform:
        buffer = fbx.make_trajectory_buffer(**options)
    else:
        buffer = fbx.make_prioritised_trajectory_buffer(**options, priority_exponent=ALPHA, device=kind)

    def sample(state: Any, key: jax.Array) -> tuple[Any, Any, Any]:
        drawn = buffer.sample(state, key)
        batch = summed_up(drawn.experience)
        if is_uniform:
            return batch, (), ()
        weights = drawn.probabilities**-BETA
        return batch, weights / jnp.max(weights), drawn.indices

    def add(state: Any, chunk: jb.Transition) -> Any:
        return buffer.add(state, jax.tree.map(lambda leaf: leaf[:, None], chunk))

    return Buffer(buffer.init, add, sample, None if is_uniform else buffer.set_priorities, jnp.asarray)


def summed_up(rows: jb.Transition) -> jb.Batch:
    """Make a batch of n-step returns from sequences `[B, n, ...]`; rewards after the end of an episode do not count."""
    ended = rows.terminated | rows.truncated
    counts = jnp.cumulative_sum(ended, axis=1, include_initial=True)[:, :-1] == 0
    discounts = GAMMA ** jnp.arange(ended.shape[1], dtype=jnp.float32)[None]
    last = jnp.sum(counts, axis=1) - 1
    picked = jax.tree.map(lambda leaf: leaf[jnp.arange(BATCH_SIZE), last], rows)
    first = jax.tree.map(lambda leaf: leaf[:, 0], rows)
    discount = GAMMA ** (last + 1.0) * ~picked.terminated
    reward = jnp.sum(rows.reward * discounts * counts, axis=1)
    return jb.Batch(first.obs, first.action, reward, discount, picked.next_obs, jnp.ones(BATCH_SIZE, bool))


def compile_loop(library: str, kind: str, cell: Cell) -> Report:
    """Compile one loop for a kind of accelerator, and read it."""
    buffer = make_buffer(library, kind, cell)
    chunks = random_chunks(cell.sampler, np.random.default_rng(0))
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), chunks)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), chunks.reward.shape[0]))
    state = jax.eval_shape(lambda: buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunks)))

    def step(carry: tuple[Any, jax.Array], inputs: tuple[jb.Transition, jax.Array]) -> Any:
        (state, total), (chunk, key) = carry, inputs
        state = buffer.add(state, chunk)
        batch, weights, handle = buffer.sample(state, key)
        total += sum(jnp.sum(leaf, dtype=jnp.float32) for leaf in jax.tree.leaves((batch, weights)))
        if buffer.update:
            state = buffer.update(state, handle, jnp.abs(batch.reward))
        return (state, total), None

    def program(state: Any, chunks: jb.Transition, keys: jax.Array) -> Any:
        return jax.lax.scan(step, (state, jnp.float32(0)), (chunks, keys))[0]

    return report(compilers.compile_for(kind, program, state, shapes, keys, donate_argnums=0), LARGE_ARRAY)


def compile_training(kind: str, environment: str, num_envs: int, **settings: Any) -> tuple[Report, float]:
    """Compile a chunk of DDQN's training; return the report, and the seconds that compiling took."""
    first, total = 16 * num_envs, (16 + NUM_ITERATIONS) * num_envs
    plan = Plan(total, num_envs, start_steps=first, update_every=num_envs, num_updates=1, mini_batch_size=BATCH_SIZE)
    agent, buffer, env, plan = build(Settings("ddqn", environment, plan, **settings))
    buffer = buffer.replace(platform=kind)
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(lambda key: loop.init(key, agent, buffer, env, plan), key)
    compilers.device(kind)  # so that starting the compiler does not count
    begun = time.perf_counter()
    compiled = compilers.compile_for(
        kind, lambda state: loop.run(state, agent, buffer, env, plan, NUM_ITERATIONS), state, donate_argnums=0
    )
    return report(compiled, LARGE), time.perf_counter() - begun


def compile_prioritized(kind: str) -> tuple[Report, float]:
    """Compile a chunk of training with priorities and many environments; return as `compile_training` does."""
    return compile_training(kind, "CartPole-v1", 1024, sampler={"name": "prioritized"}, capacity=LARGE)


def measure_loops(cells: list[Cell]) -> list[Record]:
    """Compile all loops, and print a row of the table for each."""
    print("| loop, slots | library | TPU cycles | TPU copies | TPU temporary MB | GPU kernels | GPU copies |")
    print("|---|---|---|---|---|---|---|")
    records = []
    for cell in cells:
        for library in (OURS, FLASHBAX) if fbx else (OURS,):
            tpu, gpu = (compile_loop(library, kind, cell) for kind in ("tpu", "gpu"))
            records.append({**cell._asdict(), "library": library, "tpu": tpu._asdict(), "gpu": gpu._asdict()})
            figures = f"{tpu.cycles:,} | {len(tpu.copies)} | {tpu.temp_bytes / 1e6:.1f} | {gpu.kernels}"
            print(f"| {cell} | {library} | {figures} | {len(gpu.copies)} |", flush=True)
    return records


def measure_programs() -> Record:
    """Compile the training programs, and print a row of the table for each."""
    print("\n| program | | |\n|---|---|---|")
    tpu, _ = compile_training("tpu", "Breakout-MinAtar", 128, capacity=LARGE)
    name = "ddqn Breakout-MinAtar, 128 environments, 2^20 slots"
    print(f"| {name} | TPU temporary MB | {tpu.temp_bytes / 1e6:.1f} |")
    print(f"| | TPU cycles | {tpu.cycles:,} |\n| | TPU copies | {len(tpu.copies)} |", flush=True)
    seconds = {}
    for kind in ("tpu", "gpu"):
        _, seconds[kind] = compile_prioritized(kind)
        name = "ddqn CartPole-v1, prioritized, 1024 environments"
        print(f"| {name} | {kind.upper()} seconds to compile | {seconds[kind]:.1f} |", flush=True)
    return {"breakout": tpu._asdict(), "compile_seconds": seconds}


def targets(loops: list[Record], programs: Record) -> list[Record]:
    """Return the targets that apply to what was compiled, and whether they are met."""
    found: list[tuple[str, float, float]] = []
    ours = {(one["sampler"], one["n_step"], one["capacity"]): one for one in loops if one["library"] == OURS}
    for (sampler, n, capacity), one in ours.items():
        name = str(Cell(sampler, n, capacity))
        found.append((f"{name}: copies", 0, len(one["tpu"]["copies"]) + len(one["gpu"]["copies"])))
        if capacity == LARGE:
            found.append((f"{name}: TPU cycles", CYCLES[sampler, n], one["tpu"]["cycles"]))
            found.append((f"{name}: GPU kernels", KERNELS[sampler, n], one["gpu"]["kernels"]))
        if capacity == LARGE and (small := ours.get((sampler, n, SMALL))):
            growth = one["tpu"]["cycles"] / small["tpu"]["cycles"]
            found.append((f"{name}: growth of TPU cycles from 2^16", GROWTH, growth))
    if programs:
        found += [(f"Breakout-MinAtar: TPU {what}", PROGRAM[what], programs["breakout"][what]) for what in PROGRAM]
        found += [
            (f"{kind.upper()} seconds to compile", SECONDS[kind], programs["compile_seconds"][kind]) for kind in SECONDS
        ]
    return [{"name": name, "limit": limit, "reached": value, "met": value <= limit} for name, limit, value in found]


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    about, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(description=about, epilog=details, formatter_class=argparse.RawTextHelpFormatter)
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: {message}\n")
    parser.add_argument("--quick", action="store_true", help="the loops at 2^20 slots only")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all results to this file too")
    args = parser.parse_args()
    if args.json and (args.json.is_dir() or not os.access(args.json.resolve().parent, os.W_OK)):
        parser.error(f"--json: cannot write {args.json}")
    if missing := set(compilers.NAMES) - set(compilers.installed()):
        parser.error(
            f"the compilers for {' and '.join(sorted(missing))} are not installed here; run `bash scripts/test "
            "--accelerators` once, and then this script by .venv-accelerators/bin/python"
        )
    return args


def main() -> None:
    """Compile and report."""
    args = parse_arguments()
    if not fbx:
        print('flashbax is not installed, so only our own figures follow: pip install -e ".[peers]"')
    loops = measure_loops([cell for cell in CELLS if cell.capacity == LARGE or not args.quick])
    programs = {} if args.quick else measure_programs()
    packages = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", *([FLASHBAX] if fbx else []))
    results = {"versions": {name: metadata.version(name) for name in packages}, "loops": loops, "programs": programs}
    results["targets"] = targets(loops, programs)
    print()
    for target in results["targets"]:
        verdict = "met" if target["met"] else "NOT MET"
        print(f"{verdict:8} {target['name']}: {_rounded(target['reached'])}, at most {_rounded(target['limit'])}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
