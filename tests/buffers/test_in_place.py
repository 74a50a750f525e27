"""Nothing as large as the ring or the tree is copied, made or read through: read off compiled programs."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
from support import helpers
from support.compiled import compiled_as_usual, whole_array_operations
from support.registry import ALL, BUFFERS

import jaxrl_buffers as jb

SMALL, LARGE = 2**13, 2**18  # rows of two environments; compiled only, never allocated
BATCH = 32
COVERED = {"stratified", "n_step", "prioritized", "sequences"}  # by kinds of the same parts
ORDERS = ["add sample update", "update add sample", "add update sample"]


def abstract_chunk(num_rows=2, num_envs=2):
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((num_rows, num_envs, *leaf.shape), leaf.dtype), helpers.EXAMPLE
    )


def one_step(buffer, order, carry, inputs):
    state, handle = carry
    chunk, key = inputs
    batch_size = handle.env.shape[0]
    for operation in order.split():
        if operation == "add":
            state = buffer.add(state, chunk)
        elif operation == "sample":
            sample = buffer.sample(state, key, batch_size)
            handle, total = sample.handle, sum(jnp.sum(leaf) for leaf in jax.tree.leaves(sample.batch))
            total = total + jnp.sum(sample.weights)
        else:
            state = buffer.update_priorities(state, handle, jnp.linspace(0.1, 1.0, batch_size))
    return (state, handle), total


def loop(order, buffer, carry, inputs):
    return jax.lax.scan(functools.partial(one_step, buffer, order), carry, inputs)


def abstract_arguments(buffer, num_seeds=None, num_rows=2, batch_size=BATCH):
    def arguments(key):
        state = buffer.init(helpers.EXAMPLE)
        return (state, buffer.sample(state, key, batch_size).handle), jax.random.split(key, 3)

    if num_seeds is not None:
        arguments = jax.vmap(arguments)
    keys = jax.random.key(0) if num_seeds is None else jax.random.split(jax.random.key(0), num_seeds)
    carry, keys = jax.eval_shape(arguments, keys)
    lead = (3,) if num_seeds is None else (num_seeds, 3)
    chunk = abstract_chunk(num_rows, buffer.num_envs)
    chunk = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*lead, *leaf.shape), leaf.dtype), chunk)
    return carry, (chunk, keys)


def compiled_loop(name, length, order=ORDERS[0], num_seeds=None, num_rows=2, num_envs=2, batch_size=BATCH):
    buffer = ALL[name](length, num_envs)
    program = functools.partial(loop, order)
    if num_seeds is not None:
        program = jax.vmap(program, in_axes=(None, 0, 0))
    arguments = abstract_arguments(buffer, num_seeds, num_rows, batch_size)
    return compiled_as_usual(jax.jit(program, donate_argnums=1).lower(buffer, *arguments))


def assert_in_place(compiled):
    """Check that nothing as long as the ring is copied, made or read through, nor held for a while."""
    assert whole_array_operations(compiled, LARGE // 4) == []
    assert compiled.memory_analysis().temp_size_in_bytes < LARGE  # not even one byte a row


@pytest.mark.parametrize("name", [name for name in ALL if name not in COVERED])
def test_the_whole_loop_is_in_place(name):
    assert_in_place(compiled_loop(name, LARGE))


@pytest.mark.parametrize("name", ["prioritized_wide", "episodic", "hindsight", "frames"])
def test_adding_a_single_row_is_in_place(name):
    """XLA treats scatters of one row apart, and then copies more readily."""
    assert_in_place(compiled_loop(name, LARGE, num_rows=1, num_envs=1))


@pytest.mark.parametrize("name", ["prioritized_wide", "prioritized_per_env", "hindsight", "frames"])
def test_the_whole_loop_is_in_place_under_vmap(name):
    assert_in_place(compiled_loop(name, LARGE, num_seeds=3))


@pytest.mark.parametrize("name", ["prioritized_n_step", "prioritized_wide"])
@pytest.mark.parametrize("order", ORDERS[1:])
def test_other_orders_are_in_place_too(order, name):
    assert_in_place(compiled_loop(name, LARGE, order))


@pytest.mark.parametrize(
    ("order", "name"), [*((order, "prioritized") for order in ORDERS), (ORDERS[1], "prioritized_wide")]
)
def test_batches_of_one_are_in_place(order, name):
    """Gathers of one entry are slices, which XLA fuses into what comes after a later write."""
    assert_in_place(compiled_loop(name, LARGE, order, num_rows=1, num_envs=1, batch_size=1))


@pytest.mark.parametrize("operation", ["add", "add many", "sample", "update"])
def test_each_operation_alone_is_in_place(operation):
    programs = []
    for length in (SMALL, LARGE):
        buffer = BUFFERS["prioritized_n_step"](length, 2)
        (state, handle), _ = abstract_arguments(buffer)
        key = jax.eval_shape(lambda: jax.random.key(0))
        priorities = jax.ShapeDtypeStruct((BATCH,), jnp.float32)
        program, arguments = {
            "add": (jb.ReplayBuffer.add, (state, abstract_chunk())),
            "add many": (jb.ReplayBuffer.add, (state, abstract_chunk(100))),
            "sample": (functools.partial(jb.ReplayBuffer.sample, batch_size=BATCH), (state, key)),
            "update": (jb.ReplayBuffer.update_priorities, (state, handle, priorities)),
        }[operation]
        donated = () if operation == "sample" else 1
        programs.append(compiled_as_usual(jax.jit(program, donate_argnums=donated).lower(buffer, *arguments)))
    assert_in_place(programs[1])
    # A tree of 32 times the leaves has two levels more: temporaries grow by a few nodes of each sampled path.
    before, after = (program.memory_analysis().temp_size_in_bytes for program in programs)
    assert after < before + 100 * BATCH, (before, after)


def test_bytes_accessed_by_add_do_not_depend_on_the_capacity():
    """Of gathers and scatters, XLA's cost model for CPUs counts the whole array, so only contiguous writes can tell."""
    costs = []
    for length in (SMALL, LARGE):
        buffer = BUFFERS["uniform"](length, 2)
        (state, _), _ = abstract_arguments(buffer)
        add = jax.jit(jb.ReplayBuffer.add, donate_argnums=1).lower(buffer, state, abstract_chunk(100))
        costs.append(compiled_as_usual(add).cost_analysis()["bytes accessed"])
    assert costs[0] == costs[1]


def test_a_program_that_copies_is_caught():
    """The reader of compiled programs does see a copy, a sum and a select of the whole ring."""
    ring, index = jax.ShapeDtypeStruct((LARGE, 2), jnp.float32), jax.ShapeDtypeStruct((3,), jnp.int32)
    for wasteful in (
        lambda ring, index: (ring.at[index].set(0.0), ring[0]),  # not donated: a copy
        lambda ring, index: jnp.sum(ring),
        lambda ring, index: jnp.where(jnp.arange(LARGE)[:, None] == index[0], 1.0, ring),
    ):
        assert whole_array_operations(compiled_as_usual(jax.jit(wasteful).lower(ring, index)), LARGE)
    fine = jax.jit(lambda ring, index: ring.at[index].set(0.0), donate_argnums=0).lower(ring, index)
    assert whole_array_operations(compiled_as_usual(fine), LARGE // 4) == []


def test_donated_memory_is_reused():
    buffer = BUFFERS["prioritized"](64, 2)
    state = buffer.init(helpers.EXAMPLE)
    chunk = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), abstract_chunk())
    add = compiled_as_usual(jax.jit(jb.ReplayBuffer.add, donate_argnums=1).lower(buffer, state, chunk))
    state = add(buffer, state, chunk)
    before = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    state = add(buffer, state, chunk)
    after = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    sizes = [leaf.size for leaf in jax.tree.leaves(state)]
    assert all(old == new for old, new, size in zip(before, after, sizes, strict=True) if size >= 64)


@pytest.mark.parametrize("name", ALL)
def test_a_fresh_state_can_be_donated(name):
    """No two leaves share their memory, which could not be given away twice."""
    leaves = jax.tree.leaves(ALL[name](64, 2).init(helpers.EXAMPLE))
    pointers = [leaf.unsafe_buffer_pointer() for leaf in leaves if leaf.size]
    assert len(set(pointers)) == len(pointers)
