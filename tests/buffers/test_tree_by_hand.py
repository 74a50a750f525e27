"""Segment trees of whole numbers, where sums are exact: every boundary between two leaves is in its place."""

from __future__ import annotations

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_buffers import segment_tree
from jaxrl_buffers.segment_tree import Place, ranges
from jaxrl_buffers.segment_tree import _places as places

HEIGHTS = [(8, 8), (9, 8), (64, 8), (65, 8), (300, 8), (70, 4), (300, 32), (300, 128)]  # of one level to four
find = jax.jit(segment_tree.find)
find_between = jax.jit(segment_tree.find_between)


def whole_numbers(size: int) -> np.ndarray:
    """Return numbers from 0 to 3, each of which stands for as many units of mass."""
    return np.random.default_rng(size).integers(0, 4, size).astype(np.float32)


@pytest.mark.parametrize(("size", "fan_out"), [*HEIGHTS, (5_000, 8), (5_000, 128)])
def test_a_threshold_on_the_border_of_two_leaves_finds_the_second(size, fan_out):
    """Unit `k` of the mass lies at `[k, k + 1)`; its owner is found from its lower end, and from its middle."""
    leaves = whole_numbers(size)
    owners = np.repeat(np.arange(size), leaves.astype(int))
    tree, lower = segment_tree.from_leaves(jnp.asarray(leaves), fan_out), jnp.arange(owners.size, dtype=jnp.float32)
    np.testing.assert_array_equal(find(tree, lower), owners)
    np.testing.assert_array_equal(find(tree, lower + 0.5), owners)
    start, stop = size // 5, size - size // 7
    inside = owners[(owners >= start) & (owners < stop)]
    lower = jnp.arange(owners.size, dtype=jnp.float32)
    expected = np.append(inside, [inside[-1]] + [-1] * (owners.size - inside.size - 1))  # the total finds the last one
    np.testing.assert_array_equal(
        find_between(tree, start, stop, lower)[: inside.size + 1], expected[: inside.size + 1]
    )
    np.testing.assert_array_equal(
        find_between(tree, start, stop, lower + 0.5), np.where(lower < inside.size, expected, -1)
    )


@pytest.mark.parametrize(("size", "fan_out"), HEIGHTS)
def test_ranges_of_a_tree_amount_to_their_leaves(size, fan_out):
    leaves = whole_numbers(size)
    tree = segment_tree.from_leaves(jnp.asarray(leaves), fan_out)
    bounds = sorted({0, 1, 7, 8, size // 3, size // 2, size - 1, size})
    begins, ends = (jnp.array(side) for side in zip(*[(a, b) for a in bounds for b in bounds if a <= b], strict=True))
    total, least, largest = jax.jit(jax.vmap(segment_tree.reduce, in_axes=(None, 0, 0)))(tree, begins, ends)
    for index, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        part = leaves[begin:end]
        expected = part.sum(), part[part > 0].min(initial=np.inf), part.max(initial=0)
        assert (total[index], least[index], largest[index]) == expected
    half = bounds[len(bounds) // 2]
    assert segment_tree.reduce(tree, half).total == leaves[half:].sum()
    assert segment_tree.reduce(tree, stop=half).total == leaves[:half].sum()


@pytest.mark.parametrize(("size", "fan_out"), [*HEIGHTS, (5_000, 8), (2**20, 8), (2**20, 128)])
def test_no_operation_changes_the_shape_of_a_tree(size, fan_out):
    tree = jax.eval_shape(lambda: segment_tree.init(size, fan_out))
    leaves, places = jax.ShapeDtypeStruct((size,), jnp.float32), jax.ShapeDtypeStruct((3,), jnp.int32)
    assert jax.eval_shape(lambda leaves: segment_tree.from_leaves(leaves, fan_out), leaves) == tree
    assert jax.eval_shape(segment_tree.write, tree, places, jax.ShapeDtypeStruct((3,), jnp.float32)) == tree


def test_leaves_outside_of_the_tree_are_zero():
    tree = segment_tree.from_leaves(jnp.arange(1.0, 11.0))
    places = jnp.array([-11, -10, -1, 0, 9, 10, 15, 16, 10**6])
    np.testing.assert_array_equal(segment_tree.read(tree, places), [0, 0, 0, 1, 10, 0, 0, 0, 0])


@pytest.mark.parametrize(("num_written", "fan_out"), [(1, 8), (3, 8), (40, 8), (40, 4), (40, 32), (1, 128), (40, 128)])
def test_a_written_tree_is_that_of_its_leaves(num_written, fan_out):
    """On levels that are recomputed whole and on those that are not: this tree has rows of both kinds."""
    size, rng = 8 * fan_out * segment_tree.SMALL_LEVEL, np.random.default_rng(num_written)
    leaves = rng.integers(0, 4, size).astype(np.float32)
    places = np.append(rng.integers(0, size, num_written - 1), size - 1).astype(np.int32)
    values = rng.integers(1, 9, num_written).astype(np.float32)
    where = np.append(rng.random(num_written - 1) < 0.7, True)
    tree = segment_tree.from_leaves(jnp.asarray(leaves), fan_out)
    written = jax.jit(segment_tree.write)(tree, places, values, where)
    for place, value, is_written in zip(places, values, where, strict=True):
        leaves[place] = value if is_written else leaves[place]
    expected = segment_tree.from_leaves(jnp.asarray(leaves), fan_out)
    for field in ("leaves", "inner", "top"):
        np.testing.assert_array_equal(getattr(written, field), getattr(expected, field))
    assert segment_tree.reduce(written) == (leaves.sum(), 1, leaves.max())


@pytest.mark.parametrize("wide", [False, True])
def test_picking_a_child(wide):
    masses = jnp.array([[0.0, 2, 0, 3, 0]] * 6 + [[0.0] * 5])
    child, rest = segment_tree.pick(masses, places.at(jnp.array([0.0, 1.5, 2, 4.5, 5, 9, 1])), wide)
    assert child.tolist() == [1, 1, 3, 3, 3, 3, 0]
    assert rest.high[:4].tolist() == [0, 1.5, 0, 2.5]
    assert np.all(rest.high[4:6] >= 3)  # past the end, where the last child is to be taken further down as well
    shared, inside = segment_tree.pick(masses[:1].repeat(1 if wide else 2, 0), places.at(jnp.array([0.0, 4.5])), wide)
    assert (shared.tolist(), inside.high.tolist()) == ([1, 3], [0, 2.5])


@pytest.mark.parametrize("wide", [False, True])
def test_the_low_part_of_a_place_decides_at_a_border(wide):
    """One part in 2^30 before the border of two children, on it and behind it; and so for what is left of the place."""
    place = Place(jnp.full(3, 2.0), jnp.array([-(2.0**-30), 0, 2.0**-30]))
    child, rest = segment_tree.pick(jnp.array([[2.0, 3.0]] * 3), place, wide)
    assert child.tolist() == [0, 1, 1]
    assert rest.high.tolist() == [2, 0, 2.0**-30]
    assert rest.low.tolist() == [-(2.0**-30), 0, 0]


def exact(place):
    """Return places as fractions of whole numbers."""
    pairs = zip(np.asarray(place.high, np.float64).tolist(), np.asarray(place.low, np.float64).tolist(), strict=True)
    return [Fraction(high) + Fraction(low) for high, low in pairs]


@pytest.mark.parametrize("total", [1.0, 1234.567, 3e37, 1e-20])
@pytest.mark.parametrize(("batch_size", "stratified"), [(64, True), (100, True), (5_000, True), (100, False)])
def test_places_have_as_many_bits_as_two_random_words(total, batch_size, stratified):
    """Against fractions of whole numbers: `(stratum + u) / B` of the mass, for a `u` of 48 bits."""
    total, key = np.float32(total), jax.random.key(0)
    words = jax.random.key_data(jax.random.split(key, batch_size)).tolist()
    uniforms = [Fraction(one >> 8, 2**24) + Fraction(two >> 8, 2**48) for one, two in words]
    if stratified:
        uniforms = [(stratum + uniform) / batch_size for stratum, uniform in enumerate(uniforms)]
    place = jax.jit(places.draw, static_argnums=(1, 3))(key, batch_size, total, stratified)
    errors = [got - uniform * Fraction(float(total)) for got, uniform in zip(exact(place), uniforms, strict=True)]
    assert max(map(abs, errors)) < Fraction(float(total)) / 2**45
    assert np.all(np.abs(place.low) <= np.spacing(place.high) / 2)


def test_what_is_left_of_a_place_is_as_precise():
    rng = np.random.default_rng(0)
    place = jax.jit(places.draw, static_argnums=(1, 3))(jax.random.key(0), 1_000, np.float32(7), False)
    mass = np.float32(exact(place)) * rng.random(1_000).astype(np.float32) ** rng.integers(0, 30, 1_000)
    left = jax.jit(places.minus)(place, mass.astype(np.float32))
    expected = [one - Fraction(float(other)) for one, other in zip(exact(place), mass.astype(np.float32), strict=True)]
    errors = [got - wanted for got, wanted in zip(exact(left), expected, strict=True)]
    assert max(map(abs, errors)) < Fraction(7, 2**47)


def test_a_number_exceeds_a_place_iff_it_exceeds_what_is_before_it():
    place = Place(jnp.full(3, 4.0), jnp.array([-(2.0**-26), 0, 2.0**-26]))
    assert places.before(place).tolist() == [np.nextafter(np.float32(4), np.float32(0)), 4, 4]


@pytest.mark.parametrize("fan_out", [8, 128])
def test_draws_inside_of_ranges(fan_out):
    """Of two ranges and an empty one; the strata are laid along the ranges in the order in which they are given."""
    leaves = np.zeros(300, np.float32)
    leaves[[3, 100, 101, 250, 299]] = [1, 2, 5, 1, 4]
    tree = segment_tree.from_leaves(jnp.asarray(leaves), fan_out)
    begins, ends = jnp.array([200, 40, 0]), jnp.array([300, 40, 101])
    draw = jax.jit(segment_tree.draw_ranges, static_argnames=("batch_size", "stratified"))
    indices, drawn, summary = draw(tree, jax.random.key(0), batch_size=80, begins=begins, ends=ends)
    assert indices.tolist() == [250] * 10 + [299] * 40 + [3] * 10 + [100] * 20
    np.testing.assert_array_equal(drawn, leaves[np.asarray(indices)])
    assert tuple(summary) == tuple(segment_tree.reduce_ranges(tree, begins, ends)) == (8, 1, 4)
    free, _, _ = draw(tree, jax.random.key(0), batch_size=8_000, begins=begins, ends=ends, stratified=False)
    counts = np.bincount(free, minlength=300)
    assert counts.sum() == counts[[3, 100, 250, 299]].sum()
    np.testing.assert_allclose(counts[[3, 100, 250, 299]] / 1_000, [1, 2, 1, 4], atol=0.2)
    nothing, zero, _ = draw(tree, jax.random.key(0), batch_size=2, begins=begins[1:2], ends=ends[1:2])
    assert zero.tolist() == [0, 0]
    assert nothing.shape == (2,)


def test_a_range_is_chosen_by_its_share_of_the_mass():
    masses = jnp.array([0.0, 2.0, 0.0, 3.0, 0.0])
    chosen, rest = ranges._choose_range(masses, places.at(jnp.array([0.0, 1.5, 2.0, 4.5, 5.0])))
    assert chosen.tolist() == [1, 1, 3, 3, 3]
    assert rest.high.tolist() == [0, 1.5, 0, 2.5, 3]
