"""The reader of compiled programs sees what copies a large array, and nothing else."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
from compiled_programs import report
from compilers import compile_for

ROWS, WIDTH = 2**14, 64
SIZE = ROWS * WIDTH


def shape(*axes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(axes, dtype)


def steps(step, carry):
    return jax.lax.scan(lambda carry, number: (step(number, *carry), None), carry, jnp.arange(10))[0]


def write_then_read_old(number, ring, found):
    """Keep the old ring alive behind the write, by an index that comes out of the new one."""
    written = ring.at[number % ROWS, :8].set(found)
    index = written[number * 7 % ROWS, 3].astype(jnp.int32) % ROWS
    return written, ring[index, :8]


def derive(make):
    """Return a step that makes an array of the whole ring, which the next step needs."""

    def step(number, ring, made):
        ring = ring.at[number % ROWS].set(made.ravel()[number * 7 % SIZE].astype(ring.dtype))
        return ring, make(ring)

    return step


def nested(step):
    return lambda number, *carry: jax.lax.fori_loop(0, 3, lambda inner, carry: step(number + inner, *carry), carry)


def in_branch(step):
    return lambda number, *carry: jax.lax.cond(
        number % 2 == 0, lambda carry: step(number, *carry), lambda carry: carry, carry
    )


def beside_a_write(number, ring, made, other):
    """Write in place and convert in what may become one kernel."""
    ring, made = derive(lambda ring: ring.astype(jnp.bfloat16))(number, ring, made)
    return ring, made, other.at[number % ROWS].set(ring[number % ROWS])


RING = shape(ROWS, WIDTH)
BFLOAT = shape(ROWS, WIDTH, dtype=jnp.bfloat16)
pad = derive(lambda ring: jnp.pad(ring, ((0, 0), (0, WIDTH))))
convert = derive(lambda ring: ring.astype(jnp.bfloat16))
transpose = derive(lambda ring: ring.T)
select = derive(lambda ring: jnp.where(jnp.arange(ROWS)[:, None] % 3 == 1, 1.0, ring))
COPYING = {
    "copy": (write_then_read_old, (RING, shape(8)), "copy f32[16384,64]"),
    "pad": (pad, (RING, shape(ROWS, 2 * WIDTH)), "pad f32[16384,128]"),
    "convert": (convert, (RING, BFLOAT), "convert bf16[16384,64]"),
    "transpose": (transpose, (RING, shape(WIDTH, ROWS)), "copy f32[64,16384]"),
    "select": (select, (RING, RING), "select f32[16384,64]"),
    "beside a write": (beside_a_write, (RING, BFLOAT, RING), "convert bf16[16384,64]"),
    "in a nested loop": (nested(convert), (RING, BFLOAT), "convert bf16[16384,64]"),
    "in a branch": (in_branch(convert), (RING, BFLOAT), "convert bf16[16384,64]"),
}


@functools.cache
def copying(kind, name):
    step, carry, _ = COPYING[name]
    return compile_for(kind, lambda *carry: steps(step, carry), *carry, donate_argnums=tuple(range(len(carry))))


@pytest.mark.parametrize("name", COPYING)
def test_copies_in_a_loop_are_seen(kind, name):
    assert COPYING[name][-1] in report(copying(kind, name), SIZE).copies


def write_slice(number, ring):
    return (jax.lax.dynamic_update_slice_in_dim(ring, jnp.full((4, WIDTH), number, ring.dtype), number, 0),)


def scatter(number, ring):
    rows = (number * jnp.arange(1, 33)) % ROWS
    return (ring.at[rows].set(number.astype(ring.dtype)),)


def scatter_twice(number, ring):
    return scatter(number + 1, ring.at[number % ROWS, jnp.arange(5)].max(1))


def gather_and_write(number, ring):
    rows = (number * jnp.arange(1, 33)) % ROWS
    return (ring.at[(rows + 1) % ROWS].set(ring[rows].astype(jnp.float32).sum().astype(ring.dtype)),)


IN_PLACE = [write_slice, scatter, scatter_twice, gather_and_write]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.uint8], ids=["float32", "uint8"])
@pytest.mark.parametrize("step", IN_PLACE)
def test_writes_in_place_are_no_copies(kind, step, dtype):
    carry = (shape(ROWS, 2 * WIDTH, dtype=dtype),)
    compiled = compile_for(kind, lambda *carry: steps(step, carry), *carry, donate_argnums=0)
    assert report(compiled, SIZE // 8).copies == []
    assert report(compiled, SIZE // 8).kernels > 0


def test_what_is_copied_before_a_loop_is_not_of_the_loop(kind):
    def program(ring):
        return steps(scatter, (jnp.pad(ring, ((0, 0), (0, WIDTH))),))

    compiled = compile_for(kind, program, RING)
    assert report(compiled, SIZE).copies == []
    assert report(compiled, SIZE, whole=True).copies


def test_small_arrays_are_no_matter(kind):
    assert report(copying(kind, "convert"), 2 * SIZE).copies == []


def test_a_write_that_is_not_donated_is_a_copy(kind):
    def write(ring, number):
        return ring.at[number].set(1.0)

    for donated, is_copied in (((), True), (0, False)):
        compiled = compile_for(kind, write, RING, shape(dtype=jnp.int32), donate_argnums=donated)
        assert bool(report(compiled, SIZE, whole=True).copies) == is_copied


def test_cycles_are_estimated_for_tpus_only(kind):
    read = report(copying(kind, "convert"), SIZE)
    assert (read.cycles is not None and read.cycles > 1_000) == (kind == "tpu")
    assert read.argument_bytes >= 6 * SIZE
