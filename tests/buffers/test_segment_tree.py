"""Segment trees against the obvious list, at every shape of tree, and their exactness at size."""

from __future__ import annotations

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.ring import ReferenceSegmentTree

from jaxrl_buffers import host, segment_tree
from jaxrl_buffers._xla import writes
from jaxrl_buffers.segment_tree import runs

SIZES = {4: [65], 8: [1, 2, 3, 4, 7, 8, 9, 15, 16, 65, 128], 32: [200], 128: [100, 300]}
SHAPES = [(size, fan_out) for fan_out, sizes in SIZES.items() for size in sizes]
FAN_OUTS = list(SIZES)
NARROW_AND_WIDE = [8, 128]
write = jax.jit(segment_tree.write)
find = jax.jit(segment_tree.find)
find_between = jax.jit(segment_tree.find_between)
summarize = jax.jit(segment_tree.reduce)
draw = jax.jit(segment_tree.draw, static_argnames=("batch_size", "stratified"))


def leaves(tree: segment_tree.SegmentTree) -> np.ndarray:
    return np.asarray(tree.leaves)[: tree.capacity]


@pytest.mark.parametrize(("size", "fan_out"), SHAPES)
def test_shuffled_updates_are_read_back_summed_up_and_found(size, fan_out):
    rng = np.random.default_rng(size)
    tree = segment_tree.init(size, fan_out)
    for _ in range(3):
        indices, values = rng.permutation(size), rng.random(size).astype(np.float32) + np.float32(0.01)
        tree = write(tree, jnp.asarray(indices, jnp.int32), jnp.asarray(values))
    chex.assert_trees_all_equal(segment_tree.read(tree, jnp.asarray(indices)), jnp.asarray(values))
    total, least, largest = summarize(tree)
    np.testing.assert_allclose(total, values.sum(), rtol=1e-6)
    assert (float(least), float(largest)) == (values.min(), values.max())
    ordered = leaves(tree).astype(np.float64)
    thresholds = ordered.cumsum() - ordered + ordered * rng.random(size) * 0.999
    thresholds = np.append(thresholds, [total, total + 1]).astype(np.float32)
    assert find(tree, thresholds).tolist() == [*range(size), size - 1, -1]
    with pytest.raises(ValueError, match=r"find\(\) got the threshold .* the sum of all leaves"):
        host.find(tree, total[None] + 1)


@pytest.mark.parametrize("fan_out", FAN_OUTS)
def test_a_threshold_equal_to_the_total_finds_the_last_nonzero_leaf(fan_out):
    tree = segment_tree.from_leaves(jnp.array([0.1] * 9 + [0.0] * 150), fan_out)
    assert host.find(tree, summarize(tree).total[None]).tolist() == [8]


@pytest.mark.parametrize(("size", "fan_out"), SHAPES)
def test_a_threshold_equal_to_a_prefix_sum_finds_the_leaf_behind_it(size, fan_out):
    """Whole numbers are summed up exactly, so that every threshold below is one that a prefix sum reaches or misses."""
    values = np.random.default_rng(size).integers(0, 3, size).astype(np.float32)
    values[size // 2] = 1
    tree, reference = segment_tree.from_leaves(jnp.asarray(values), fan_out), ReferenceSegmentTree(size)
    reference.write(range(size), values)
    thresholds = np.arange(values.sum() + 1, dtype=np.float32)
    expected = [reference.find(float(threshold)) for threshold in thresholds]
    assert find(tree, thresholds).tolist() == expected
    assert find_between(tree, 0, size, thresholds).tolist() == expected


@pytest.mark.parametrize("fan_out", NARROW_AND_WIDE)
def test_a_tree_of_zeros_finds_nothing(fan_out):
    tree = segment_tree.init(10, fan_out)
    assert find(tree, jnp.zeros(1)).tolist() == [-1]
    assert float(draw(tree, jax.random.key(0), batch_size=1)[1][0]) == 0
    assert summarize(tree) == (0, np.inf, 0)


@pytest.mark.parametrize(("size", "fan_out"), SHAPES)
def test_ranges_match_the_reference(size, fan_out):
    rng = np.random.default_rng(size)
    tree, reference = segment_tree.init(size, fan_out), ReferenceSegmentTree(size)
    for _ in range(8):
        indices = rng.integers(-2, size + 3, 12).astype(np.int32)  # with duplicates, some outside
        values = (rng.random(12) * (rng.random(12) > 0.4)).astype(np.float32)
        tree = write(tree, indices, values)
        reference.write(indices.tolist(), values.tolist())
        np.testing.assert_array_equal(leaves(tree), np.array(reference.leaves, np.float32))
        assert int(segment_tree.count_nonzero(tree)) == reference.count_nonzero()
        start, stop = sorted(rng.integers(0, size + 1, 2).tolist())
        part = summarize(tree, start, stop)
        expected = reference.sum(start, stop), reference.minimum(start, stop), reference.maximum(start, stop)
        np.testing.assert_allclose(part, expected, rtol=1e-6)
        thresholds = np.array([0, 0.37, 0.91], np.float32) * np.float32(expected[0])
        found = find_between(tree, start, stop, jnp.append(thresholds, 2 * expected[0] + 1))
        assert found.tolist() == [reference.find_between(start, stop, float(t)) for t in thresholds] + [-1]


@pytest.mark.parametrize("fan_out", NARROW_AND_WIDE)
def test_a_small_range_keeps_its_mass_beside_a_huge_one(fan_out):
    """Differences of prefix sums would give 0 here."""
    values = np.full(1000, 1e4, np.float32)
    values[500:514] = 0.1
    part = summarize(segment_tree.from_leaves(jnp.asarray(values), fan_out), 500, 514)
    np.testing.assert_allclose(part.total, 1.4, rtol=1e-6)


@pytest.mark.parametrize(
    ("path", "most_pairs"), [("_set_in_order", 16), ("_set_without_duplicates", 16), ("_set_without_duplicates", 15)]
)
def test_the_last_valid_duplicate_wins(path, most_pairs, monkeypatch):
    """On all ways to set leaves, whichever the platform takes, and however many there are."""
    monkeypatch.setattr(writes, "MOST_PAIRS", most_pairs)
    rng = np.random.default_rng(0)
    set_leaves = jax.jit(getattr(writes, path))
    for _ in range(20):
        indices = rng.integers(0, 6, 16).astype(np.int32)
        values, valid = rng.random(16).astype(np.float32), rng.random(16) < rng.choice([0.0, 0.2, 0.8])
        expected = np.arange(6, dtype=np.float32) + 10
        got = set_leaves(jnp.asarray(expected), indices, values, valid)
        for index, value, ok in zip(indices, values, valid, strict=True):
            expected[index] = value if ok else expected[index]
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("fan_out", NARROW_AND_WIDE)
def test_duplicates_count_once_and_the_sum_is_that_of_the_leaves(fan_out):
    tree = write(segment_tree.init(5, fan_out), jnp.array([0, 0, 3, 0]), jnp.array([1.0, 1.0, 2.0, 4.0]))
    assert leaves(tree).tolist() == [4, 0, 0, 2, 0]
    assert int(segment_tree.count_nonzero(tree)) == 2
    assert float(summarize(tree).total) == 6


@pytest.mark.parametrize("fan_out", NARROW_AND_WIDE)
def test_an_empty_write_changes_nothing(fan_out):
    tree = segment_tree.from_leaves(jnp.arange(20.0), fan_out)
    chex.assert_trees_all_equal(write(tree, jnp.zeros(0, jnp.int32), jnp.zeros(0)), tree)
    nowhere = write(tree, jnp.array([-1, 20, 10**9]), jnp.ones(3))
    chex.assert_trees_all_equal(nowhere, tree)


@pytest.mark.parametrize("fan_out", NARROW_AND_WIDE)
@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf, -np.inf])
def test_bad_values_leave_the_leaf_as_it_was(bad, fan_out):
    tree = segment_tree.from_leaves(jnp.arange(20.0), fan_out)
    chex.assert_trees_all_equal(write(tree, jnp.array([3, 4]), jnp.array([bad, 4.0])), tree)


def test_a_leaf_is_exactly_what_was_set_at_any_dynamic_range():
    tree = segment_tree.from_leaves(jnp.ones(1024))
    for value in (1e6, 1e-3, 1e30, 1e-30, 1.0):
        tree = write(tree, jnp.array([77]), jnp.array([value]))
        assert leaves(tree)[77] == np.float32(value)
    assert float(summarize(tree).total) == 1024


def test_capacity_and_fan_out_must_be_possible():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        segment_tree.init(0)
    for fan_out in (1, 257):
        with pytest.raises(ValueError, match=f"fan-out of 2 to 256, got {fan_out}"):
            segment_tree.init(10, fan_out)


@pytest.mark.usefixtures("optimized_code")
@pytest.mark.parametrize(("fan_out", "rounds"), [(8, 512), (128, 16)])
def test_a_million_heavy_tailed_updates_leave_no_trace_of_drift(fan_out, rounds):
    """2^20 slots of which 600k are written: nothing unwritten is ever drawn, sums and leaves stay exact."""
    capacity, written, batch = 2**20, 600_000, 2048

    @jax.jit
    def churn(tree, key):
        def step(carry, key):
            tree, model, drew_nothing = carry
            key_index, key_value, key_draw = jax.random.split(key, 3)
            indices = jax.random.randint(key_index, (batch,), 0, written)
            values = jnp.minimum(jax.random.pareto(key_value, 0.5, (batch,)), 1e12)
            tree = segment_tree.write(tree, indices, values)
            model = writes._set_without_duplicates(model, indices, values, jnp.ones(batch, bool))
            drawn, mass, _ = segment_tree.draw(tree, key_draw, 256)
            return (tree, model, drew_nothing + jnp.sum((drawn >= written) | (mass <= 0))), None

        carry = (tree, tree.leaves, jnp.int32(0))
        return jax.lax.scan(step, carry, jax.random.split(key, rounds))[0]

    tree = segment_tree.from_leaves((jnp.arange(capacity) < written).astype(jnp.float32), fan_out)
    tree, model, drew_nothing = churn(tree, jax.random.key(0))
    assert rounds * batch > 1e6 or fan_out > 8  # wide rows are slow on a CPU
    assert int(drew_nothing) == 0
    np.testing.assert_array_equal(tree.leaves, model)
    exact = np.asarray(tree.leaves, np.float64).sum()
    assert abs(float(summarize(tree).total) - exact) / exact < 1e-6
    assert float(summarize(tree).least) == np.asarray(model)[:written].min()
    chex.assert_trees_all_equal(segment_tree.from_leaves(tree.leaves[:capacity], fan_out), tree)


@pytest.mark.parametrize("fan_out", NARROW_AND_WIDE)
def test_vmapped_trees_equal_a_loop_over_trees(fan_out):
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 40, (3, 10)).astype(np.int32)
    values = rng.random((3, 10)).astype(np.float32)
    single = [write(segment_tree.init(40, fan_out), indices[s], values[s]) for s in range(3)]
    stacked = jax.jit(jax.vmap(lambda i, v: segment_tree.write(segment_tree.init(40, fan_out), i, v)))(indices, values)
    chex.assert_trees_all_equal(stacked, jax.tree.map(lambda *parts: np.stack(parts), *single))


@functools.partial(jax.jit, static_argnames="stratified")
def answers(tree, begins, ends, thresholds, stratified):
    """Ask everything that can be asked of a tree."""
    return (
        segment_tree.draw(tree, jax.random.key(3), 300, stratified),
        segment_tree.draw_ranges(tree, jax.random.key(4), 300, begins, ends, stratified),
        segment_tree.find(tree, thresholds),
        segment_tree.find_between(tree, begins[0], ends[-1], thresholds),
        segment_tree.reduce(tree, begins[-1], ends[-1]),
    )


@pytest.mark.parametrize(("size", "stratified"), [(5, True), (1_000, False), (70_001, True)])
def test_the_fan_out_changes_no_result_where_sums_are_exact(size, stratified):
    """Not even a draw, whichever way and from whichever range."""
    values = np.random.default_rng(0).integers(0, 4, size).astype(np.float32)
    thresholds = jnp.linspace(0, values.sum(), 500).round()
    begins, ends = jnp.array([size // 4, 0, size - size // 3]), jnp.array([size // 2, size // 5, size])
    trees = [segment_tree.from_leaves(jnp.asarray(values), fan_out) for fan_out in FAN_OUTS]
    first, *others = (answers(tree, begins, ends, thresholds, stratified) for tree in trees)
    for other in others:
        chex.assert_trees_all_equal(other, first)


@pytest.mark.parametrize("fan_out", NARROW_AND_WIDE)
def test_writes_that_are_promised_to_be_unique(fan_out):
    """On the way that platforms without a loop in order take, too: what is not valid is left out."""
    tree, places = segment_tree.from_leaves(jnp.arange(20.0), fan_out), jnp.array([7, 3, 20, 4])
    written = jax.jit(segment_tree.write, static_argnames="unique")(tree, places, jnp.full(4, 9.0), unique=True)
    expected = jnp.arange(20.0).at[jnp.array([3, 4, 7])].set(9)
    chex.assert_trees_all_equal(written, segment_tree.from_leaves(expected, fan_out))
    at_once = writes._set_at_once(jnp.arange(20.0), places, jnp.full(4, 9.0), jnp.array([True, True, True, True]))
    np.testing.assert_array_equal(at_once, expected)


RUNS = [("write_run", *shape) for shape in [*SHAPES, (2_000, 4)]]
RUNS += [("_write_one_by_one", *shape) for shape in [(65, 4), (9, 8), (200, 32), (300, 128)]]
RUNS += [("_write_slices", *shape) for shape in [(200, 32), (300_000, 32), (100, 128), (300, 128), (40_000, 128)]]


@pytest.mark.parametrize(("path", "size", "fan_out"), RUNS)
def test_runs_of_leaves_match_the_reference(path, size, fan_out):
    """On every way that a platform may take: of any length, across the end, some entries left out.

    Trees of several stored levels are among them: levels of at most 256 rows are not stored in wide ones.
    """
    write_run = jax.jit(getattr(runs, path), static_argnames="wraps")
    rng = np.random.default_rng(size)
    expected = rng.integers(0, 4, size).astype(np.float32)
    tree = segment_tree.from_leaves(jnp.asarray(expected), fan_out)
    for count in sorted({1, min(2, size), min(fan_out, size), size // 2 or 1, size}):
        begins = [0, size - 1, int(rng.integers(size)), max(size - count, 0)]
        for number, begin in enumerate(begins):
            wraps = begin + count > size or number % 2 == 0  # without wrapping, it may still be said that it might
            values = rng.integers(0, 9, count).astype(np.float32)
            where = rng.random(count) < 0.7
            for offset in np.flatnonzero(where):
                expected[(begin + offset) % size] = values[offset]
            tree = write_run(tree, jnp.int32(begin), jnp.asarray(values), jnp.asarray(where), wraps=wraps)
            chex.assert_trees_all_equal(tree, segment_tree.from_leaves(jnp.asarray(expected), fan_out))


def test_what_cannot_be_a_leaf_is_left_out_of_a_run():
    tree, values = segment_tree.from_leaves(jnp.arange(1.0, 7.0), 128), jnp.array([9, np.nan, -1, np.inf, 8])
    written = jax.jit(segment_tree.write_run)(tree, jnp.int32(2), values)
    assert leaves(written).tolist() == [8, 2, 9, 4, 5, 6]
    chex.assert_trees_all_equal(segment_tree.write_run(tree, jnp.int32(0), jnp.zeros(0)), tree)


@pytest.mark.parametrize("path", ["_set_run_at_once", "_set_slices"])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_runs_are_set_on_every_path(path, length):
    """Where the array goes on behind the ring, its rest stays as it is."""
    options = {"length": length} | ({"wraps": True} if path == "_set_slices" else {})
    set_run = jax.jit(functools.partial(getattr(writes, path), **options))
    rng = np.random.default_rng(0)
    for count in range(1, length + 1):
        for begin in range(length):
            expected, values = np.arange(9, dtype=np.float32), rng.random(count).astype(np.float32)
            valid = rng.random(count) < 0.7
            got = set_run(jnp.asarray(expected), jnp.int32(begin), values, valid)
            for offset in np.flatnonzero(valid):
                expected[(begin + offset) % length] = values[offset]
            np.testing.assert_array_equal(got, expected)


def test_values_must_have_the_shape_of_their_indices():
    tree = segment_tree.init(4)
    with pytest.raises(ValueError, match=r"write\(\) got `values` of shape \(1,\); \(2,\) is needed"):
        segment_tree.write(tree, jnp.arange(2), jnp.ones(1))
    with pytest.raises(ValueError, match=r"write\(\) got `indices` of shape \(1, 2\); \(2,\) is needed"):
        segment_tree.write(tree, jnp.arange(2)[None], jnp.ones((1, 2)))
