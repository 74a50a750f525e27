"""Random operation sequences against the NumPy reference model, through wraps, drops, clears and stale updates."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from models.buffer import ReferenceBuffer
from support import helpers
from support.helpers import EXAMPLE, every_slot, random_transition, stack
from support.registry import BUFFERS, FAN_OUTS, ON_GPU, on_tpu
from support.views import Older

import jaxrl_buffers as jb
from jaxrl_buffers.storage import ring as ring_module

CASES = {  # name: (length, num_envs)
    "uniform": (2, 1),
    "balanced": (5, 3),
    "prioritized_n_step": (5, 2),
    "prioritized_wide": (60, 3),
    "prioritized_sequences": (6, 3),
    "prioritized_per_env": (4, 3),
    "within_episode": (7, 2),
    "prioritized_within_episode": (6, 3),
    "mix": (5, 3),
    "episodic": (5, 2),
    "hindsight": (7, 2),
}


BUFFERS = (
    BUFFERS
    | FAN_OUTS
    | {
        "lookback": lambda length, num_envs: jb.ReplayBuffer(
            jb.Prioritized(), Older(), length=length, num_envs=num_envs, lockstep=False
        ),
        "wide_lookback": lambda length, num_envs: jb.ReplayBuffer(
            jb.Prioritized(fan_out=128), Older(), length=length, num_envs=num_envs
        ),
        "wide_sequences": lambda length, num_envs: jb.sequences(
            length, num_envs, sequence_length=3, period=2, sampler=jb.Prioritized(fan_out=32)
        ),
    }
)
CASES |= {"lookback": (5, 2), "wide_lookback": (5, 2), "wide_sequences": (24, 3)}
CASES |= {"fan_out_4": (9, 3), "fan_out_32": (15, 3)}
BUFFERS |= {f"{name}_on_tpu": on_tpu(make) for name, make in BUFFERS.items()}
CASES |= {f"{name}_on_tpu": shape for name, shape in CASES.items()}
BUFFERS |= ON_GPU
CASES |= {"prioritized_n_step_on_gpu": (45, 3)}  # a tree of several rows


@jax.jit
def look(buffer, state):
    """Return all that can be seen of a state."""
    counts = buffer.size(state), buffer.num_valid(state)
    return counts, buffer.gather_all(state), every_slot(buffer, state)


class Pair:
    """The buffer and its model, taken through the same operations."""

    def __init__(self, name: str, seed: int) -> None:
        length, num_envs = CASES[name]
        self.rng = np.random.default_rng(seed)
        self.buffer = BUFFERS[name](length, num_envs)
        # How many rows come with `env_ids`, and with a mask: not every case has all, which are programs to compile.
        self.num_rows = (1, length) if name.endswith("_on_tpu") else (length, 1)
        self.state = self.buffer.init(EXAMPLE)
        self.model = ReferenceBuffer(self.buffer)
        self.ring, self.priorities = self.model.ring, self.model.priorities
        self.number = 0
        self.handles: list[tuple[int, int]] = []

    def add(self) -> None:
        num_rows = int(self.rng.choice([1, self.buffer.length]))
        num_envs = self.buffer.num_envs
        env_ids, mask = None, None
        if not self.buffer.lockstep:
            if self.rng.random() < 0.5:
                env_ids, num_rows = self.rng.permutation(num_envs)[:2].astype(np.int32), self.num_rows[0]
            elif self.rng.random() < 0.5:
                num_rows = self.num_rows[1]
                mask = self.rng.random((num_rows, num_envs)) < 0.6
        columns = range(num_envs) if env_ids is None else env_ids
        rows = [[self.new_row() for _ in columns] for _ in range(num_rows)]
        given = self.rng.gamma(1.0, size=(num_rows, len(columns))).astype(np.float32)
        given[self.rng.random(given.shape) < 0.3] = self.rng.choice([np.nan, np.inf, -1.0])
        before = self.ring.heads()
        self.ring.add([[row._asdict() for row in step] for step in rows], env_ids, mask)
        self.state = helpers.add(self.buffer, self.state, stack(rows), priorities=given, env_ids=env_ids, mask=mask)
        if self.priorities is not None:
            self.priorities.after_add(self.positions_given(given, before, columns, mask))

    def new_row(self) -> jb.Transition:
        self.number += 1
        return random_transition(self.rng, self.number)

    def positions_given(self, given, heads, columns, mask) -> dict[tuple[int, int], float]:
        next_position, found = list(heads), {}
        for k in range(given.shape[0]):
            for j, env in enumerate(columns):
                if mask is None or mask[k, j]:
                    found[int(env), next_position[env]] = float(given[k, j])
                    next_position[env] += 1
        return found

    def forget(self) -> None:
        env_ids = None if self.buffer.lockstep else self.rng.permutation(self.buffer.num_envs)[:2].astype(np.int32)
        kind = self.rng.integers(4)
        if kind == 0:
            self.state = helpers.clear(self.buffer, self.state, env_ids)
            self.ring.clear(env_ids)
        elif kind == 1:
            self.state = helpers.drop_oldest(self.buffer, self.state, num_rows=2, env_ids=env_ids)
            self.ring.drop_oldest(2, env_ids)
        else:
            self.state, rows, stored = helpers.dequeue(self.buffer, self.state, num_rows=2, env_ids=env_ids)
            expected = self.ring.dequeue(2, env_ids)
            assert np.asarray(stored).sum(axis=0).tolist() == [len(records) for records in expected]
            for column, records in enumerate(expected):
                actions = [int(record["action"]) for record in records]
                assert np.asarray(rows.action)[: len(records), column].tolist() == actions
        if self.priorities is not None:
            self.priorities.after_forget()

    def update(self) -> None:
        progress = float(self.rng.choice([0.0, 0.2, 0.9]))
        drawn = helpers.sample(self.buffer, self.state, self.new_key(), batch_size=4, progress=progress)
        handles = list(zip(*(np.asarray(part).tolist() for part in drawn.handle), strict=True))
        self.model.check_draw(handles, np.asarray(drawn.weights), progress)
        self.handles = (handles + self.handles)[:12]  # old handles are used again long after they have become stale
        chosen = [self.handles[i] for i in self.rng.integers(0, len(self.handles), 6)]
        new = (self.rng.random(6) * 10.0 ** self.rng.integers(-3, 4, 6)).astype(np.float32)
        new[self.rng.random(6) < 0.2] = self.rng.choice([np.nan, np.inf, -np.inf, -2.0, 0.0])
        env, position = np.array(chosen, np.int32).T
        self.state = helpers.update_priorities(self.buffer, self.state, jb.Handle(env, position), new)
        if self.priorities is not None:
            self.priorities.update(chosen, new.tolist())

    def new_key(self) -> jax.Array:
        return jax.random.key(int(self.rng.integers(2**31)))

    def check(self) -> None:
        storage = self.state.storage
        np.testing.assert_array_equal(np.broadcast_to(storage.head, self.buffer.num_envs), self.ring.heads())
        np.testing.assert_array_equal(np.broadcast_to(storage.size, self.buffer.num_envs), self.ring.sizes())
        (size, num_valid), (rows, stored), (got, legal) = look(self.buffer, self.state)
        assert int(size) == sum(self.ring.sizes())
        assert int(num_valid) == len(self.model.starts())
        for env in range(self.buffer.num_envs):
            expected = [int(record["action"]) for _, record in self.ring.in_order(env)]
            assert np.asarray(rows.action)[np.asarray(stored)[:, env], env].tolist() == expected
        self.check_starts(got, legal)

    def check_starts(self, got: jb.Sample, legal: jax.Array) -> None:
        expected = self.model.starts()
        got, legal = jax.tree.map(np.asarray, (got, legal))
        slots = {(int(got.handle.env[slot]), int(got.handle.position[slot])): slot for slot in np.flatnonzero(legal)}
        assert sorted(slots) == expected
        for start, slot in slots.items():
            self.check_view(start, jax.tree.map(lambda leaf, slot=slot: leaf[slot], got.batch))
        if self.priorities is not None:
            wanted = np.zeros(self.buffer.length * self.buffer.num_envs)
            for start, leaf in self.priorities.leaves.items():
                wanted[slots[start]] = leaf
            np.testing.assert_allclose(helpers.leaves(self.state), wanted, rtol=1e-5)
            assert np.array_equal(helpers.leaves(self.state) > 0, legal)

    def check_view(self, start: tuple[int, int], batch: jb.Batch) -> None:
        if isinstance(self.buffer.view, Older):
            env, position = start
            records = [self.ring.record(env, position - back) for back in (2, 1, 0)]
            assert batch.tolist() == [int(record["action"]) for record in records]
        else:
            self.model.check_batch(start, batch)


@pytest.mark.parametrize("name", CASES)
def test_random_operations_match_the_model(name):
    for seed in range(3):
        pair = Pair(name, seed)
        pair.check()
        for _ in range(25):
            operation = pair.rng.choice(["add", "add", "update", "forget"])
            getattr(pair, operation)()
            pair.check()


def test_positions_survive_the_limit_of_their_counter():
    """A state started just below the limit behaves like a fresh one while its counters wrap."""
    buffer = jb.prioritized(5, 2, n=2)
    fresh = buffer.init(EXAMPLE)
    limit = ring_module.modulus(fresh.storage)
    assert limit % 5 == 0
    assert limit + 5 < 2**31
    late = fresh._replace(storage=fresh.storage._replace(head=np.int32(limit - 5)))
    rng, number = np.random.default_rng(0), 0
    old_handle = None
    for step in range(12):
        rows = [[random_transition(rng, number := number + 1) for _ in range(2)] for _ in range(1 + step % 2)]
        fresh, late = helpers.add(buffer, fresh, stack(rows)), helpers.add(buffer, late, stack(rows))
        draw_key = jax.random.key(step)
        one, other = (helpers.sample(buffer, state, draw_key, batch_size=6) for state in (fresh, late))
        jax.tree.map(np.testing.assert_array_equal, one.batch, other.batch)
        np.testing.assert_array_equal(one.weights, other.weights)
        np.testing.assert_array_equal((one.handle.position - 5) % limit, other.handle.position % limit)
        old_handle = other.handle if step == 0 else old_handle
        priorities = rng.random(6).astype(np.float32)
        fresh = helpers.update_priorities(buffer, fresh, one.handle, priorities)
        late = helpers.update_priorities(buffer, late, other.handle, priorities)
        np.testing.assert_array_equal(helpers.leaves(fresh), helpers.leaves(late))
    assert int(late.storage.head) < 50
    unchanged = helpers.update_priorities(buffer, late, old_handle, priorities)
    np.testing.assert_array_equal(helpers.leaves(unchanged), helpers.leaves(late))
