"""Every buffer compiles for TPU and GPU, and nothing as large as its ring or tree is made anew in a loop.

For both kinds: all buffers of the registry, all other operations, and each operation alone. Of the pairs of samplers
and views, those in `ABOVE` are compiled for both kinds, in the registry and in `test_targets.py`. All other pairs are
compiled for one kind: the first for TPU, the second for GPU, and so on in the order of `PAIRS`.
"""

from __future__ import annotations

import functools
import itertools

import compilers
import jax
import jax.numpy as jnp
import pytest
from accelerators import programs
from accelerators.programs import BATCH, LARGE, NUM_ENVS, SAMPLERS, SMALL, VIEWS, assert_in_place, compile_loop
from compiled_programs import report
from compilers import compile_for
from support import helpers
from support.registry import ALL, BUFFERS

import jaxrl_buffers as jb

LENGTH = LARGE // NUM_ENVS
CENTRAL = ["n_step", "prioritized_n_step", "frames", "hindsight"]
# All kinds of storage, and samplers with and without priorities.
OTHER = {
    name: BUFFERS[name]
    for name in ("sequences", "balanced", "prioritized_n_step", "prioritized_per_env", "frames", "hindsight")
} | {
    "mix": lambda length, num_envs: jb.ReplayBuffer(
        SAMPLERS["mix"], jb.Sequence(2), length=length, num_envs=num_envs, lockstep=False
    )
}

# Others than these, which are the pairs below and the main loops of test_targets.py.
PLAIN = {"uniform", "stratified", "distinct", "n_step", "prioritized", "prioritized_n_step"}


@functools.cache
def compiled_of_registry(kind, name):
    return compile_loop(kind, ALL[name](LENGTH, NUM_ENVS))


@pytest.mark.parametrize("name", [name for name in ALL if name not in PLAIN])
def test_every_buffer_of_the_registry(kind, name):
    assert_in_place(compiled_of_registry(kind, name))


REFUSED = {("episodic", "within_episode"), ("whole_episodes", "within_episode")}  # some episodes have no such start
# Pairs of the registry and of the main loops, which are compiled for every kind.
ABOVE = {
    ("independent", "sequence"),
    ("stratified", "within_episode"),
    ("balanced", "sequence"),
    ("prioritized", "n_step"),
    ("prioritized", "within_episode"),
    ("prioritized", "hindsight"),
    ("recent_prioritized", "n_step"),
    ("mix", "sequence"),
    ("episodic", "one_step"),
}
PAIRS = [pair for pair in itertools.product(SAMPLERS, VIEWS) if pair not in REFUSED | ABOVE]
KINDS = compilers.installed()
PAIRS_BY_KIND = [(KINDS[number % len(KINDS)], number) for number in range(len(PAIRS))]


@pytest.mark.parametrize(("kind", "number"), PAIRS_BY_KIND, ids=["-".join(pair) for pair in PAIRS])
def test_every_sampler_with_every_view(kind, number):
    """Every other pair is compiled for one kind of accelerator, TPU and GPU in turn.

    Every sampler and every view is so compiled for each kind, only not with every partner. With every pair comes one
    choice of the other options, also in turn: cursors, returns, chunks of one row.
    """
    sampler, view = PAIRS[number]
    buffer = jb.ReplayBuffer(
        SAMPLERS[sampler],
        VIEWS[view],
        length=LENGTH,
        num_envs=NUM_ENVS,
        lockstep=number % 3 != 0,
        returns=jb.EpisodicReturns() if number % 7 == 0 else None,
    )
    assert_in_place(compile_loop(kind, buffer, num_rows=1 + number // 2 % 2))


def test_every_sampler_and_every_view_meets_each_kind():
    compiled = {(kind, part) for kind, number in PAIRS_BY_KIND for part in PAIRS[number]}
    assert compiled == set(itertools.product(KINDS, [*SAMPLERS, *VIEWS]))
    assert {*PAIRS} | ABOVE | REFUSED == set(itertools.product(SAMPLERS, VIEWS))


@pytest.mark.parametrize("name", OTHER)
def test_all_other_operations(kind, name):
    buffer = OTHER[name](LENGTH, NUM_ENVS).replace(keep_episodes=True)
    assert_in_place(compile_loop(kind, buffer, programs.other_step))


@pytest.mark.parametrize("name", CENTRAL)
@pytest.mark.parametrize("operation", ["add", "sample", "update"])
def test_each_operation_alone(kind, operation, name):
    buffer = programs.for_platform(BUFFERS[name](LENGTH, NUM_ENVS), kind)
    state = jax.eval_shape(buffer.init, helpers.EXAMPLE)
    handle = jb.Handle(*[jax.ShapeDtypeStruct((BATCH,), jnp.int32)] * 2)
    program, *inputs = {
        "add": (buffer.add, programs.example_chunk(2, NUM_ENVS)),
        "sample": (lambda state, key: buffer.sample(state, key, BATCH), programs.key_shapes()),
        "update": (buffer.update_priorities, handle, jax.ShapeDtypeStruct((BATCH,), jnp.float32)),
    }[operation]
    donated = () if operation == "sample" else 0
    assert_in_place(compile_for(kind, program, state, *inputs, donate_argnums=donated), whole=True)


@pytest.mark.parametrize("num_words", [10, 56, 57, 150])  # a TPU has rows of some widths laid out in other ways
def test_rows_of_any_width(kind, num_words):
    example = {"x": jax.ShapeDtypeStruct((num_words,), jnp.float32)}
    buffer = jb.ReplayBuffer(view=jb.Sequence(2), length=LENGTH, num_envs=NUM_ENVS)
    assert_in_place(compile_loop(kind, buffer, example=example))


def test_several_seeds_in_one_program(kind):
    """On TPU only without priorities: there the leaves of several trees are laid out anew for every draw."""
    buffer = BUFFERS["n_step" if kind == "tpu" else "prioritized_n_step"](LENGTH // 4, NUM_ENVS)
    compiled = compile_loop(kind, buffer, num_rows=1, num_seeds=4)
    assert report(compiled, programs.LARGE_ARRAY).copies == []


@pytest.mark.parametrize("order", ["add update sample", "update add sample", "sample update add"])
def test_other_orders_are_in_place_too(kind, order):
    def step(buffer, state, rows, key):
        handle = used = None
        for operation in order.split():
            if operation == "add":
                state = buffer.add(state, rows)
            elif operation == "sample":
                sample = buffer.sample(state, key, BATCH)
                handle, used = sample.handle, programs.total((sample.batch, sample.weights))
            else:  # of an earlier batch, if nothing was sampled yet
                earlier = jb.Handle(*jnp.zeros((2, BATCH), jnp.int32)) if handle is None else handle
                state = buffer.update_priorities(state, earlier, jnp.linspace(0.1, 1.0, BATCH))
        return state, used

    assert_in_place(compile_loop(kind, BUFFERS["prioritized_n_step"](LENGTH, NUM_ENVS), step))


@pytest.mark.parametrize(("kind", "name"), [*zip(KINDS, ["frames", "hindsight"], strict=False)])
def test_temporary_memory_does_not_grow(kind, name):
    """Main loops are compared in test_targets.py, for every kind."""
    small = compile_loop(kind, BUFFERS[name](SMALL // NUM_ENVS, NUM_ENVS))
    sizes = [one.memory_analysis().temp_size_in_bytes for one in (small, compiled_of_registry(kind, name))]
    # A tree of 16 times the leaves has a level or two more: of a few nodes for each row that is written or sampled.
    assert sizes[1] <= sizes[0] + 2_000 * BATCH, sizes


@pytest.mark.parametrize("name", ["prioritized_n_step", "frames"])
def test_operations_on_all_that_is_stored_compile(kind, name):
    def program(buffer, state):
        rows, stored = buffer.gather_all(state)
        return buffer.clear(buffer.reprioritize(state)), buffer.stats(state), programs.total((rows, stored))

    buffer = programs.for_platform(BUFFERS[name](64, NUM_ENVS), kind)
    compile_for(kind, program, buffer, jax.eval_shape(buffer.init, helpers.EXAMPLE), donate_argnums=1)
