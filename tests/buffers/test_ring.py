"""Storage: what is kept, in which order, and how it is read out."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import EXAMPLE, number_buffer, scalars, stack, transition

import jaxrl_buffers as jb
from jaxrl_buffers import host


def filled(length, values, num_envs=1, **options):
    buffer, state = number_buffer(length, num_envs, **options)
    for value in values:
        state = helpers.add(buffer, state, scalars([value], num_envs))
    return buffer, state


def test_six_rows_in_a_ring_of_four():
    buffer, state = filled(4, range(6))
    assert state.storage.data[:, 0].tolist() == [4, 5, 2, 3]
    assert int(state.storage.head) % 4 == 2
    assert int(buffer.size(state)) == 4


@pytest.mark.parametrize("length", [1, 2, 5, 7])
def test_chunks_of_every_size_equal_single_rows(length):
    """Also chunks that do not divide the ring, at every offset."""
    for size in range(1, length + 1):
        buffer, chunked = number_buffer(length, 2)
        _, single = number_buffer(length, 2)
        for begin in range(0, 3 * length, size):
            values = list(range(begin, begin + size))
            chunked = helpers.add(buffer, chunked, scalars(values, 2))
            for value in values:
                single = helpers.add(buffer, single, scalars([value], 2))
            chex.assert_trees_all_equal(chunked, single)


def test_add_leaves_its_input_alone():
    buffer, state = filled(4, range(3))
    before = jax.tree.map(np.array, state)
    helpers.add(buffer, state, scalars([9]))
    chex.assert_trees_all_equal(jax.tree.map(np.array, state), before)


def test_slices_are_appended_also_to_an_empty_buffer():
    buffer, state = number_buffer(4)
    state = helpers.add(buffer, state, scalars([0, 1, 2]))
    rows, stored = buffer.slice(state, 1, 2)
    assert stored.all()
    assert rows[:, 0].tolist() == [1, 2]
    other = helpers.add(buffer, number_buffer(4)[1], rows)
    assert host.gather_all(buffer, other)[:, 0].tolist() == [1, 2]
    ragged = jb.Transition(*[jnp.zeros((2 + (i == 2), 1)) for i in range(6)])
    transitions = jb.uniform(4)
    with pytest.raises(ValueError, match=r"leaf \.reward.*same number of rows"):
        transitions.add(transitions.init(jb.Transition(*[0.0] * 6)), ragged)


def test_a_slice_is_a_copy():
    buffer, state = filled(4, range(6))
    rows, _ = buffer.slice(state, 0, 4)
    donated = jax.jit(jb.ReplayBuffer.add, donate_argnums=1)(buffer, state, scalars([7, 8]))
    assert rows[:, 0].tolist() == [2, 3, 4, 5]
    assert host.gather_all(buffer, donated)[:, 0].tolist() == [4, 5, 7, 8]


def test_nested_rows_keep_their_dtypes():
    buffer = jb.uniform(3, 2)
    state = buffer.init(EXAMPLE)
    state = helpers.add(buffer, state, stack([[transition(200), transition(201)]]))
    batch = helpers.sample(buffer, state, jax.random.key(0), batch_size=8).batch
    assert batch.obs["image"].dtype == jnp.uint8
    assert batch.action.dtype == jnp.int32
    assert set(np.asarray(batch.obs["image"]).ravel().tolist()) == {200, 201}
    assert state.storage.data.terminated.dtype == jnp.bool_


def test_any_pytree_and_dtype_comes_back_unchanged():
    row = {"half": jnp.bfloat16(1.5), "flag": np.bool_(True), "bytes": np.uint8([1, 255]), "deep": (np.int16(-3), [7])}
    buffer = jb.ReplayBuffer(view=jb.Sequence(1), length=3)
    state = buffer.add(buffer.init(row), jax.tree.map(lambda leaf: jnp.asarray(leaf)[None, None], row))
    rows = host.gather_all(buffer, state)
    chex.assert_trees_all_equal(rows, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None, None], row))
    chex.assert_trees_all_equal_dtypes(rows, jax.tree.map(jnp.asarray, row))
    struct = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.asarray(leaf).dtype), row)
    chex.assert_trees_all_equal(buffer.init(struct), buffer.init(row))


def test_taking_everything_out_and_putting_it_back():
    buffer, state = filled(4, range(6))
    rows = host.gather_all(buffer, state)
    emptied = buffer.clear(state)
    assert int(buffer.size(emptied)) == 0
    again = helpers.add(buffer, emptied, rows)
    chex.assert_trees_all_equal(again.storage.data, state.storage.data)
    assert int(again.storage.size) == 4
    assert int(again.storage.head) % 4 == int(state.storage.head) % 4


def test_some_environments_at_a_time():
    buffer, state = number_buffer(4, 8, lockstep=False)
    state = helpers.add(buffer, state, scalars([0], 3), env_ids=np.array([0, 4, 7]))
    assert state.storage.size.tolist() == state.storage.head.tolist() == [1, 0, 0, 0, 1, 0, 0, 1]
    state = helpers.add(buffer, state, scalars([0], 5), env_ids=np.array([1, 2, 3, 5, 6]))
    assert host.gather_all(buffer, state).shape == (1, 8)
    for step in range(1, 10):
        state = helpers.add(buffer, state, scalars([step], 3), env_ids=np.array([0, 4, 7]))
        assert state.storage.size.tolist() == [min(step + 1, 4) if env in (0, 4, 7) else 1 for env in range(8)]
        assert state.storage.head.tolist() == [step + 1 if env in (0, 4, 7) else 1 for env in range(8)]
    with pytest.raises(ValueError, match="same number of rows"):
        host.gather_all(buffer, state)
    state = helpers.add(buffer, state, scalars([1, 2, 3], 5), env_ids=np.array([1, 2, 3, 5, 6]))
    assert host.gather_all(buffer, state).shape == (4, 8)
    assert int(buffer.size(buffer.clear(state))) == 0


def test_everything_in_order_of_time():
    buffer, state = filled(4, [])
    assert host.gather_all(buffer, state).shape == (0, 1)
    buffer, state = filled(4, range(7), num_envs=2)
    assert host.gather_all(buffer, state).tolist() == [[3, 3], [4, 4], [5, 5], [6, 6]]
    rows, stored = jax.jit(buffer.gather_all)(filled(4, range(2))[1])
    assert rows.shape == stored.shape == (4, 1)
    assert stored[:, 0].tolist() == [True, True, False, False]
    assert rows[:2, 0].tolist() == [0, 1]


def test_dequeue_across_the_wrap():
    buffer, state = number_buffer(4, 2, lockstep=False)
    for value in range(10):
        state = helpers.add(buffer, state, scalars([value], 2))
    state, rows = host.dequeue(buffer, state, 2)
    assert rows.T.tolist() == [[6, 7], [6, 7]]
    assert state.storage.head.tolist() == [10, 10]
    state, rows = host.dequeue(buffer, state, 2, env_ids=np.array([1]))
    assert rows.T.tolist() == [[8, 9]]
    assert state.storage.size.tolist() == [2, 0]
    with pytest.raises(ValueError, match=r"asked for 2 rows, but the environments hold \[2, 0\]"):
        host.dequeue(buffer, state, 2)
    _, rows, stored = helpers.dequeue(buffer, state, num_rows=2)
    assert stored.T.tolist() == [[True, True], [False, False]]


def test_drop_oldest_of_a_subset():
    buffer, state = number_buffer(4, 3, lockstep=False)
    for value in range(5):
        state = helpers.add(buffer, state, scalars([value], 3))
    state = helpers.drop_oldest(buffer, state, num_rows=3, env_ids=np.array([0, 2]))
    assert state.storage.size.tolist() == [1, 4, 1]
    assert state.storage.head.tolist() == [5, 5, 5]
    state = helpers.drop_oldest(buffer, state, num_rows=3)
    assert state.storage.size.tolist() == [0, 1, 0]


def test_named_fields_at_positions():
    buffer = jb.uniform(4, 2)
    state = buffer.init(EXAMPLE)
    for number in range(0, 12, 2):
        state = helpers.add(buffer, state, stack([[transition(number), transition(number + 1)]]))
    handle = jb.Handle(np.array([0, 1, 1]), np.array([2, 5, 3]))
    values = host.get_field(buffer, state, "obs.image", handle)
    assert values[:, 0, 0].tolist() == [4, 11, 7]
    assert host.get_field(buffer, state, "extras.logp", handle).tolist() == [-4, -11, -7]
    for position in (1, 6, -1):  # overwritten, not yet written, never
        with pytest.raises(ValueError, match="not stored"):
            host.get_field(buffer, state, "action", jb.Handle(np.array([0]), np.array([position])))
    with pytest.raises(ValueError, match=r"no field 'img'.*fields are: image, x"):
        buffer.get_field(state, "obs.img", handle)


def test_masked_adds_write_each_environment_in_order():
    buffer, state = number_buffer(4, 2, lockstep=False)
    chunk = jnp.arange(6.0).reshape(3, 2)
    state = helpers.add(buffer, state, chunk, mask=np.array([[True, False], [False, True], [True, True]]))
    rows, stored = buffer.gather_all(state)
    assert rows[:2].T.tolist() == [[0, 4], [3, 5]]
    assert stored.sum(0).tolist() == [2, 2]
    state = helpers.add(buffer, state, chunk, mask=np.array([False, True]))
    assert state.storage.size.tolist() == [2, 4]
    rows, _ = buffer.gather_all(state)
    assert rows[:, 1].tolist() == [5, 1, 3, 5]


def test_handles_stay_stale_after_clear():
    buffer, state = filled(4, range(4), sampler=jb.Prioritized())
    handle = helpers.sample(buffer, state, jax.random.key(0), batch_size=8).handle
    state = helpers.clear(buffer, state)
    for value in range(4):
        state = helpers.add(buffer, state, scalars([value]))
        updated = helpers.update_priorities(buffer, state, handle, jnp.full(8, 100.0))
        chex.assert_trees_all_equal(updated, state)
