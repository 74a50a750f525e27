"""States that several threads share: nothing is lost, nobody waits for ever."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.waiting import LONG, ROW, SHORT, Running, made, rows

import jaxrl_buffers as jb
from jaxrl_buffers.host import Feeder, Intake, Shared, Stopped


def test_add_waits_for_room():
    shared = made(length=4)
    shared.add(rows([0, 1, 2]))
    assert not shared.has_room(2)
    adding = Running(shared.add, rows([3, 4]))
    assert adding.is_waiting()
    np.testing.assert_array_equal(shared.dequeue(2).obs[:, 0], [0, 1])
    adding.result()
    np.testing.assert_array_equal(shared.dequeue(3).obs[:, 0], [2, 3, 4])
    assert shared.sizes.tolist() == [0]


def test_without_keeping_add_overwrites_the_oldest():
    shared = made(length=4, keep_until_dequeued=False)
    for number in range(8):
        shared.add(rows([number]))
    np.testing.assert_array_equal(shared.dequeue(2).obs[:, 0], [4, 5])
    np.testing.assert_array_equal(shared.dequeue(2).obs[:, 0], [6, 7])


def test_dequeue_and_sample_wait_for_data(key):
    shared = made(length=8)
    sampling, dequeuing = Running(shared.sample, key, 3, at_least=2), Running(shared.dequeue, 3)
    shared.add(rows([5]))
    assert sampling.is_waiting()
    shared.add(rows([5]))
    np.testing.assert_array_equal(sampling.result().batch.obs, [5, 5, 5])
    assert dequeuing.is_waiting()
    shared.add(rows([5]))
    assert dequeuing.result().obs.shape == (3, 1)


def test_sample_waits_until_a_start_has_its_lookahead(key):
    buffer = jb.sequences(8, sequence_length=3)
    shared = Shared(buffer, buffer.init(ROW))
    shared.add(rows([0, 1]))
    with pytest.raises(TimeoutError, match="legal starts"):
        shared.sample(key, 2, timeout=SHORT)
    shared.add(rows([2]))
    assert shared.sample(key, 2, timeout=LONG).batch.obs.tolist() == [[0, 1, 2]] * 2


def test_a_balanced_sampler_waits_for_every_environment(key):
    buffer = jb.ReplayBuffer(jb.Uniform(balanced=True), length=8, num_envs=2, lockstep=False)
    shared = Shared(buffer, buffer.init(ROW))
    shared.add(rows([0, 1]), env_ids=[0])
    sampling = Running(shared.sample, key, 4)
    assert sampling.is_waiting()
    shared.add(rows([7]), env_ids=[1])
    assert sorted(sampling.result().handle.env.tolist()) == [0, 0, 1, 1]


@pytest.mark.parametrize("timeout", [0, SHORT])
def test_timeouts(timeout, key):
    shared = made(length=2)
    with pytest.raises(TimeoutError, match=r"dequeue\(\) of 1 rows"):
        shared.dequeue(1, timeout=timeout)
    with pytest.raises(TimeoutError, match="1 legal starts"):
        shared.sample(key, 1, timeout=timeout)
    shared.add(rows([0, 1]), timeout=timeout)
    with pytest.raises(TimeoutError, match=r"add\(\) of 1 rows"):
        shared.add(rows([2]), timeout=timeout)
    np.testing.assert_array_equal(shared.dequeue(2).obs[:, 0], [0, 1])


def test_stop_wakes_everybody_and_revive_goes_on(key):
    shared = made(length=2)
    waiting = [Running(shared.dequeue, 1), Running(shared.dequeue, 2), Running(shared.sample, key, 1)]
    assert all(one.is_waiting() for one in waiting)
    shared.stop()
    for one in waiting:
        with pytest.raises(Stopped, match="revive"):
            one.result()
    with pytest.raises(Stopped):
        shared.add(rows([0]))
    assert shared.is_stopped
    shared.revive()
    shared.add(rows([0, 1]))
    adding = Running(shared.add, rows([2]))
    assert adding.is_waiting()
    shared.stop()
    with pytest.raises(Stopped):
        adding.result()
    shared.mark_break()
    assert shared.snapshot().storage.size == 2
    shared.revive()
    np.testing.assert_array_equal(shared.dequeue(2).obs[:, 0], [0, 1])


def test_a_stop_is_noticed_also_if_it_is_over_at_once():
    """Who waits when `stop` is called gets `Stopped`, however soon `revive` follows."""
    shared = made()
    for _ in range(30):
        waiting = [Running(shared.dequeue, 1) for _ in range(3)]
        time.sleep(0.005)
        shared.stop()
        shared.revive()
        for one in waiting:
            with pytest.raises(Stopped):
                one.result()


def test_environments_wait_apart():
    shared = made(length=2, num_envs=2, lockstep=False)
    shared.add(rows([0, 1]), env_ids=[0])
    shared.add(rows([5]), env_ids=[1], timeout=0)
    with pytest.raises(TimeoutError):
        shared.add(rows([2]), env_ids=[0], timeout=0)
    with pytest.raises(TimeoutError):
        shared.dequeue(2, timeout=0)
    assert shared.dequeue(2, env_ids=[0], timeout=0).obs.tolist() == [[0], [1]]
    assert shared.sizes.tolist() == [0, 1]


def test_a_snapshot_is_a_copy_and_stays_as_it_is():
    shared = made(length=4)
    shared.add(rows([0, 1]))
    state = shared.snapshot()
    shared.add(rows([2]))
    assert shared.dequeue(3).obs.tolist() == [[0], [1], [2]]
    assert jb.host.gather_all(shared.buffer, state).obs.tolist() == [[0], [1]]


def test_chunks_may_be_overwritten_by_their_givers():
    shared = made(length=64)
    chunk = rows(range(8))
    for _ in range(8):
        shared.add(chunk)
        chunk.obs[...] = 99
        chunk.obs[...] = np.arange(8)[:, None]
    np.testing.assert_array_equal(shared.dequeue(64).obs[:, 0], [*range(8)] * 8)


def test_priorities_of_sampled_rows_can_be_updated(key):
    buffer = jb.prioritized(4, alpha=1.0, beta=0.0)
    shared = Shared(buffer, buffer.init(ROW))
    shared.add(rows([0, 1, 2, 3]), priorities=np.ones((4, 1)))
    handle = jb.Handle(jnp.zeros(3, jnp.int32), jnp.arange(3, dtype=jnp.int32))
    shared.update_priorities(handle, jnp.zeros(3))
    drawn = shared.sample(key, 1000).batch.obs
    assert np.mean(drawn == 3) > 0.99


def test_rows_are_added_with_their_priorities(key):
    buffer = jb.prioritized(4, alpha=1.0, beta=0.0)
    shared = Shared(buffer, buffer.init(ROW))
    shared.add(rows([0, 1, 2, 3]), priorities=np.array([[0.0], [0.0], [5.0], [0.0]]))
    assert np.mean(shared.sample(key, 1000).batch.obs == 2) > 0.99


def test_update_runs_a_program_on_the_state():
    shared = made(length=4)
    step = jax.jit(lambda state: (state, shared.buffer.size(state)), donate_argnums=0)
    with pytest.raises(TimeoutError):
        shared.update(step, at_least=1, timeout=0)
    shared.add(rows([0, 1]))
    assert shared.update(step, at_least=1, timeout=LONG) == 2
    assert shared.dequeue(2).obs.tolist() == [[0], [1]]


def test_misuse_is_refused_at_once_and_harmless():
    shared = made(length=4)
    with pytest.raises(ValueError, match="5 rows but the ring holds 4"):
        shared.add(rows(range(5)))
    with pytest.raises(ValueError, match=r"leaf .*reward"):
        shared.add(rows([0])._replace(reward=np.zeros((2, 1), np.float32)))
    with pytest.raises(ValueError, match="at most 4"):
        shared.dequeue(5)
    with pytest.raises(ValueError, match="lock-step"):
        shared.add(rows([0]), env_ids=[0])
    with pytest.raises(ValueError, match="True or False"):
        Shared(shared.buffer, shared.snapshot(), keep_until_dequeued=1)
    shared.add(rows([0]))
    assert shared.dequeue(1).obs.tolist() == [[0]]


def test_waiting_for_more_than_the_buffer_can_hold_is_refused(key):
    shared = made(length=4, num_envs=2)
    with pytest.raises(ValueError, match=r"sample\(at_least=9\).*at most 8"):
        shared.sample(key, 2, at_least=9)
    with pytest.raises(ValueError, match=r"update\(at_least=9\).*at most 8"):
        shared.update(lambda state: (state, None), at_least=9)


def test_frames_cannot_be_dequeued():
    buffer = jb.uniform(8, frames=jb.Frames(stack=2))
    obs = jnp.zeros((3, 2))
    shared = Shared(buffer, buffer.init(ROW._replace(obs=obs, next_obs=obs)))
    with pytest.raises(ValueError, match="frames"):
        shared.dequeue(1)


def test_eight_threads_against_a_model():
    """Six actors write to environments of their own, one thread dequeues and one samples: all rows come, in order."""
    num_actors, num_rows, length = 6, 60, 8
    shared = made(length, num_actors, lockstep=False)
    taken = [[] for _ in range(num_actors)]

    def act(env):
        random, number = np.random.default_rng(env), 0
        while number < num_rows:
            count = min(int(random.integers(1, 4)), num_rows - number)
            shared.add(rows(np.arange(number, number + count) + 1000 * env), env_ids=[env], timeout=LONG)
            number += count

    def learn():
        random = np.random.default_rng(99)
        while any(len(column) < num_rows for column in taken):
            env = int(random.choice([env for env in range(num_actors) if len(taken[env]) < num_rows]))
            taken[env] += shared.dequeue(1, env_ids=[env], timeout=LONG).obs[:, 0].tolist()

    def look():
        for number in range(40):
            try:
                sample = shared.sample(jax.random.key(number), 16, timeout=LONG)
            except Stopped:
                return number
            drawn = np.asarray(sample.batch.obs)[np.asarray(sample.batch.mask)]
            assert (drawn // 1000 == np.asarray(sample.handle.env)[np.asarray(sample.batch.mask)]).all()
        return 40

    looking = Running(look)
    threads = [Running(act, env) for env in range(num_actors)] + [Running(learn)]
    for one in threads:
        one.result()
    shared.stop()
    assert looking.result() > 0
    assert taken == [[1000 * env + number for number in range(num_rows)] for env in range(num_actors)]
    assert shared.sizes.tolist() == [0] * num_actors


def test_rows_of_a_single_array_come_through():
    buffer = jb.ReplayBuffer(view=jb.Sequence(1), length=8, lockstep=False)
    shared = Shared(buffer, buffer.init({"x": np.zeros(3, np.float32)}))
    values = np.arange(6, dtype=np.float32).reshape(2, 1, 3)
    with Intake(shared, num_feeders=1, num_rows=2) as intake, Feeder(intake.names[0]) as feeder:
        feeder.add({"x": values}, timeout=LONG)
    np.testing.assert_array_equal(jb.host.gather_all(buffer, shared.snapshot())["x"], values)
