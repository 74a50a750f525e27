"""The buffers that benchmark_buffers.py times, and the loop that it times them in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
OURS, FLASHBAX = "jaxrl_buffers", "flashbax"
PLAIN, WHOLE = "plain prioritized", "frames kept whole"
NUM_ADDED, BATCH_SIZE = 128, 256
NUM_CHUNKS = 64  # different chunks, which adds take in turn
FRAME_CHUNKS = 4
ALPHA, BETA = 0.6, 0.4


class Buffer(NamedTuple):
    """One buffer of one library, with an interface that is the same for all."""

    init: Callable[[PyTree], PyTree]  # example -> state
    add: Callable[[PyTree, PyTree], PyTree]  # state, leaves [128, ...] -> state
    sample: Callable[[PyTree, jax.Array], tuple[PyTree, PyTree, PyTree]]  # state, key -> batch, weights, handle
    update: Callable[[PyTree, PyTree, jax.Array], PyTree] | None  # state, handle, priorities -> state
    handle: Callable[[jax.Array], PyTree]  # slots, numbered as they were first filled -> handle


def relabel(transition: jb.Transition, goal: jax.Array) -> jb.Transition:
    """Put another goal into a transition, as hindsight does."""
    reached = jnp.sum((transition.next_obs - goal) ** 2) < 1e-4
    return transition._replace(reward=jnp.where(reached, 0.0, -1.0), terminated=reached)


SAMPLER = jb.Prioritized(alpha=ALPHA, beta=BETA)
OPTIONS: dict[str, dict[str, Any]] = {
    "uniform": {"sampler": jb.Uniform()},
    "prioritized": {},
    "n_step": {"view": jb.NStep(n=3)},
    "sequences": {"view": jb.Sequence(4, period=2)},
    "hindsight": {"view": jb.Hindsight(jb.NStep(n=1), achieved="next_obs", relabel=relabel)},
    "episodic": {"sampler": jb.Episodic()},
    "returns": {"returns": jb.EpisodicReturns()},
    "recent": {"sampler": jb.Recent(jb.Uniform())},
    "recent_prioritized": {"sampler": jb.Recent(SAMPLER)},
    "newest": {"sampler": jb.LastN(1_000.0, SAMPLER)},
    "mix": {"sampler": jb.Combined(SAMPLER, (jb.LastN(1_000.0),), (0.2,))},
    "frames": {"frames": jb.Frames(stack=4)},
}
KINDS = tuple(OPTIONS)


def make_ours(kind: str, capacity: int, **changes: Any) -> Buffer:
    """Return one of this library's buffers; `changes` are options of it."""
    options = {"sampler": SAMPLER, "view": jb.NStep(n=1)} | OPTIONS[kind] | changes
    buffer = jb.ReplayBuffer(**options, length=capacity // NUM_ADDED, num_envs=NUM_ADDED)
    has_priorities = not isinstance(buffer.sampler, jb.Uniform | jb.Episodic)

    def sample(state: PyTree, key: jax.Array) -> tuple[PyTree, PyTree, PyTree]:
        batch, handle, weights = buffer.sample(state, key, BATCH_SIZE)
        return batch, weights, handle if has_priorities else ()

    return Buffer(
        init=buffer.init,
        add=lambda state, chunk: buffer.add(state, jax.tree.map(lambda leaf: leaf[None], chunk)),
        sample=sample,
        update=buffer.update_priorities if has_priorities else None,
        handle=lambda slots: jb.Handle(slots % NUM_ADDED, slots // NUM_ADDED),
    )


def make_flashbax(kind: str, capacity: int, platform: str | None = None) -> Buffer:
    """Return flashbax's buffer of independent transitions."""
    options = {"max_length": capacity, "min_length": 1, "sample_batch_size": BATCH_SIZE, "add_batches": True}
    if kind == "uniform":
        buffer = fbx.make_item_buffer(**options)
        return Buffer(buffer.init, buffer.add, lambda *xs: (buffer.sample(*xs).experience, (), ()), None, jnp.asarray)
    platform = platform or jax.default_backend()
    buffer = fbx.make_prioritised_item_buffer(**options, priority_exponent=ALPHA, device=platform)

    def sample(state: PyTree, key: jax.Array) -> tuple[PyTree, PyTree, PyTree]:
        drawn = buffer.sample(state, key)
        weights = drawn.probabilities**-BETA
        return drawn.experience, weights / jnp.max(weights), drawn.indices

    return Buffer(buffer.init, buffer.add, sample, buffer.set_priorities, jnp.asarray)


def contenders(kind: str, capacity: int) -> dict[str, Buffer]:
    """Return our buffer and the one to compare it with, if there is one."""
    found = {OURS: make_ours(kind, capacity)}
    if kind == "frames":
        return found | {WHOLE: make_ours("prioritized", capacity)}
    if kind not in ("uniform", "prioritized"):
        return found | {PLAIN: make_ours("prioritized", capacity)}
    return found | ({FLASHBAX: make_flashbax(kind, capacity)} if fbx else {})


def random_chunks(kind: str, rng: np.random.Generator) -> jb.Transition:
    """Return the transitions to add: leaves `[chunks, 128, ...]`."""
    shape = (FRAME_CHUNKS if kind == "frames" else NUM_CHUNKS, NUM_ADDED)
    if kind == "frames":
        obs = next_obs = rng.integers(256, size=(*shape, 84, 84, 4), dtype=np.uint8)
    else:
        obs, next_obs = rng.normal(size=(2, *shape, 17))
    terminated, truncated = rng.random((2, *shape)) < 0.01
    action, reward = rng.normal(size=(*shape, 6)), rng.normal(size=shape)
    chunks = jb.Transition(obs, action, reward, terminated, truncated, next_obs)
    return jax.tree.map(jnp.asarray, chunks)


def step_inputs(rng: np.random.Generator, capacity: int, steps: int, num_chunks: int) -> tuple[jax.Array, ...]:
    """Draw for each step the chunk to add, a key to sample with, and slots `[256]` to update with priorities."""
    keys = jax.random.wrap_key_data(rng.integers(2**32, size=(steps, 2), dtype=np.uint32), impl="threefry2x32")
    places = (np.arange(BATCH_SIZE) + rng.random((steps, BATCH_SIZE))) / BATCH_SIZE
    slots, priorities = (places * capacity).astype(np.int32), rng.lognormal(size=places.shape)
    return jax.block_until_ready((jnp.arange(steps) % num_chunks, keys, jnp.asarray(slots), jnp.asarray(priorities)))


def run(buffer: Buffer, operations: tuple[str, ...], state: PyTree, chunks: jb.Transition, inputs: tuple) -> PyTree:
    """Scan over the steps of one repetition; return the state and the sum of all that was sampled."""

    def step(carry: tuple[PyTree, jax.Array], xs: tuple) -> tuple[tuple[PyTree, jax.Array], None]:
        (state, total), (number, key, handle, priorities) = carry, xs
        if operations == ("sample",):
            # Real loops change the state. If XLA sees that this loop does not, it moves parts of flashbax's draw out of
            # the loop, and then misses a simplification.
            state = jax.lax.optimization_barrier(state)
        if "add" in operations:
            chunk = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False), chunks)
            state = buffer.add(state, chunk)
        if "sample" in operations:
            batch, weights, handle = buffer.sample(state, key)
            total += sum(jnp.sum(leaf, dtype=jnp.float32) for leaf in jax.tree.leaves((batch, weights, handle)))
            priorities = jnp.abs(batch.reward.reshape(BATCH_SIZE, -1)[:, 0])
        if "update" in operations and buffer.update:
            state = buffer.update(state, handle, priorities)
        return (state, total), None

    numbers, keys, slots, priorities = inputs
    return jax.lax.scan(step, (state, jnp.float32(0)), (numbers, keys, buffer.handle(slots), priorities))[0]


def fill(buffer: Buffer, capacity: int, chunks: jb.Transition) -> PyTree:
    """Return a full state with log-normal priorities: a few are much larger than most."""
    numbers = jnp.arange(capacity // NUM_ADDED) % chunks.reward.shape[0]
    inputs = (numbers, numbers, jnp.arange(capacity).reshape(-1, NUM_ADDED), jnp.exp(chunks.reward)[numbers])
    add_and_update = jax.jit(partial(run, buffer, ("add", "update")), donate_argnums=0)
    return add_and_update(buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunks)), chunks, inputs)[0]
