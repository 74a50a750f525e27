"""Checkpoints: every state comes back bit for bit, a kill at any moment loses nothing, misuse is named."""

from __future__ import annotations

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.bits import assert_same_bits
from support.helpers import EXAMPLE, random_transition, stack
from support.registry import ALL, BUFFERS

import jaxrl_buffers as jb
from jaxrl_buffers import _manifest, checkpoint, segment_tree

LENGTH, NUM_ENVS, BATCH = 6, 2, 5


def round_trip(folder, state):
    checkpoint.save(folder, state)
    return checkpoint.restore(folder, jax.eval_shape(lambda: state))


@jax.jit
def play(buffer, state, chunks, keys):
    """Add, sample and update again and again."""

    def cycle(state, inputs):
        chunk, key = inputs
        state = buffer.add(state, chunk)
        sample = buffer.sample(state, key, BATCH)
        return buffer.update_priorities(state, sample.handle, jax.random.uniform(key, BATCH)), sample

    return jax.lax.scan(cycle, state, (chunks, keys))


def material(seed, count=5):
    rng = np.random.default_rng(seed)
    parts = [stack([[random_transition(rng, i) for _ in range(NUM_ENVS)] for _ in range(2)]) for i in range(count)]
    chunks = jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)
    return chunks, jax.random.split(jax.random.key(seed), count)


@pytest.mark.parametrize("name", ALL)
def test_every_buffer_comes_back_and_continues_bit_for_bit(name, tmp_path):
    """What is sampled after a restore, and its weights, are what would have been sampled without it."""
    buffer = ALL[name](LENGTH, NUM_ENVS)
    state, _ = play(buffer, buffer.init(EXAMPLE), *material(0))
    checkpoint.save(tmp_path, state)
    restored = checkpoint.restore(tmp_path, jax.eval_shape(buffer.init, EXAMPLE))
    assert_same_bits(restored, state)
    assert_same_bits(play(buffer, restored, *material(1)), play(buffer, state, *material(1)))


def test_vmapped_states_come_back(tmp_path):
    buffer = BUFFERS["prioritized_n_step"](LENGTH, NUM_ENVS)
    one, two = (play(buffer, buffer.init(EXAMPLE), *material(seed))[0] for seed in (0, 1))
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), one, two, one, two)
    assert_same_bits(round_trip(tmp_path, states), states)
    nested = jax.tree.map(lambda leaf: leaf.reshape(2, 2, *leaf.shape[1:]), states)
    assert_same_bits(round_trip(tmp_path, nested), nested)


def test_a_state_comes_back_under_another_fan_out(tmp_path):
    """Leaves are the same, so a tree of any fan-out can be built from them, also of states that were vmapped."""
    narrow, wide = (BUFFERS[name](LENGTH, NUM_ENVS) for name in ("prioritized_n_step", "prioritized_wide"))
    state, _ = play(narrow, narrow.init(EXAMPLE), *material(0))
    expected, _ = play(wide, wide.init(EXAMPLE), *material(0))
    checkpoint.save(tmp_path, state)
    restored = checkpoint.restore(tmp_path, jax.eval_shape(wide.init, EXAMPLE))
    assert restored.sampler.tree.fan_out == 128
    assert_same_bits(restored, expected)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), expected, restored)
    checkpoint.save(tmp_path, stacked)
    like = jax.eval_shape(jax.vmap(lambda _: narrow.init(EXAMPLE)), jnp.arange(2))
    assert_same_bits(checkpoint.restore(tmp_path, like), jax.tree.map(lambda *leaves: jnp.stack(leaves), state, state))


@pytest.mark.parametrize(("capacity", "fan_out"), [(9, 8), (700, 8), (20_001, 8), (20_001, 4), (40_001, 128)])
def test_nodes_of_written_trees_are_those_built_from_their_leaves(capacity, fan_out):
    """Else a restored tree would not be the one that was saved."""
    num_writes, batch = 40, 64
    keys = jax.random.split(jax.random.key(capacity))
    indices = jax.random.randint(keys[0], (num_writes, batch), 0, capacity)
    values = 10 ** jax.random.uniform(keys[1], (num_writes, batch), minval=-6, maxval=4)

    def written(indices, values):
        tree = segment_tree.init(capacity, fan_out)
        return jax.lax.scan(lambda tree, xs: (segment_tree.write(tree, *xs), ()), tree, (indices, values))[0]

    tree = jax.jit(written)(indices, values)
    build = functools.partial(segment_tree.from_leaves, fan_out=fan_out)
    assert_same_bits(jax.jit(build)(tree.leaves[:capacity]), tree)
    two = jax.jit(jax.vmap(written))(indices.reshape(2, -1, batch), values.reshape(2, -1, batch))
    assert_same_bits(jax.jit(jax.vmap(build))(two.leaves[:, :capacity]), two)


def test_states_of_every_kind_of_leaf(tmp_path):
    parameters = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.array([jnp.nan, -0.0, jnp.inf])}
    state = {
        "optimizer": optax.adam(1e-3).init(parameters),
        "keys": (jax.random.key(3), jax.random.split(jax.random.key(4), 2), jax.random.key(5, impl="rbg")),
        "raw key": jax.random.PRNGKey(6),
        "numbers": [True, 2**40, 0.1, -0.0, float("inf")],
        "arrays": [jnp.arange(3, dtype=jnp.bfloat16), jnp.uint8([0, 255]), jnp.array([True, False]), jnp.int32(-1)],
        "empty": (jnp.zeros((0, 3)), jnp.zeros((2, 0), jnp.int8), jax.random.split(jax.random.key(0), 0), (), {}, None),
        "a/b.c['d']": jb.Transition(jnp.float32(1), None, (), jnp.bool_(True), 0, jnp.float16(2)),
    }
    checkpoint.save(tmp_path, state)
    for like in (state, jax.eval_shape(lambda: state | {"numbers": [True, 0, 0.0, 0.0, 0.0]})):
        restored = checkpoint.restore(tmp_path, like)
        assert repr(restored["numbers"]) == repr(state["numbers"])
        assert_same_bits({**restored, "numbers": ()}, {**state, "numbers": ()})
    assert restored["raw key"].devices() == jnp.zeros(()).devices()


def test_numpy_arrays_stay_numpy_arrays(tmp_path):
    state = (np.arange(3, dtype=np.int64), np.float64(0.1), np.zeros((0,), np.int64))
    checkpoint.save(tmp_path, state)
    restored = checkpoint.restore(tmp_path, state)
    assert [(type(leaf), leaf.dtype, leaf.tobytes()) for leaf in restored] == [
        (type(leaf), leaf.dtype, leaf.tobytes()) for leaf in state
    ]
    abstract = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in state]
    with pytest.raises(ValueError, match=r"leaf \[0\] is int64, which JAX holds in x64 mode only"):
        checkpoint.restore(tmp_path, tuple(abstract))


@pytest.mark.parametrize("state", [(), {"step": 3}, jnp.float32(2)], ids=["nothing", "a number", "one array"])
def test_small_states(state, tmp_path):
    assert_same_bits(round_trip(tmp_path, state), state)


def test_saving_again_replaces_and_leaves_nothing_behind(tmp_path):
    folder = tmp_path / "new" / "folder"
    for step in range(3):
        checkpoint.save(folder, jnp.float32(step), metadata={"step": step})
    assert float(checkpoint.restore(folder, jnp.float32(0))) == 2
    assert checkpoint.read_metadata(folder) == {
        "format_version": _manifest.FORMAT_VERSION,
        "library_version": jb.__version__,
        "metadata": {"step": 2},
    }
    assert sorted(entry.name for entry in folder.iterdir()) == ["step_00000002", "step_00000003"]


def test_only_leaves_of_trees_are_stored(tmp_path):
    tree = segment_tree.from_leaves(jnp.arange(9.0))
    checkpoint.save(tmp_path, {"tree": tree})
    (manifest,) = tmp_path.glob("*/manifest.json")
    assert [record["kind"] for record in json.loads(manifest.read_text())["leaves"].values()] == [
        "segment tree of float32[9]"
    ]
    with pytest.raises(ValueError, match=r"segment tree of float32\[9\] for leaf \['tree'\].*tree of float32\[10\]"):
        checkpoint.restore(tmp_path, {"tree": segment_tree.init(10)})


STATE = {"x": jnp.zeros(3), "y": (jnp.int32(0),)}
OTHER_STATES = {
    "shape": (STATE | {"x": jnp.zeros(4)}, r"holds float32\[3\] for leaf \['x'\], but .* has float32\[4\] there"),
    "dtype": (STATE | {"x": jnp.zeros(3, jnp.bfloat16)}, r"float32\[3\] for leaf \['x'\], but .* has bfloat16\[3\]"),
    "more": (STATE | {"z": jnp.zeros(1)}, r"holds nothing for leaf \['z'\], but .* has float32\[1\] there"),
    "fewer": ({"x": jnp.zeros(3)}, r"holds int32\[\] for leaf \['y'\]\[0\], but .* has nothing there; build it with"),
    "key": (STATE | {"x": jax.random.key(0)}, r"\['x'\], but .* has key<fry>\[\] there"),
}


@pytest.mark.parametrize("case", OTHER_STATES)
def test_other_structures_are_refused_by_leaf(case, tmp_path):
    like, message = OTHER_STATES[case]
    checkpoint.save(tmp_path, STATE)
    with pytest.raises(ValueError, match=message):
        checkpoint.restore(tmp_path, like)


def test_metadata_are_checked_before_the_state_is_looked_at(tmp_path):
    def refuse(metadata):
        raise ValueError(f"got {metadata}")

    checkpoint.save(tmp_path, STATE, metadata={"steps": 3})
    with pytest.raises(ValueError, match=r"got \{'steps': 3\}"):
        checkpoint.restore_with_metadata(tmp_path, {"other": 1}, refuse)


def test_other_format_versions_are_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(_manifest, "FORMAT_VERSION", 99)
        checkpoint.save(tmp_path, STATE)
    for read in (checkpoint.read_metadata, lambda path: checkpoint.restore(path, STATE)):
        with pytest.raises(ValueError, match=r"format version 99, but this library \(version .*\) reads 1 to 3"):
            read(tmp_path)


def test_missing_and_damaged_checkpoints_say_what_is_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*; the path does not exist"):
        checkpoint.restore(tmp_path / "nowhere", STATE)
    with pytest.raises(FileNotFoundError, match="the folder contains nothing"):
        checkpoint.restore(tmp_path, STATE)
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="the folder contains file"):
        checkpoint.read_metadata(tmp_path)
    with pytest.raises(FileNotFoundError, match="it is a file"):
        checkpoint.restore(tmp_path / "file", STATE)


def test_a_part_of_a_state_is_read_without_the_rest(tmp_path):
    state = {"agent": jnp.arange(3.0), "buffer": jnp.ones((4, 5)), "key": jax.random.key(1)}
    checkpoint.save(tmp_path, state)
    like = {"agent": jax.ShapeDtypeStruct((3,), jnp.float32), "buffer": (), "key": None}
    part = checkpoint.restore(tmp_path, like, partial=True)
    np.testing.assert_array_equal(part["agent"], state["agent"])
    assert part["buffer"] == ()
    assert part["key"] is None
    with pytest.raises(
        ValueError, match=r"holds float32\[4, 5\] for leaf \['buffer'\], but the state to restore has no"
    ):
        checkpoint.restore(tmp_path, like)
    for other in ({"agent": jax.ShapeDtypeStruct((4,), jnp.float32)}, {"other": jnp.zeros(())}):
        with pytest.raises(ValueError, match="for leaf"):
            checkpoint.restore(tmp_path, other, partial=True)
