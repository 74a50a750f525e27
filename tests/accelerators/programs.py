"""Buffers of every kind, and the programs of theirs that are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from compiled_programs import report
from compilers import compile_for
from support import helpers, registry

import jaxrl_buffers as jb

SMALL, LARGE = 2**16, 2**20  # slots
NUM_ENVS = 16
NUM_STEPS = 3
BATCH = 32
LARGE_ARRAY = LARGE // 8  # elements: every array of the ring has more, and so have the leaves of a tree

Buffer = jb.ReplayBuffer | jb.Mixture
Step = Callable[[Any, Any, Any, jax.Array], tuple[Any, jax.Array]]  # buffer, state, rows, key -> state, what was used
SAMPLERS: dict[str, Any] = {
    "independent": jb.Uniform(),
    "stratified": jb.Uniform("stratified"),
    "distinct": jb.Uniform("distinct"),
    "balanced": jb.Uniform("stratified", balanced=True),
    "prioritized": jb.Prioritized(),
    "recent": jb.Recent(jb.Uniform()),
    "recent_prioritized": jb.Recent(jb.Prioritized(), adaptive=True),
    "newest": jb.LastN(1_000.0),
    "mix": jb.Combined(jb.Prioritized(), (jb.Uniform("stratified"),), (0.3,)),  # of more in the registry
    "episodic": jb.Episodic(),
    "whole_episodes": jb.Episodic(whole=True),
}
VIEWS: dict[str, Any] = {
    "one_step": jb.NStep(),
    "n_step": jb.NStep(n=3),
    "sequence": jb.Sequence(4, burn_in=1),
    "within_episode": jb.Sequence(3, within_episode=True),
    "hindsight": jb.Hindsight(jb.NStep(n=3), achieved="next_obs.x", relabel=registry.relabel),
}


def for_platform(buffer: Any, platform: str) -> Any:
    """Return the buffer as it is on another platform."""
    if isinstance(buffer, jb.Mixture):
        return buffer.replace(buffers=tuple(for_platform(part, platform) for part in buffer.buffers))
    return buffer.replace(platform=platform)


def example_chunk(*axes: int, example: Any = helpers.EXAMPLE) -> Any:
    """Return the shapes of rows to add, or of anything else like `example`, with more axes in front."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*axes, *leaf.shape), leaf.dtype), example)


def key_shapes(*axes: int) -> jax.ShapeDtypeStruct:
    """Return the shapes of keys."""
    return jax.eval_shape(lambda: jax.random.split(jax.random.key(0), axes))


def total(values: Any) -> jax.Array:
    """Use every number, so that nothing is left out."""
    return sum((jnp.sum(leaf, dtype=jnp.float32) for leaf in jax.tree.leaves(values)), jnp.float32(0))


def main_step(buffer: Buffer, state: Any, rows: Any, key: jax.Array) -> tuple[Any, jax.Array]:
    """Add, sample and update priorities."""
    state = buffer.add(state, rows)
    sample = buffer.sample(state, key, BATCH)
    state = buffer.update_priorities(state, sample.handle, jnp.linspace(0.1, 1.0, BATCH))
    return state, total((sample.batch, sample.weights))


def other_step(buffer: jb.ReplayBuffer, state: Any, rows: Any, key: jax.Array) -> tuple[Any, jax.Array]:
    """Do all else that takes no longer in a larger buffer: first what writes, then what reads."""
    state = buffer.report_return(buffer.mark_break(buffer.add(state, rows)), 1.0)
    state, oldest, stored = buffer.dequeue(buffer.drop_oldest(state, 1), 1)
    handle = buffer.sample(state, key, BATCH).handle
    read = buffer.read(state, handle, key)
    counts = buffer.size(state), buffer.num_valid(state), buffer.age(state, handle)
    field, has_field = buffer.get_field(state, "obs", handle)
    episode = buffer.episode(state, handle) if buffer.keep_episodes else ()
    return state, total((oldest, stored, read, counts, field, has_field, episode))


def compile_loop(
    kind: str,
    buffer: Buffer,
    step: Step = main_step,
    num_rows: int = 2,
    example: Any = helpers.EXAMPLE,
    num_seeds: int | None = None,
) -> jax.stages.Compiled:
    """Compile the loop of a step, with a state that is donated; with `num_seeds`, for so many states by `vmap`."""
    buffer = for_platform(buffer, kind)

    def loop(buffer: Buffer, state: Any, inputs: Any) -> Any:
        return jax.lax.scan(lambda state, inputs: step(buffer, state, *inputs), state, inputs)

    seeds = () if num_seeds is None else (num_seeds,)
    inputs = example_chunk(*seeds, NUM_STEPS, num_rows, buffer.num_envs, example=example), key_shapes(*seeds, NUM_STEPS)
    state = example_chunk(*seeds, example=jax.eval_shape(buffer.init, example))
    program = loop if num_seeds is None else jax.vmap(loop, in_axes=(None, 0, 0))
    return compile_for(kind, program, buffer, state, inputs, donate_argnums=1)


def assert_in_place(compiled: jax.stages.Compiled, whole: bool = False) -> None:
    """Check that nothing as large as the ring or a tree is made anew, and that there is no room for such a thing."""
    read = report(compiled, LARGE_ARRAY, whole)
    assert read.copies == [], f"{len(read.copies)} copies, {read.temp_bytes:,} bytes for a while: {read.copies}"
    assert read.temp_bytes < 4 * LARGE, f"{read.temp_bytes:,} bytes for a while"  # which is one number a slot
