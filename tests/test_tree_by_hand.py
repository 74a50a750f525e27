"""Segment trees of whole numbers, where sums are exact: every boundary between two leaves is in its place."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_buffers import segment_tree
from jaxrl_buffers.segment_tree import ranges

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
    child, rest, mass = segment_tree.pick(masses, jnp.array([0.0, 1.5, 2, 4.5, 5, 9, 1]), wide)
    assert child.tolist() == [1, 1, 3, 3, 3, 3, 0]
    assert rest[:4].tolist() == [0, 1.5, 0, 2.5]
    assert np.all(rest[4:] >= mass[4:])  # past the end, where the last child is to be taken further down as well
    assert mass.tolist() == [2, 2, 3, 3, 3, 3, 0]
    shared = segment_tree.pick(masses[:1], jnp.array([0.0, 4.5]), wide=True)
    assert [part.tolist() for part in shared] == [[1, 3], [0, 2.5], [2, 3]]


def test_strata_do_not_overlap():
    ends = np.float32([0, 0.25, np.nextafter(np.float32(1), np.float32(0))])
    for uniform in ends:
        places = np.asarray(segment_tree.fractions(jnp.full(4_096, uniform), stratified=True), np.float64) * 4_096
        assert np.all(np.floor(places) == np.arange(4_096))
        np.testing.assert_allclose(places - np.arange(4_096), uniform, atol=3e-4)
        np.testing.assert_array_equal(segment_tree.fractions(jnp.full(3, uniform), stratified=False), uniform)


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
    chosen, rest = ranges._choose_range(masses, jnp.array([0.0, 1.5, 2.0, 4.5, 5.0]))
    assert chosen.tolist() == [1, 1, 3, 3, 3]
    assert rest.tolist() == [0, 1.5, 0, 2.5, 3]


def test_numbers_are_drawn_afresh_when_their_bits_are_used_up():
    scale = float(2**ranges.BITS_PER_UNIFORM)
    mass, drawn_for = jnp.array([1.0, 1.0]), jnp.array([scale, 1.01 * scale])
    residual, now_for, _ = ranges._drawn_afresh(jnp.full(2, 0.5), mass, jnp.full(2, 0.25), drawn_for, None)
    assert residual.tolist() == [0.25, 0.5]
    assert now_for.tolist() == [scale, 1]


def test_numbers_are_drawn_afresh_inside_their_strata():
    """A node of mass 4, of which the strata cover the middle, the begin, the end, all, and, by rounding, nothing."""
    residual = jnp.array([2.0, 1.0, 3.0, 1.0, 6.0])
    room = segment_tree.Room(jnp.array([1.0, 9.0, 1.0, 9.0, 1.0]), jnp.array([0.5, 1.0, 9.0, 9.0, 1.0]))
    drawn, after = segment_tree.draw_afresh(jnp.full(5, 0.25), residual, jnp.full(5, 4.0), room)
    assert drawn.tolist() == [1.375, 0.5, 2.5, 1.0, 4.0]
    assert (drawn - after.before).tolist() == (residual - room.before).tolist()
    assert (drawn + after.behind).tolist() == (residual + room.behind).tolist()
    anywhere, nothing = segment_tree.draw_afresh(jnp.full(5, 0.25), residual, jnp.full(5, 4.0), None)
    assert anywhere.tolist() == [1.0] * 5
    assert nothing is None


def test_the_room_of_a_draw_reaches_to_the_ends_of_its_stratum():
    room = segment_tree.room_of(jnp.array([0.125, 0.5, 0.9375]), jnp.float32(6))
    np.testing.assert_allclose(room.before, [0.75, 1.0, 1.625], rtol=1e-5)
    np.testing.assert_allclose(room.behind, [1.25, 1.0, 0.375], rtol=1e-5)
    assert segment_tree.room_of(jnp.zeros(segment_tree.MOST_STRATA), jnp.float32(6)) is not None
    assert segment_tree.room_of(jnp.zeros(segment_tree.MOST_STRATA + 1), jnp.float32(6)) is None
