"""Rows in both layouts: every dtype and shape survives bit for bit, and no operation tells the layouts apart."""

from __future__ import annotations

import functools

import chex
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from support import helpers

import jaxrl_buffers as jb
from jaxrl_buffers import checkpoint
from jaxrl_buffers.storage import _words, rows
from jaxrl_buffers.storage._leaves import Leaves
from jaxrl_buffers.storage._packing import Element, form_of, pack, unpack
from jaxrl_buffers.storage._words import LARGE, Words
from jaxrl_buffers.storage.rows import PLATFORMS

DTYPES = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "float32", "complex64"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, ml_dtypes.uint4),
]
WIDE_DTYPES = ["int64", "uint64", "float64", "complex128"]
TWO_ROWS = 70  # words: rows of two environments are packed in blocks of two rows, and what is left over
SHAPES = [(), (1,), (3,), (4,), (5, 2), (2, 3, 3)]


def random_bits(rng, dtype, shape):
    """Return an array of random bits, so that NaNs of all kinds, infinities and negative zeros occur."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype in (ml_dtypes.int4, ml_dtypes.uint4):
        return rng.integers(0, 8, shape).astype(dtype)
    return rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype).reshape(shape)


def bits(array):
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.ascontiguousarray(np.asarray(array)).reshape(-1).view(np.uint8)


def assert_same_bits(one, other):
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(bits(one), bits(other))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_dtype_and_shape_survives_packing(dtype, shape):
    values = jnp.asarray(random_bits(np.random.default_rng(0), dtype, (6, *shape)))
    form = form_of([Element(shape, values.dtype)])
    words = jax.jit(pack, static_argnums=(0, 2))(form, [values], 1)
    assert words.shape == (6, form.num_words)
    assert words.dtype == jnp.uint32
    assert_same_bits(jax.jit(unpack, static_argnums=0)(form, words)[0], values)


@pytest.mark.parametrize("dtype", WIDE_DTYPES)
def test_numbers_of_64_bits_survive_packing(dtype):
    with jax.enable_x64(True):
        values = jnp.asarray(random_bits(np.random.default_rng(0), dtype, (6, 3, 2)))
        form = form_of([Element((3, 2), values.dtype)])
        assert_same_bits(unpack(form, pack(form, [values], 1))[0], values)


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_typed_keys_survive_packing(implementation):
    keys = jax.random.split(jax.random.key(0, impl=implementation), (6, 2))
    form = form_of([Element((2,), keys.dtype)])
    assert_same_bits(unpack(form, pack(form, [keys], 1))[0], keys)


def test_leaves_of_all_widths_lie_side_by_side_without_gaps():
    rng = np.random.default_rng(0)
    leaves = [jnp.asarray(random_bits(rng, dtype, (4, *shape))) for dtype, shape in zip(DTYPES, [*SHAPES] * 3)]  # noqa: B905
    form = form_of([Element(leaf.shape[1:], leaf.dtype) for leaf in leaves])
    bytes_by_width = {1: 0, 2: 0, 4: 0}
    for leaf in leaves:
        width = leaf.dtype.itemsize // 2 if leaf.dtype == jnp.complex64 else leaf.dtype.itemsize
        bytes_by_width[width] += leaf[0].size * leaf.dtype.itemsize
    assert form.num_words == sum(-(-size // 4) for size in bytes_by_width.values())
    for got, leaf in zip(unpack(form, pack(form, leaves, 1)), leaves, strict=True):
        assert_same_bits(got, leaf)


def test_bytes_are_packed_in_planes():
    values = jnp.arange(1, 7, dtype=jnp.uint8)[None]
    form = form_of([Element((6,), values.dtype)])
    assert pack(form, [values], 1).tolist() == [[1 | 3 << 8 | 5 << 16, 2 | 4 << 8 | 6 << 16]]


@pytest.mark.parametrize(("num_words", "on_tpu"), [(9, 16), (42, 48), (56, 56), (57, 128), (130, 256)])
def test_rows_are_padded_on_tpu_only(num_words, on_tpu):
    structure = jax.ShapeDtypeStruct((num_words,), jnp.float32)
    widths = [rows.empty(structure, (2, 2), platform).arrays[0].shape[1] for platform in ("gpu", "tpu")]
    assert widths == [num_words, on_tpu]


def test_large_leaves_have_arrays_of_their_own():
    structure = {"image": jax.ShapeDtypeStruct((LARGE * 4,), jnp.uint8), "x": jax.ShapeDtypeStruct((3,), jnp.float32)}
    assert [array.shape for array in rows.empty(structure, (5, 2), "gpu").arrays] == [(10, 3), (10, LARGE)]


def test_the_layout_follows_the_platform():
    kinds = [type(jb.uniform(4, platform=platform).init(helpers.EXAMPLE).storage.rows) for platform in PLATFORMS]
    assert kinds == [Leaves, Words, Words]
    assert type(jb.ReplayBuffer(view=jb.Sequence(1), length=4).init(0.0).storage.rows) is Leaves  # tests run on CPU
    with pytest.raises(ValueError, match="`platform` must be one of 'cpu', 'gpu', 'tpu'"):
        jb.uniform(4, platform="cuda")


def random_rows(rng, *lead):
    return {
        "x": jnp.asarray(random_bits(rng, "float32", (*lead, 3))),
        "flag": jnp.asarray(random_bits(rng, "bool", lead)),
        "half": jnp.asarray(random_bits(rng, ml_dtypes.bfloat16, (*lead, 2, 1))),
        "image": jnp.asarray(random_bits(rng, "uint8", (*lead, LARGE, 4))),
        "key": jax.random.split(jax.random.key(int(rng.integers(100))), lead),
    }


def wide_rows(rng, *lead):
    """Return rows for x64 mode, of which a large leaf of 64 bits has an array of its own."""
    shapes = {"int64": (2,), "complex64": (2, 1), "float16": (3,), ml_dtypes.int4: (5,)}
    numbers = {str(dtype): jnp.asarray(random_bits(rng, dtype, (*lead, *shape))) for dtype, shape in shapes.items()}
    large = jnp.asarray(random_bits(rng, "int64", (*lead, LARGE)))
    return numbers | {"flag": jnp.asarray(random_bits(rng, "bool", lead)), "large": large}


def structure_of(tree, num_axes):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[num_axes:], leaf.dtype), tree)


@functools.partial(jax.jit, static_argnames="length")
def written(layout, length, chunk, row, scattered, index, flags, at):
    return layout.write(chunk, row, length).write_at(scattered, *index).set_field("flag", flags, *at)


@jax.jit
def read_in_all_ways(layout, index, number):
    steps, chosen = layout.read_steps(list(index)), index[number, jnp.arange(index.shape[1])]
    selected = layout.select(steps, number, chosen), layout.select(steps, 0, index[0])
    return layout.tree, layout.read(index), [layout.unpack(step) for step in steps], selected


def check_random_operations(random_rows, num_cycles):
    rng = np.random.default_rng(0)
    length, num_envs = 7, 3
    layouts = [rows.empty(structure_of(random_rows(rng, 1), 1), (length, num_envs), name) for name in PLATFORMS]
    chex.assert_trees_all_equal_structs(*(layout.structure for layout in layouts))
    for _ in range(num_cycles):
        num_rows, row = int(rng.choice([1, 3, length])), int(rng.integers(length))
        chunk = random_rows(rng, num_rows, num_envs)
        places = jnp.asarray(rng.permutation(length + 1)[:2], jnp.int32)[:, None]  # one may lie outside
        env = jnp.asarray(rng.permutation(num_envs)[:2], jnp.int32)[None]
        index = jnp.broadcast_to(places, (2, 2)), jnp.broadcast_to(env, (2, 2))
        scattered = random_rows(rng, 2, 2)
        flags = jnp.asarray(rng.random(num_envs) < 0.5)
        at = jnp.asarray(rng.integers(length, size=num_envs), jnp.int32), jnp.arange(num_envs, dtype=jnp.int32)
        arguments = length, chunk, jnp.int32(row), scattered, index, flags, at
        layouts = [written(layout, *arguments) for layout in layouts]
        index, number = jnp.asarray(rng.integers(length * num_envs, size=(3, 4))), jnp.array([0, 2, 1, 2])
        first, *others = (read_in_all_ways(layout, index, number) for layout in layouts)
        for other in others:
            jax.tree.map(assert_same_bits, first, other)


def test_random_operations_on_both_layouts_give_the_same():
    check_random_operations(random_rows, num_cycles=12)


def test_random_operations_on_numbers_of_64_bits_give_the_same():
    with jax.enable_x64(True):
        check_random_operations(wide_rows, num_cycles=4)


def test_selected_steps_are_those_that_were_named():
    layout = rows.empty(structure_of(helpers.EXAMPLE, 0), (6, 2), "tpu")
    chunk = helpers.stack([[helpers.transition(10 * row + env) for env in range(2)] for row in range(6)])
    layout = layout.write(jax.tree.map(jnp.asarray, chunk), jnp.int32(0), 6)
    index = jnp.array([[0, 3], [2, 5], [4, 7]])
    number = jnp.array([2, 1])
    picked = layout.select(layout.read_steps(index), number, index[number, jnp.arange(2)])
    assert picked.action.tolist() == [20, 21]


@pytest.mark.parametrize("from_platform", PLATFORMS)
@pytest.mark.parametrize("to_platform", PLATFORMS)
def test_checkpoints_move_between_layouts(tmp_path, monkeypatch, from_platform, to_platform):
    monkeypatch.setattr(_words, "BLOCK_WORDS", TWO_ROWS)

    def filled(platform, seed):
        buffer = jb.prioritized(5, 2, n=2, platform=platform)
        example = helpers.EXAMPLE._replace(extras={"key": jax.random.key(0), "half": jnp.zeros(3, jnp.bfloat16)})
        chunk = helpers.stack([[helpers.transition(7 * row + env) for env in range(2)] for row in range(3)])
        half = jnp.ones((3, 2, 3), jnp.bfloat16) * seed
        extras = {"key": jax.random.split(jax.random.key(seed), (3, 2)), "half": half}
        chunk = jax.tree.map(jnp.asarray, chunk._replace(extras=extras))
        return buffer, buffer.add(buffer.add(buffer.init(example), chunk), chunk)

    (_, saved), (buffer, like) = filled(from_platform, 1), filled(to_platform, 2)
    checkpoint.save(tmp_path, saved)
    restored = checkpoint.restore(tmp_path, jax.eval_shape(lambda: like))
    chex.assert_trees_all_equal_shapes_and_dtypes(restored, like)
    jax.tree.map(assert_same_bits, restored.storage.data, saved.storage.data)
    expected = buffer.sample(filled(to_platform, 1)[1], jax.random.key(3), 8)
    jax.tree.map(assert_same_bits, buffer.sample(restored, jax.random.key(3), 8), expected)


def test_vmapped_states_move_between_layouts(tmp_path, monkeypatch):
    monkeypatch.setattr(_words, "BLOCK_WORDS", TWO_ROWS)

    def filled(platform):
        buffer = jb.uniform(5, 2, platform=platform)
        chunk = helpers.stack([[helpers.transition(7 * row + env) for env in range(2)] for row in range(3)])

        def fill(number):
            numbered = jax.tree.map(lambda leaf: jnp.asarray(leaf) + number.astype(leaf.dtype), chunk)
            return buffer.add(buffer.init(helpers.EXAMPLE), numbered)

        return jax.vmap(fill)(jnp.arange(3))

    checkpoint.save(tmp_path, filled("tpu"))
    restored = checkpoint.restore(tmp_path, jax.eval_shape(lambda: filled("cpu")))
    chex.assert_trees_all_equal(restored, filled("cpu"))
    checkpoint.save(tmp_path, restored)
    chex.assert_trees_all_equal(checkpoint.restore(tmp_path, filled("tpu")), filled("tpu"))


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("lockstep", [True, False])
def test_typed_keys_can_be_stored(platform, lockstep):
    buffer = jb.ReplayBuffer(view=jb.Sequence(1), length=3, num_envs=2, platform=platform, lockstep=lockstep)
    keys = jax.random.split(jax.random.key(1), (4, 2))
    state = buffer.init(jax.random.key(0))
    for row in range(4):
        state = buffer.add(state, keys[row : row + 1])
    stored, whole = buffer.gather_all(state)
    assert bool(jnp.all(whole))
    assert_same_bits(stored, keys[1:])
    sample = buffer.sample(state, jax.random.key(2), 5)
    age = buffer.age(state, sample.handle)
    assert_same_bits(sample.batch[:, 0], keys[3 - age, sample.handle.env])
