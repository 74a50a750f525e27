"""Workarounds for compilers: each changes no number, and is there on the platform that needs it alone."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.platforms import assert_plain_elsewhere, operations

from jaxrl_buffers import _xla, segment_tree

DTYPES = [jnp.int32, jnp.uint32, jnp.uint8, jnp.bool_, jnp.float32, jnp.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("unknown", [None, 0, 1, -1, 2**31 - 1])
def test_what_is_kept_stays_as_it_is(dtype, unknown):
    unknown = None if unknown is None else jnp.int32(unknown)
    values = jnp.array([[0, 1, 7], [2**31 - 1, -1, -(2**31)]], jnp.int32).astype(dtype)
    kept = jax.jit(_xla.keep)(values, unknown)
    assert kept.dtype == dtype
    np.testing.assert_array_equal(kept, values)
    np.testing.assert_array_equal(jax.vmap(_xla.keep, in_axes=(0, None))(values, unknown), values)
    assert _xla.keep(values[:0], unknown).shape == (0, 3)


@pytest.mark.parametrize("unknown", [True, False])
@pytest.mark.parametrize("keep", [True, False])
def test_what_is_kept_is_not_computed_in_the_gather(keep, unknown, optimized_code):
    """Without it the multiplications are done again for each of the eight numbers of a row: the test can fail."""

    def rows(one, other, index, number):
        for _ in range(5):
            index = index * index + 3
        index = index & 63
        index = _xla.keep(index, number if unknown else None) if keep else index
        return one[index], other[index]

    shapes = *jnp.zeros((2, 64, 8)), jnp.zeros(16, jnp.int32), jnp.int32(0)
    text = jax.jit(rows).lower(*shapes).compile().as_text()
    gathers = [part for part in re.split(r"\n\n", text) if " gather(" in part]
    assert gathers
    assert any(re.search(r"s32\S* multiply\(", part) for part in gathers) is not keep


def test_values_are_kept_on_cpu_alone():
    def kept(values):
        return _xla.keep(values)

    assert_plain_elsewhere(kept, lambda values: values, jnp.arange(3))


@pytest.mark.parametrize("read", [0.0, 1e-45, 3.0, float("inf")])
def test_a_mask_that_is_ordered_stays_as_it_is(read):
    mask = jnp.array([[True, False, True], [False, False, True]])
    np.testing.assert_array_equal(jax.jit(_xla.order_after)(mask, jnp.float32(read)), mask)


def test_masks_are_ordered_on_cpu_alone():
    def ordered(mask, read):
        return _xla.order_after(mask, read)

    assert_plain_elsewhere(ordered, lambda mask, read: mask, jnp.array([True, False]), jnp.float32(0))


def test_values_share_a_kernel_on_gpu_alone():
    def together(values, others):
        return _xla.in_one_kernel(values, others), others

    for values in (jnp.int32(3), jnp.arange(-2, 3, dtype=jnp.int32)):
        args = values, jnp.zeros_like(values)
        for platform in ("cpu", "tpu"):
            assert operations(platform, together, *args) == operations(platform, lambda *args: args, *args)
        assert operations("cuda", together, *args) != operations("cuda", lambda *args: args, *args)
        for others in (0, 1, -1, 2**31 - 1):  # what GPUs compute, on this machine
            np.testing.assert_array_equal(_xla.values._behind(values, jnp.full_like(values, others)), values)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((1024, 23), [0, 1]), ((1024, 120), [0, 1]), ((1024, 121), [1, 0]), ((1024, 256), [1, 0]), ((8, 23), [1, 0])],
)
def test_arrays_are_compact_on_tpu_alone(shape, layout):
    array = jnp.zeros(shape)
    text = jax.jit(_xla.compact).trace(array).lower(lowering_platforms=("tpu",)).as_text()
    assert f"result_layouts = [dense<{layout}>" in text
    for platform in ("cpu", "cuda"):
        assert operations(platform, _xla.compact, array) == operations(platform, lambda array: array, array)


@pytest.mark.parametrize(
    ("shape", "is_special"), [((322_432, 23), False), ((322_688, 23), True), ((2**22, 56), True), ((2**22, 57), False)]
)
def test_arrays_that_are_read_by_row_are_compact_if_that_saves_much(shape, is_special):
    """These are the sizes and widths at which the compiler itself begins to read rows from the smaller layout."""
    array = jax.ShapeDtypeStruct(shape, jnp.uint32)
    found = operations("tpu", lambda array: _xla.compact(array, is_read_by_row=True), array)
    assert ("stablehlo.custom_call @LayoutConstraint" in found) is is_special


def test_four_bytes_are_stacked_as_words_on_cpu():
    def stacked(*arrays):
        return _xla.stack_bytes(arrays)

    def plain(*arrays):
        return jnp.stack(arrays, axis=-1)

    arrays = [jnp.asarray(part, jnp.uint8) for part in np.random.default_rng(0).integers(256, size=(4, 5, 3))]
    np.testing.assert_array_equal(jax.jit(stacked)(*arrays), plain(*arrays))
    assert_plain_elsewhere(stacked, plain, *arrays)
    for others in (arrays[:3], [array.astype(jnp.uint16) for array in arrays]):
        assert operations("cpu", stacked, *others) == operations("cpu", plain, *others)


def test_scalars_are_chosen_one_by_one_on_cpu_alone():
    def stacked(*scalars):
        return _xla.stack_scalars(scalars)

    scalars = [jnp.float32(number) for number in (3, -0.0, jnp.nan, jnp.inf)]
    np.testing.assert_array_equal(jax.jit(stacked)(*scalars), jnp.stack(scalars))
    assert_plain_elsewhere(stacked, lambda *scalars: jnp.stack(scalars), *scalars)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 31, 32, 48, 50, 128])
def test_sums_are_made_in_the_same_order_at_any_width(width):
    """The second half is added to the first, what is left over stays behind it."""
    values = np.random.default_rng(width).random((4, width)).astype(np.float32) ** 20
    parts = values
    while (size := parts.shape[1] // 2) > 0:
        parts = np.concatenate([parts[:, :size] + parts[:, size : 2 * size], parts[:, 2 * size :]], axis=1)
    np.testing.assert_array_equal(jax.jit(_xla.sum_in_order)(values), parts[:, 0])


@pytest.mark.parametrize(("width", "is_special"), [(8, False), (128, True)])
def test_wide_rows_are_laid_out_anew_on_tpu_alone(width, is_special):
    rows, layout = jnp.zeros((16, width)), "stablehlo.custom_call @LayoutConstraint"
    assert (layout in operations("tpu", _xla.sum_in_order, rows)) is is_special
    for platform in ("cpu", "cuda"):
        assert layout not in operations(platform, _xla.sum_in_order, rows)


@pytest.mark.parametrize("places", [[4], [9], [1, 4], []])
def test_single_writes_are_as_any_other(places):
    array, places = jnp.zeros((6, 2, 3)), jnp.array(places, jnp.int32)
    values = 1 + jnp.arange(2.0 * places.size).reshape(-1, 2)
    index = (places, slice(None), places % 3)
    written = jax.jit(lambda array, values: _xla.set_at(array, index, values))(array, values)
    np.testing.assert_array_equal(written, array.at[index].set(values, mode="drop"))


def test_single_writes_are_doubled_on_cpu_alone():
    def written(array, place, values):
        return _xla.set_at(array, (place,), values)

    def plain(array, place, values):
        return array.at[place].set(values, mode="drop")

    array = jnp.zeros((6, 2))
    assert_plain_elsewhere(written, plain, array, jnp.zeros(1, jnp.int32), array[:1])
    two = array, jnp.zeros(2, jnp.int32), array[:2]
    assert operations("cpu", written, *two) == operations("cpu", plain, *two)


def test_runs_are_set_in_one_kernel_on_gpu_alone():
    def written(array, begin, values, valid):
        return _xla.set_run(array, begin, values, valid, length=30, wraps=True)

    args = jnp.zeros(40), jnp.int32(25), jnp.ones(8), jnp.ones(8, bool)
    for platform, is_scatter in (("cuda", True), ("tpu", False), ("cpu", False)):
        found = operations(platform, written, *args)
        assert ("stablehlo.scatter" in found) is is_scatter
        assert found.count("stablehlo.dynamic_update_slice") == (0 if is_scatter else 2)


@pytest.mark.parametrize("wraps", [True, False])
def test_runs_of_leaves_are_scattered_on_gpu_alone(wraps):
    """This is of wide trees: narrow ones write only the leaves themselves as runs."""

    def written(tree, begin, values):
        return segment_tree.write_run(tree, begin, values, wraps=wraps)

    args = segment_tree.init(2**16, fan_out=32), jnp.int32(5), jnp.ones(40)
    counts = {name: operations(name, written, *args) for name in ("cuda", "tpu", "cpu")}
    slices = {name: found.count("stablehlo.dynamic_update_slice") for name, found in counts.items()}
    num_runs = 1 + 3  # of the leaves, and of three numbers of the parents that are stored
    assert slices == {"cuda": 0, "tpu": num_runs * (1 + wraps), "cpu": num_runs * (1 + wraps)}
    assert "stablehlo.scatter" in counts["cuda"]
