"""Time this library's buffers, and flashbax's beside them, and tell which speed targets are met.

    python scripts/benchmark_buffers.py --quick
    python scripts/benchmark_buffers.py --capacities 2^20 --kinds prioritized --json result.json

flashbax is optional: `pip install "jaxrl-buffers[peers]"`. The cells, each timed on a full buffer of 41 floats and two
flags a transition:

* `update`: set 256 priorities (prioritized only), at slots spread over the buffer as stratified draws spread them;
* `sample`: draw 256 transitions; every leaf of the batch and the weights are summed up, so that nothing is left out.
  flashbax has no weights: its side forms `probabilities^-beta`, divided by the largest of the batch;
* `add`: append 128 transitions;
* `loop`: add, sample and (prioritized only) update with priorities that come from the batch.

One repetition is one jitted `lax.scan` of many steps in which the state is donated, so the cost of a call from Python
does not count. Repetitions of the libraries alternate in one process and get the same fresh random numbers. Times are
microseconds a step: the median and, in brackets, the quartiles; a ratio is that of the medians, with the quartiles of
the ratios of neighboring repetitions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxrl_buffers as jb

try:
    import flashbax as fbx
except ImportError:
    fbx = None

PyTree = Any
OURS = "jaxrl_buffers"
NUM_ADDED, BATCH_SIZE = 128, 256
ALPHA, BETA = 0.6, 0.4
NUM_CHUNKS = 64  # different chunks that adds take in turn
KINDS = ("uniform", "prioritized")
CAPACITIES, QUICK_CAPACITIES = (2**13, 2**16, 2**20, 2**22), (2**13, 2**16)
REPEATS, QUICK_REPEATS = 30, 7
RATIO_CAPACITY = 2**20
RATIO_TARGETS = {
    ("prioritized", "loop"): 0.4,
    ("prioritized", "sample"): 0.7,
    ("prioritized", "update"): 1.0,
    ("prioritized", "add"): 1.0,
    ("uniform", "add"): 1.0,
    ("uniform", "sample"): 0.8,
}
GROWTH_CAPACITIES = (2**16, 2**22)
GROWTH_TARGETS = {"uniform": 1.5, "prioritized": 2.0}


class Drawn(NamedTuple):
    """What a learner takes from one `sample`."""

    batch: PyTree
    weights: PyTree
    handle: PyTree  # what `update` wants; nothing if there are no priorities
    reward: jax.Array


class Buffer(NamedTuple):
    """One buffer of one library behind a common face."""

    init: Callable[[PyTree], PyTree]  # example -> state
    add: Callable[[PyTree, PyTree], PyTree]  # state, leaves [128, ...] -> state
    sample: Callable[[PyTree, jax.Array], Drawn]  # state, key -> 256 transitions
    update: Callable[[PyTree, PyTree, jax.Array], PyTree]  # state, handle, priorities -> state
    handle: Callable[[jax.Array], PyTree]  # the numbers of adds in a buffer that was filled once -> handle


class Peer(NamedTuple):
    """A library: its name, and how it makes a buffer of a kind and capacity."""

    name: str
    make: Callable[[str, int], Buffer]


class Cell(NamedTuple):
    """Something to time: `scan(buffer, state, inputs) -> state, sum of what was sampled`."""

    scan: Callable[[Buffer, PyTree, Inputs], tuple[PyTree, jax.Array]]
    steps: int  # a repetition should take some ten milliseconds
    kinds: tuple[str, ...] = KINDS


class Result(NamedTuple):
    """The microseconds a step of every repetition, by library."""

    kind: str
    cell: str
    capacity: int
    times: dict[str, np.ndarray]


class Inputs(NamedTuple):
    """What one repetition works on; each cell takes what it needs."""

    chunks: jb.Transition  # leaves [64, 128, ...]
    turn: jax.Array  # int32[steps]: which chunk to add
    keys: jax.Array  # [steps]
    slots: jax.Array  # int32[steps, 256]
    priorities: jax.Array  # float32[steps, 256]


def no_update(state: PyTree, handle: PyTree, priorities: jax.Array) -> PyTree:
    """Return the state: there are no priorities."""
    return state


def make_ours(kind: str, capacity: int) -> Buffer:
    """Return this library's buffer."""
    sampler = jb.Prioritized(alpha=ALPHA, beta=BETA) if kind == "prioritized" else jb.Uniform()
    length = capacity // NUM_ADDED
    buffer = jb.ReplayBuffer(sampler=sampler, view=jb.NStep(n=1), length=length, num_envs=NUM_ADDED)

    def sample(state: PyTree, key: jax.Array) -> Drawn:
        batch, handle, weights = buffer.sample(state, key, BATCH_SIZE)
        return Drawn(batch, weights, handle if kind == "prioritized" else (), batch.reward)

    return Buffer(
        init=buffer.init,
        add=lambda state, chunk: buffer.add(state, jax.tree.map(lambda leaf: leaf[None], chunk)),
        sample=sample,
        update=buffer.update_priorities if kind == "prioritized" else no_update,
        handle=lambda slots: jb.Handle(slots % NUM_ADDED, slots // NUM_ADDED),
    )


def make_flashbax(kind: str, capacity: int) -> Buffer:
    """Return flashbax's buffer of independent transitions."""
    options = {"max_length": capacity, "min_length": 1, "sample_batch_size": BATCH_SIZE, "add_batches": True}
    if kind == "uniform":
        buffer = fbx.make_item_buffer(**options)
    else:
        device = jax.default_backend()
        buffer = fbx.make_prioritised_item_buffer(**options, priority_exponent=ALPHA, device=device)

    def sample(state: PyTree, key: jax.Array) -> Drawn:
        drawn = buffer.sample(state, key)
        if kind == "uniform":
            return Drawn(drawn.experience, (), (), drawn.experience.reward)
        weights = drawn.probabilities**-BETA
        return Drawn(drawn.experience, weights / jnp.max(weights), drawn.indices, drawn.experience.reward)

    update = buffer.set_priorities if kind == "prioritized" else no_update
    return Buffer(buffer.init, buffer.add, sample, update, handle=lambda slots: slots)


PEERS = (Peer(OURS, make_ours), Peer("flashbax", make_flashbax))


def random_chunks(key: jax.Array) -> jb.Transition:
    """Return `NUM_CHUNKS` chunks of transitions."""
    keys = jax.random.split(key, 6)
    shape = (NUM_CHUNKS, NUM_ADDED)
    obs, next_obs = (jax.random.normal(key, (*shape, 17)) for key in keys[:2])
    action, reward = jax.random.normal(keys[2], (*shape, 6)), jax.random.normal(keys[3], shape)
    terminated, truncated = (jax.random.bernoulli(key, 0.01, shape) for key in keys[4:])
    return jb.Transition(obs, action, reward, terminated, truncated, next_obs)


@partial(jax.jit, static_argnames="steps")
def fresh_inputs(chunks: jb.Transition, key: jax.Array, capacity: int, steps: int) -> Inputs:
    """Draw what the next repetition works on."""
    key_steps, key_slots, key_priorities = jax.random.split(key, 3)
    shape = (steps, BATCH_SIZE)
    share = (jnp.arange(BATCH_SIZE)[None] + jax.random.uniform(key_slots, shape)) / BATCH_SIZE
    slots = jnp.minimum((share * capacity).astype(jnp.int32), capacity - 1)
    priorities = jnp.exp(jax.random.normal(key_priorities, shape))
    return Inputs(chunks, jnp.arange(steps) % NUM_CHUNKS, jax.random.split(key_steps, steps), slots, priorities)


def pick(chunks: jb.Transition, turn: jax.Array) -> jb.Transition:
    """Return one of the chunks."""
    return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, turn, keepdims=False), chunks)


def consume(drawn: Drawn) -> jax.Array:
    """Sum up everything, so that no part of it is dead code."""
    leaves = jax.tree.leaves((drawn.batch, drawn.weights, drawn.handle))
    return sum(jnp.sum(leaf, dtype=jnp.float32) for leaf in leaves)


def filled(buffer: Buffer, capacity: int, chunks: jb.Transition, key: jax.Array) -> PyTree:
    """Return a full state, with priorities of which a few are much larger than most."""

    def step(state: PyTree, row: jax.Array) -> tuple[PyTree, None]:
        state = buffer.add(state, pick(chunks, row % NUM_CHUNKS))
        priorities = jnp.exp(jax.random.normal(jax.random.fold_in(key, row), (NUM_ADDED,)))
        return buffer.update(state, buffer.handle(row * NUM_ADDED + jnp.arange(NUM_ADDED)), priorities), None

    example = jax.tree.map(lambda leaf: leaf[0, 0], chunks)
    fill = jax.jit(lambda state: lax.scan(step, state, jnp.arange(capacity // NUM_ADDED))[0], donate_argnums=0)
    return fill(buffer.init(example))


def scan_updates(buffer: Buffer, state: PyTree, inputs: Inputs) -> tuple[PyTree, jax.Array]:
    """Set priorities again and again."""

    def step(state: PyTree, xs: tuple[PyTree, jax.Array]) -> tuple[PyTree, None]:
        return buffer.update(state, *xs), None

    return lax.scan(step, state, (buffer.handle(inputs.slots), inputs.priorities))[0], jnp.float32(0)


def scan_samples(buffer: Buffer, state: PyTree, inputs: Inputs) -> tuple[PyTree, jax.Array]:
    """Sample again and again."""

    def step(total: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
        return total + consume(buffer.sample(state, key)), None

    return state, lax.scan(step, jnp.float32(0), inputs.keys)[0]


def scan_adds(buffer: Buffer, state: PyTree, inputs: Inputs) -> tuple[PyTree, jax.Array]:
    """Add again and again."""

    def step(state: PyTree, turn: jax.Array) -> tuple[PyTree, None]:
        return buffer.add(state, pick(inputs.chunks, turn)), None

    return lax.scan(step, state, inputs.turn)[0], jnp.float32(0)


def scan_loop(buffer: Buffer, state: PyTree, inputs: Inputs) -> tuple[PyTree, jax.Array]:
    """Add, sample and update again and again."""

    def step(carry: tuple[PyTree, jax.Array], xs: tuple[jax.Array, jax.Array]) -> tuple[PyTree, None]:
        (state, total), (turn, key) = carry, xs
        state = buffer.add(state, pick(inputs.chunks, turn))
        drawn = buffer.sample(state, key)
        return (buffer.update(state, drawn.handle, jnp.abs(drawn.reward)), total + consume(drawn)), None

    return lax.scan(step, (state, jnp.float32(0)), (inputs.turn, inputs.keys))[0]


# `update` comes first: it names slots as they are before the other cells move the ring.
CELLS = {
    "update": Cell(scan_updates, steps=256, kinds=("prioritized",)),
    "sample": Cell(scan_samples, steps=256),
    "add": Cell(scan_adds, steps=512),
    "loop": Cell(scan_loop, steps=128),
}


def measure(cell: Cell, buffers: dict[str, Buffer], states: dict[str, PyTree], inputs: Callable, args: Any) -> dict:
    """Time a cell, the libraries in turn; `states` moves on. Return the microseconds a step by library."""
    runs = {name: jax.jit(partial(cell.scan, buffer), donate_argnums=0) for name, buffer in buffers.items()}
    times = {name: [] for name in runs}
    begin = np.inf
    for repetition in range(-1, args.repeats):  # number -1 compiles
        now = jax.block_until_ready(inputs(repetition + 1, cell.steps))
        for name in list(runs)[:: -1 if repetition % 2 else 1]:
            start = time.perf_counter()
            states[name], total = jax.block_until_ready(runs[name](states[name], now))
            times[name].append((time.perf_counter() - start) * 1e6 / cell.steps)
        begin = time.perf_counter() if repetition < 0 else begin
        if repetition >= MIN_REPEATS - 1 and time.perf_counter() - begin > args.seconds:
            break
    return {name: np.array(list_of_times[1:]) for name, list_of_times in times.items()}


def measure_capacity(kind: str, capacity: int, args: argparse.Namespace) -> Iterator[Result]:
    """Fill one buffer of each library and time all cells on it."""
    key_chunks, key_fill, key_inputs = jax.random.split(jax.random.key(0), 3)
    chunks = random_chunks(key_chunks)
    buffers = {peer.name: peer.make(kind, capacity) for peer in PEERS if peer.installed}
    states = {name: filled(buffer, capacity, chunks, key_fill) for name, buffer in buffers.items()}
    for name, cell in CELLS.items():
        if name in args.cells and kind in cell.kinds:

            def inputs(number: int, steps: int) -> Inputs:
                return fresh_inputs(chunks, jax.random.fold_in(key_inputs, number), capacity, steps)

            yield Result(kind, name, capacity, measure(cell, buffers, states, inputs, args))


def quartiles(values: np.ndarray) -> dict[str, float]:
    """Return the median and the quartiles."""
    q1, median, q3 = np.percentile(values, (25, 50, 75))
    return {"median": float(median), "q1": float(q1), "q3": float(q3)}


def ratio(result: Result, peer: str) -> dict[str, float]:
    """Return the ratio of the medians, ours by the peer's, and the quartiles of the ratios of neighbors."""
    ours, theirs = result.times[OURS], result.times[peer]
    return {**quartiles(ours / theirs), "median": float(np.median(ours) / np.median(theirs))}


def power(capacity: int) -> str:
    """Write a power of two as such."""
    exponent = capacity.bit_length() - 1
    return f"2^{exponent}" if capacity == 2**exponent else str(capacity)
