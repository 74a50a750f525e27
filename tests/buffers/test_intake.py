"""Rows from other processes: what was acknowledged is stored, and nobody waits for ever."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import feeding
from support.waiting import LONG, ROW, SHORT, Running, made

import jaxrl_buffers as jb
from jaxrl_buffers import feeder
from jaxrl_buffers.host import Feeder, Intake, Shared, Stopped

SPAWN = multiprocessing.get_context("spawn")


def wide(num_feeders=4, length=512, num_envs=2, keep_until_dequeued=False):
    """Return a shared state for feeders of `num_envs` environments each."""
    row = jax.tree.map(lambda leaf: leaf[0, 0], feeding.chunk(0, 1, 1))
    buffer = jb.uniform(length, num_feeders * num_envs, lockstep=False, keep_episodes=True)
    return Shared(buffer, buffer.init(jb.Transition(**row)), keep_until_dequeued=keep_until_dequeued)


def is_there(name):
    try:
        memory = SharedMemory(name)
    except FileNotFoundError:
        return False
    memory.close()
    return True


def started(function, *args):
    process = SPAWN.Process(target=function, args=args, daemon=True)
    process.start()
    return process


def joined(*processes):
    for process in processes:
        process.join(LONG)
        assert process.exitcode is not None, "still running"
    return [process.exitcode for process in processes]


def column(shared, state, env):
    """Return the numbers of the rows that an environment holds, checked to be whole, and in order of time."""
    stored, whole = shared.buffer.gather_all(state)
    stored = jax.tree.map(lambda leaf: np.asarray(leaf)[np.asarray(whole)[:, env], env], stored)
    number = stored.action
    np.testing.assert_array_equal(stored.obs["x"], np.stack([number, -number], axis=-1))
    np.testing.assert_array_equal(stored.obs["y"], number % 256)
    np.testing.assert_array_equal(stored.reward, number)
    return number.tolist()


def test_four_processes_of_which_one_is_killed():
    """All that was acknowledged is stored, in order, whatever happens to one of them; another takes its place."""
    shared, num_rows, num_chunks = wide(), 5, 40
    with Intake(shared, 4, num_rows=num_rows) as intake:
        noted = [SPAWN.Value("q", 0, lock=False) for _ in range(4)]
        dying = started(feeding.die_while_writing, intake.names[0], num_rows, 2, noted[0])
        others = [
            started(feeding.feed_without_devices, intake.names[number], num_chunks, num_rows, 2, noted[number])
            for number in (1, 2, 3)
        ]
        assert joined(dying) == [-9]
        assert noted[0].value == 3 * num_rows
        replacement = started(feeding.feed_without_devices, intake.names[0], 2, num_rows, 2, noted[0], 100)
        assert joined(*others, replacement) == [0, 0, 0, 0]
    state = shared.snapshot()
    for env in range(8):
        expected = [*range(15), *range(100, 110)] if env < 2 else [*range(num_chunks * num_rows)]
        assert column(shared, state, env) == expected
    # The episode that the dead process left open does not go on with the rows of the next one.
    assert int(shared.buffer.stats(state)["episodes"]) == 10
    assert not any(map(is_there, intake.names))


def test_feeders_are_stopped_with_the_buffer():
    """A full ring makes feeders wait; `stop` wakes them; what was acknowledged is stored all the same."""
    shared = wide(num_feeders=1, length=16, keep_until_dequeued=True)
    intake = Intake(shared, 1, num_rows=5, num_slots=2)
    noted, outcome = SPAWN.Value("q", 0, lock=False), SPAWN.Array("c", 16, lock=False)
    process = started(feeding.feed_until_stopped, intake.names[0], 5, 2, noted, outcome)
    wait_for(lambda: noted.value == 25)  # three chunks in the ring and two in slots
    time.sleep(SHORT)
    assert noted.value == 25
    shared.stop()
    assert joined(process) == [0]
    assert outcome.value == b"Stopped"
    shared.revive()
    taken = [shared.dequeue(num_rows, timeout=LONG).action[:, 0] for num_rows in (15, 10)]
    np.testing.assert_array_equal(np.concatenate(taken), range(25))
    intake.close()


def wait_for(condition):
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.001)


def test_closing_stores_what_was_handed_over_also_while_stopped():
    shared = wide(num_feeders=1)
    intake = Intake(shared, 1, num_rows=5)
    with Feeder(intake.names[0]) as feeder:
        shared.stop()
        wait_for(lambda: feeder._lane["is_stopped"])
        with pytest.raises(Stopped, match="stopped"):
            feeder.add(feeding.chunk(0, 5, 2))
        shared.revive()
        wait_for(lambda: not feeder._lane["is_stopped"])
        shared.stop()
        with contextlib.suppress(Stopped):  # it may or may not have heard
            feeder.add(feeding.chunk(0, 5, 2))
        handed = feeder._lane["written"]
        intake.close()
        intake.close()
        assert shared.sizes.tolist() == [5 * handed] * 2
        with pytest.raises(Stopped, match="closed"):
            feeder.add(feeding.chunk(5, 5, 2))
    with pytest.raises(ValueError, match="no shared memory"):
        Feeder(intake.names[0])


def test_closing_says_what_found_no_room():
    shared = wide(num_feeders=1, length=5, keep_until_dequeued=True)
    intake = Intake(shared, 1, num_rows=5)
    with Feeder(intake.names[0]) as feeder:
        for number in range(3):
            feeder.add(feeding.chunk(5 * number, 5, 2), timeout=LONG)
    with pytest.raises(TimeoutError, match="no room for 2 chunks"):
        intake.close(timeout=SHORT)
    assert not is_there(intake.names[0])


def test_adding_while_closing_is_acknowledged_only_if_stored():
    """Feeders add as fast as they can while the intake is closed: exactly what they were promised is stored."""
    shared = wide(num_feeders=2, length=10_000, num_envs=1)
    intake = Intake(shared, 2, num_rows=1)
    counts = [0, 0]

    def act(number):
        with Feeder(intake.names[number]) as feeder, contextlib.suppress(Stopped):
            while True:
                feeder.add(feeding.chunk(counts[number], 1, 1), timeout=LONG)
                counts[number] += 1

    threads = [Running(act, number) for number in range(2)]
    wait_for(lambda: min(counts) > 5)
    intake.close()
    for one in threads:
        one.result()
    state = shared.snapshot()
    assert [column(shared, state, env) for env in range(2)] == [[*range(count)] for count in counts]


def test_memory_is_removed_after_an_error():
    intake = Intake(wide(1), 1, num_rows=2)
    assert is_there(intake.names[0])
    with pytest.raises(ZeroDivisionError), intake:
        _ = 1 // 0
    assert not is_there(intake.names[0])


def test_an_error_while_taking_ends_waiting_and_is_raised(monkeypatch):
    shared = wide(1)
    intake = Intake(shared, 1, num_rows=2)
    monkeypatch.setattr(shared, "_add", lambda *_: 1 // 0)  # in the thread
    monkeypatch.setattr("jaxrl_buffers.feeder.SECONDS_TO_SETTLE", SHORT)
    learner = Running(shared.sample, jax.random.key(0), 2)
    actor = Running(feeding.feed, intake.names[0], 10**6, 2, 2, SimpleNamespace())
    for waiting in (actor, learner):
        with pytest.raises(Stopped):
            waiting.result()
    with pytest.raises(ZeroDivisionError):
        intake.close()
    assert not is_there(intake.names[0])


SCRIPT = """
import jax, sys
sys.path.insert(0, {tests!r})
from support import feeding
import jaxrl_buffers as jb
if __name__ == "__main__":
    row = jax.tree.map(lambda leaf: leaf[0, 0], feeding.chunk(0, 1, 1))
    buffer = jb.uniform(4, 2)
    shared = jb.host.Shared(buffer, buffer.init(jb.Transition(**row)), keep_until_dequeued=True)
    intake = jb.host.Intake(shared, 1, num_rows=2, num_slots=1)
    print(intake.names[0], flush=True)
    {then}
"""


def learner(then):
    """Start another process that has an intake, and return it with the name of its memory."""
    code = SCRIPT.format(tests=str(Path(feeding.__file__).parents[1]), then=then)
    root = str(Path(jb.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return process, process.stdout.readline().strip()


def test_a_learner_that_forgets_to_close_leaves_nothing():
    process, name = learner("pass")
    _, errors = process.communicate(timeout=LONG)
    assert (process.returncode, errors) == (0, "")
    assert not is_there(name)


def test_feeders_of_a_learner_that_was_killed_do_not_wait_for_ever():
    process, name = learner("import time; time.sleep(600)")
    with process, Feeder(name) as feeder:
        for number in range(3):
            feeder.add(feeding.chunk(2 * number, 2, 2), timeout=LONG)
        with pytest.raises(TimeoutError, match="free slot"):
            feeder.add(feeding.chunk(6, 2, 2), timeout=SHORT)
        process.kill()
        process.wait(LONG)
        with pytest.raises(Stopped, match="process of the intake has died"):
            feeder.add(feeding.chunk(6, 2, 2))


def test_a_feeder_in_a_process_of_its_own_leaves_the_memory_alone():
    """Also one that was not started by `multiprocessing`, which would have its own idea of who removes memory."""
    shared = wide(1)
    with Intake(shared, 1, num_rows=5) as intake:
        code = f"""
import sys
from types import SimpleNamespace
sys.path.insert(0, "tests")
from support import feeding
feeding.feed_without_devices({intake.names[0]!r}, 2, 5, 2, SimpleNamespace())"""
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=Path(jb.__file__).parents[1], capture_output=True, text=True, timeout=LONG
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert is_there(intake.names[0])
    assert shared.sizes.tolist() == [10, 10]


def test_who_opens_a_name_takes_it_over():
    with Intake(wide(1), 1, num_rows=5) as intake, Feeder(intake.names[0]) as first, Feeder(intake.names[0]) as second:
        second.add(feeding.chunk(0, 5, 2), timeout=LONG)
        with pytest.raises(RuntimeError, match="another Feeder has opened this name"):
            first.add(feeding.chunk(0, 5, 2), timeout=LONG)


def test_chunks_that_do_not_fit_are_refused_by_name():
    with Intake(wide(1), 1, num_rows=5) as intake, Feeder(intake.names[0]) as feeder:
        good = feeding.chunk(0, 5, 2)
        with pytest.raises(ValueError, match=r"leaf 'obs/x', but float32\[5, 2, 2\] is needed"):
            feeder.add(good | {"obs": good["obs"] | {"x": np.zeros((5, 2, 3), np.float32)}})
        with pytest.raises(ValueError, match=r"the leaves obs/x, .*reward.* are needed"):
            feeder.add({name: part for name, part in good.items() if name != "reward"})
        with pytest.raises(ValueError, match=r"leaf 'action'"):
            feeder.add(good | {"action": good["action"].astype(np.float32)})
        with pytest.raises(ValueError, match="a chunk of 6 rows; 1 to 5 fit"):
            feeder.add(feeding.chunk(0, 6, 2))
        feeder.add(jb.Transition(**feeding.chunk(0, 3, 2)), timeout=LONG)


def test_intakes_that_cannot_work_are_refused():
    with pytest.raises(ValueError, match=r"lock-step.*lockstep=False"):
        Intake(made(length=4, num_envs=2), 2, num_rows=2)
    with pytest.raises(ValueError, match="cannot be split evenly"):
        Intake(made(length=4, num_envs=3, lockstep=False), 2, num_rows=2)
    with pytest.raises(ValueError, match="`num_rows` must be"):
        Intake(made(length=4), 1, num_rows=5)
    buffer = jb.uniform(4)
    brief = Shared(buffer, buffer.init(ROW._replace(obs=jnp.bfloat16(0), next_obs=jnp.bfloat16(0))))
    with pytest.raises(ValueError, match="leaf 'obs' has the dtype bfloat16"):
        Intake(brief, 1, num_rows=2)


def test_a_process_that_nobody_has_waited_for_is_dead():
    """It still has its number, so that a feeder would wait for it for ever."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not feeder._is_alive(process.pid)
    assert feeder._is_alive(os.getpid())
