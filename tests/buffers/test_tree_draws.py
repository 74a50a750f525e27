"""Draws from segment trees follow the leaves, in every stratum and at every size."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_buffers as jb
from jaxrl_buffers import segment_tree
from jaxrl_buffers.segment_tree import search

draw = jax.jit(segment_tree.draw, static_argnames=("batch_size", "stratified"))


@pytest.mark.usefixtures("optimized_code")
@pytest.mark.parametrize(("stratified", "fan_out"), [(True, 8), (False, 8), (True, 128)])
def test_every_residue_of_a_tree_of_2_to_25_leaves_is_drawn_equally(stratified, fan_out):
    """One float32 number could not reach the odd leaves."""
    tree = segment_tree.from_leaves(jnp.ones(2**25), fan_out)
    drawn, _, _ = draw(tree, jax.random.key(1), batch_size=2**17, stratified=stratified)
    counts = np.bincount(np.asarray(drawn) % 64, minlength=64)
    chi_square = ((counts - 2**11) ** 2 / 2**11).sum()
    assert chi_square < 120  # 63 degrees of freedom: mean 63, standard deviation 11
    assert abs(counts[::2].sum() - 2**16) < 5 * np.sqrt(2**15)


@pytest.mark.parametrize("fan_out", [4, 8, 32, 128])
@pytest.mark.parametrize("stratified", [True, False])
def test_draws_follow_the_leaves(stratified, fan_out):
    values = np.random.default_rng(0).gamma(0.5, size=600).astype(np.float32) * (np.arange(600) % 3 > 0)
    tree = segment_tree.from_leaves(jnp.asarray(values), fan_out)
    num_draws = 100_000
    drawn, mass, _ = draw(tree, jax.random.key(0), batch_size=num_draws, stratified=stratified)
    np.testing.assert_array_equal(mass, values[np.asarray(drawn)])
    counts, expected = np.bincount(drawn, minlength=600), num_draws * values / values.sum()
    assert counts[values == 0].sum() == 0
    z = (counts - expected)[values > 0] / np.sqrt(expected[values > 0] + 1e-9)
    assert np.abs(z[expected[values > 0] > 5]).max() < 5


@pytest.mark.parametrize(
    ("capacity", "fan_out"),
    [
        *((capacity, 8) for capacity in (1, 8, 9, 32, 33, 256, 257, 2_048, 2_049, 4_096, 4_097, 16_384, 16_385)),
        *((capacity, 4) for capacity in (17, 1_025)),
        *((capacity, 32) for capacity in (129, 8_193)),
        *((capacity, 128) for capacity in (512, 513, 32_769, 65_537)),
    ],
)
def test_trees_of_every_height_are_drawn_from(capacity, fan_out):
    """The few leaves that are not zero, the first and last ones among them, are found where they are."""
    places = sorted({0, capacity // 2, capacity - 1})
    values = np.zeros(capacity, np.float32)
    values[places] = 1
    tree = segment_tree.from_leaves(values, fan_out)
    drawn, mass, _ = draw(tree, jax.random.key(0), batch_size=12)
    assert np.asarray(drawn).tolist() == np.repeat(places, 12 // len(places)).tolist()
    assert np.all(mass == 1)


def test_stratified_draws_hit_every_stratum_once():
    drawn, _, _ = draw(segment_tree.from_leaves(jnp.ones(1000)), jax.random.key(0), batch_size=1000)
    assert np.abs(np.asarray(drawn) - np.arange(1000)).max() <= 1
    halves, _, _ = draw(segment_tree.from_leaves(jnp.array([3.0, 1.0])), jax.random.key(0), batch_size=1000)
    assert np.bincount(halves).tolist() == [750, 250]


@pytest.mark.usefixtures("optimized_code")
@pytest.mark.parametrize("batch_size", [64, 4096, 30_000])
@pytest.mark.parametrize("is_ranged", [False, True])
def test_strata_are_kept_in_large_trees(batch_size, is_ranged):
    """Up to the rounding of float32: in trees of any size, each draw touches its own equal part of the mass."""
    rng = np.random.default_rng(0)
    values = (rng.gamma(0.5, size=40_000) * (rng.random(40_000) > 0.3)).astype(np.float32)
    values[17_000:17_900] *= 100  # so that some nodes are wide, and some parts are within one leaf
    tree, begins, ends = segment_tree.from_leaves(values), [0], [40_000]
    if is_ranged:
        begins, ends = [30_001, 5, 16_000], [40_000, 9_999, 17_500]
        drawn = segment_tree.draw_ranges(tree, jax.random.key(0), batch_size, jnp.array(begins), jnp.array(ends))[0]
    else:
        drawn = draw(tree, jax.random.key(0), batch_size=batch_size)[0]
    order = np.concatenate([np.arange(begin, end) for begin, end in zip(begins, ends, strict=True)])
    mass_before = np.zeros(40_000)
    mass_before[order] = np.cumsum(values[order], dtype=np.float64) - values[order]
    total = values[order].sum(dtype=np.float64)
    begin = mass_before[drawn] / total * batch_size - np.arange(batch_size)
    assert np.all(values[drawn] > 0)
    assert np.max(begin) < 1 + 1e-6 * batch_size
    assert np.min(begin + values[drawn] / total * batch_size) > -1e-6 * batch_size


@pytest.mark.usefixtures("optimized_code")
def test_draws_within_strata_follow_the_leaves():
    """Also of the leaves and nodes that several parts share."""
    values = np.random.default_rng(0).gamma(0.5, size=3000).astype(np.float32)
    tree = segment_tree.from_leaves(values)
    keys = jax.random.split(jax.random.key(0), 4000)
    drawn = jax.jit(jax.vmap(lambda key: segment_tree.draw(tree, key, 50)[0]))(keys)
    counts, expected = np.bincount(np.ravel(drawn), minlength=3000), 200_000 * values / values.sum()
    z = (counts - expected)[expected > 10] / np.sqrt(expected[expected > 10])
    assert np.abs(z).max() < 5
    shared = np.searchsorted(np.cumsum(values), np.arange(1, 50) / 50 * values.sum())
    assert np.sum(counts[shared]) == pytest.approx(np.sum(expected[shared]), rel=0.05)


@pytest.mark.usefixtures("optimized_code")
@pytest.mark.parametrize(("size", "fan_out"), [(5, 8), (700, 8), (700, 128)])
def test_the_smallest_masses_are_drawn_as_any_other(size, fan_out):
    """To scale all leaves changes no draw, down to the smallest positive number."""
    values = np.random.default_rng(0).integers(1, 4, size).astype(np.float32)
    tiny = segment_tree.from_leaves(values * np.finfo(np.float32).tiny, fan_out)
    one = draw(segment_tree.from_leaves(values, fan_out), jax.random.key(0), batch_size=64)[0]
    assert draw(tiny, jax.random.key(0), batch_size=64)[0].tolist() == one.tolist()
    assert len(set(one.tolist())) >= 5


@pytest.mark.parametrize("is_place", [True, False])
def test_each_level_of_a_search_is_computed_once(is_place, monkeypatch, optimized_code):
    """Without one of the two uses of `keep`, of places or of children, XLA computes upper levels again and again."""

    def num_operations():
        tree = jax.eval_shape(lambda: segment_tree.init(2**16))
        draw = jax.jit(lambda tree, key: segment_tree.draw(tree, key, 256))
        text = draw.lower(tree, jax.eval_shape(lambda: jax.random.key(0))).compile().as_text()
        return len(re.findall(r" (?:select|compare|subtract)\(", text))

    def keep_others(values, unknown=None):
        return values if (unknown is not None) is is_place else keep(values, unknown)

    keep, as_it_is = search.keep, num_operations()
    monkeypatch.setattr(search, "keep", keep_others)
    assert as_it_is < 0.8 * num_operations()


def test_the_width_of_a_tree_follows_the_platform():
    """These are the widths that are best by the figures in `segment_tree.tree`."""
    trees = {name: jb.Prioritized().init((100, 2), name).tree for name in ("cpu", "gpu", "tpu")}
    assert {name: tree.fan_out for name, tree in trees.items()} == {"cpu": 8, "gpu": 64, "tpu": 128}
