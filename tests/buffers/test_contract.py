"""What every buffer of the registry promises, eager and under `jit`, `vmap` and `scan`."""

from __future__ import annotations

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import EXAMPLE, random_transition, stack
from support.registry import ALL, BUFFERS, FAN_OUTS, ON_GPU, ON_TPU

import jaxrl_buffers as jb

LENGTH, NUM_ENVS, BATCH = 6, 2, 5


def chunks(seed, num_rows, count):
    """Return `count` chunks of `num_rows` random rows, stacked on a first axis."""
    rng = np.random.default_rng(seed)
    parts = [
        stack([[random_transition(rng, 100 * i + k) for _ in range(NUM_ENVS)] for k in range(num_rows)])
        for i in range(count)
    ]
    return stacked(parts)


def stacked(trees):
    """Stack in NumPy, which has nothing to compile."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def part(tree, index):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], tree)


def cycle(buffer, state, chunk, key):
    """Add, sample and update once."""
    state = buffer.add(state, chunk)
    sample = buffer.sample(state, key, BATCH)
    return buffer.update_priorities(state, sample.handle, jnp.linspace(0.1, 2.0, BATCH)), sample


@functools.cache
def own_cycle(name):
    """Return a buffer of the registry, and `cycle` compiled for it alone: with a cache of its own."""
    return EVERY[name](LENGTH, NUM_ENVS), jax.jit(lambda *arguments: cycle(*arguments))


@jax.jit
def scanned(buffer, state, many, keys):
    return jax.lax.scan(lambda state, xs: cycle(buffer, state, *xs), state, (many, keys))


@jax.jit
def vmapped(buffer, states, chunk, keys):
    return jax.vmap(cycle, in_axes=(None, 0, None, 0))(buffer, states, chunk, keys)


def repeated(example):
    """Return a chunk of one row an environment."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None, None].repeat(NUM_ENVS, 1), example)


# Other kinds have no part of their own.
KINDS = [name for name in BUFFERS if name not in {"stratified", "n_step", "prioritized", "sequences"}]
EVERY = ALL | FAN_OUTS | ON_TPU | ON_GPU
LAID_OUT = [*KINDS, *FAN_OUTS]  # these run in both layouts


@pytest.fixture(params=[*LAID_OUT, *(f"{name}_on_tpu" for name in LAID_OUT), *ON_GPU])
def buffer(request):
    return EVERY[request.param](LENGTH, NUM_ENVS)


def assert_same_kind(new, old):
    """The same structure, shapes, dtypes and weak types: what a `scan` carry needs."""
    assert jax.tree.structure(new) == jax.tree.structure(old)
    for one, other in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
        assert (one.shape, one.dtype, one.weak_type) == (other.shape, other.dtype, other.weak_type)


# Compiled many times over: what the mixture and others are made of is left out.
@pytest.mark.parametrize(
    "buffer", [*sorted({*KINDS} - {"uniform", "prioritized_n_step", "prioritized_per_env"}), "mixture"], indirect=True
)
def test_eager_jit_scan_and_vmap_agree(buffer):
    """One program scans and one maps over seeds, both jitted; operations called eagerly are programs of their own."""
    many, keys = chunks(0, 2, 5), jax.random.split(jax.random.key(1), 5)
    state = last = buffer.init(EXAMPLE)
    samples = []
    for i in range(5):
        last, sample = cycle(buffer, last, part(many, i), keys[i])
        samples.append(sample)
    assert_same_kind(last, state)
    scanned_last, scanned_samples = scanned(buffer, state, many, keys)
    assert_same_kind(scanned_last, state)
    chex.assert_trees_all_close(scanned_last, last, rtol=1e-6)
    chex.assert_trees_all_close(scanned_samples, stacked(samples), rtol=1e-6)
    chunk = part(many, 0)
    both = vmapped(buffer, stacked([state, last]), chunk, keys[:2])
    for seed, before in enumerate((state, last)):
        chex.assert_trees_all_close(part(both, seed), cycle(buffer, before, chunk, keys[seed]), rtol=1e-6)


@pytest.mark.parametrize("buffer", LAID_OUT, indirect=True)  # other layouts give the same samples, as tested below
def test_samples_are_live_finite_and_depend_on_the_key_alone(buffer):
    state = buffer.init(EXAMPLE)
    for i in range(6):
        state = buffer.add(state, part(chunks(i, 2, 1), 0))
    one, same, other = (buffer.sample(state, jax.random.key(k), BATCH) for k in (0, 0, 1))
    chex.assert_trees_all_equal(one, same)
    assert not np.array_equal(one.handle.position, other.handle.position) or not np.array_equal(
        one.handle.env, other.handle.env
    )
    position, newest = np.asarray(one.handle.position), np.broadcast_to(state.storage.head, NUM_ENVS)
    assert (position < newest[np.asarray(one.handle.env)]).all()
    assert (position >= newest[np.asarray(one.handle.env)] - LENGTH).all()
    assert (np.asarray(one.weights) > 0).all()
    assert np.isfinite(one.weights).all()
    if getattr(buffer.sampler, "weighting", None) != "alf":
        assert np.asarray(one.weights).max() <= 1
    raw = jax.random.PRNGKey(0)
    chex.assert_trees_all_equal(buffer.sample(state, raw, BATCH), one)
    assert_same_kind(jax.eval_shape(lambda key: buffer.sample(state, key, BATCH), raw), one)


def test_rows_added_together_or_one_by_one_are_the_same(buffer):
    many = part(chunks(2, LENGTH, 1), 0)
    single = buffer.init(EXAMPLE)
    together = helpers.add(buffer, single, many)
    for row in range(LENGTH):
        single = helpers.add(buffer, single, part(many, np.s_[row : row + 1]))
    chex.assert_trees_all_equal(together, single)


@pytest.mark.parametrize("name", ["mix", "episodic", "hindsight"])
def test_nothing_is_traced_twice(name):
    """Not on the second call, and not after a hyper-parameter has changed."""
    buffer, traced = own_cycle(name)
    chunk = part(chunks(0, 2, 1), 0)
    state, _ = traced(buffer, buffer.init(EXAMPLE), chunk, jax.random.key(0))
    for value in (0.3, 0.7):
        changed = jb.with_parameters(buffer, dict.fromkeys(jb.parameters(buffer), value))
        state, _ = traced(changed, state, chunk, jax.random.key(1))
    assert traced._cache_size() == 1


@pytest.mark.parametrize("name", ["mix", "episodic", "hindsight"])
def test_hyper_parameters_are_vmapped(name):
    buffer, single = own_cycle(name)
    halved = jax.tree.map(lambda value: value / 2, buffer)
    leaves = jax.tree.map(lambda *values: jnp.array(values), buffer, halved)
    chunk = part(chunks(0, 2, 1), 0)
    state = single(buffer, buffer.init(EXAMPLE), chunk, jax.random.key(0))[0]
    both = jax.jit(jax.vmap(cycle, in_axes=(0, None, None, None)))(leaves, state, chunk, jax.random.key(0))
    for i, each in enumerate((buffer, halved)):
        chex.assert_trees_all_close(part(both, i), single(each, state, chunk, jax.random.key(0)), rtol=1e-5)


@pytest.mark.parametrize("name", ["balanced", "prioritized_sequences", "mix", "frames", "episodic", "hindsight"])
def test_x64_mode_changes_no_result(name):
    buffer = BUFFERS[name](LENGTH, NUM_ENVS)
    many, keys = chunks(0, 2, 5), jax.random.split(jax.random.key(1), 5)
    narrow = scanned(buffer, buffer.init(EXAMPLE), many, keys)[0]
    with jax.enable_x64(True):
        wide_state = buffer.init(EXAMPLE)
        assert_same_kind(wide_state, buffer.init(EXAMPLE))
        wide, samples = scanned(buffer, wide_state, many, keys)
        assert_same_kind(wide, wide_state)
        assert samples.weights.dtype == jnp.float32
        example = EXAMPLE._replace(reward=np.float64(0))
        precise = jax.eval_shape(buffer.add, buffer.init(example), repeated(example))
        assert precise.storage.rows.structure.reward.dtype == jnp.float64
    chex.assert_trees_all_close(jax.tree.map(np.asarray, wide), jax.tree.map(np.asarray, narrow), rtol=1e-5)


def test_bfloat16_observations_stay_bfloat16():
    buffer = jb.prioritized(LENGTH, NUM_ENVS, n=2)
    example = EXAMPLE._replace(obs=jnp.zeros(3, jnp.bfloat16), next_obs=jnp.zeros(3, jnp.bfloat16))
    state = jax.eval_shape(buffer.add, buffer.init(example), repeated(example))
    batch = jax.eval_shape(lambda state: buffer.sample(state, jax.random.key(0), 3), state).batch
    assert batch.obs.dtype == batch.next_obs.dtype == state.storage.rows.structure.obs.dtype == jnp.bfloat16


@pytest.mark.parametrize("value", [1, 0.7, np.float32(0.7)])
def test_numbers_of_any_kind_serve_as_hyper_parameters(value):
    buffer = jb.ReplayBuffer(jb.Prioritized(value, value, initial=value), jb.NStep(2, value), length=4, num_envs=2)
    chunk = part(chunks(0, 2, 1), 0)
    state, sample = jax.eval_shape(cycle, buffer, buffer.init(EXAMPLE), chunk, jax.random.key(0))
    assert_same_kind(state, buffer.init(EXAMPLE))
    assert sample.batch.discount.dtype == sample.batch.reward.dtype == jnp.float32


@pytest.mark.parametrize("name", ["distinct", "balanced", "mix", "episodic", "hindsight", "mixture"])
def test_keys_are_used_once(name):
    buffer = ALL[name](LENGTH, NUM_ENVS)
    arguments = buffer, buffer.init(EXAMPLE), part(chunks(0, 4, 1), 0), jax.random.key(0)
    with jax.debug_key_reuse(True):
        jax.jit(lambda *arguments: cycle(*arguments)).trace(*arguments)  # which is what checks


@pytest.mark.parametrize("name", [*(f"{name}_on_tpu" for name in LAID_OUT), *ON_GPU])
def test_the_layout_changes_no_sample(name):
    plain = name.removesuffix("_on_tpu").removesuffix("_on_gpu")
    many, keys = chunks(0, 2, 5), jax.random.split(jax.random.key(1), 5)  # as above: then it is compiled already
    (_, one), (_, other) = (
        scanned(buffer, buffer.init(EXAMPLE), many, keys)
        for buffer in (EVERY[kind](LENGTH, NUM_ENVS) for kind in (plain, name))
    )
    chex.assert_trees_all_equal(other.handle, one.handle)
    chex.assert_trees_all_equal(other.batch, one.batch)
    chex.assert_trees_all_close(other.weights, one.weights, rtol=1e-5)  # sums of another order
