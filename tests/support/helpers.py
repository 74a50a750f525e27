"""Rows to store, and jitted operations shared by the tests so that each shape is compiled once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import jaxrl_buffers as jb
from jaxrl_buffers import starts
from jaxrl_buffers.storage import ring

add = jax.jit(jb.ReplayBuffer.add)
sample = jax.jit(jb.ReplayBuffer.sample, static_argnames="batch_size")
update_priorities = jax.jit(jb.ReplayBuffer.update_priorities)
drop_oldest = jax.jit(jb.ReplayBuffer.drop_oldest, static_argnames="num_rows")
dequeue = jax.jit(jb.ReplayBuffer.dequeue, static_argnames="num_rows")
report_return = jax.jit(jb.ReplayBuffer.report_return)
clear = jax.jit(jb.ReplayBuffer.clear)
gather_all = jax.jit(jb.ReplayBuffer.gather_all)
counts = jax.jit(lambda buffer, state: (buffer.size(state), buffer.num_valid(state)))

EXAMPLE = jb.Transition(
    obs={"x": np.zeros(2, np.float32), "image": np.zeros((2, 1), np.uint8)},
    action=np.int32(0),
    reward=np.float32(0),
    terminated=np.bool_(False),
    truncated=np.bool_(False),
    next_obs={"x": np.zeros(2, np.float32), "image": np.zeros((2, 1), np.uint8)},
    extras={"carry": np.zeros(3, np.float32), "logp": np.float32(0)},
)


def transition(number: int, reward: float = 0.0, terminated: bool = False, truncated: bool = False) -> jb.Transition:
    """Return a row that can be told from every other one by its number."""

    def observation(value: float) -> dict[str, np.ndarray]:
        return {"x": np.array([value, -value], np.float32), "image": np.full((2, 1), int(value) % 256, np.uint8)}

    return jb.Transition(
        obs=observation(number),
        action=np.int32(number),
        reward=np.float32(reward),
        terminated=np.bool_(terminated),
        truncated=np.bool_(truncated),
        next_obs=observation(number + 1),
        extras={"carry": np.full(3, number, np.float32), "logp": np.float32(-number)},
    )


def random_transition(rng: np.random.Generator, number: int) -> jb.Transition:
    """Return a numbered row with a random reward that may end its episode either way."""
    return transition(number, float(np.float32(rng.normal())), bool(rng.random() < 0.15), bool(rng.random() < 0.15))


def stack(rows: list[list[Any]]) -> Any:
    """Stack `rows[k][e]` into leaves `[K, E, ...]`."""
    columns = [jax.tree.map(lambda *leaves: np.stack(leaves), *row) for row in rows]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *columns)


def scalars(values: Any, num_envs: int = 1) -> jax.Array:
    """Return a chunk `[K, num_envs]` of plain numbers, the same for every environment."""
    return jnp.broadcast_to(jnp.asarray(values, jnp.float32)[:, None], (len(values), num_envs))


def number_buffer(length: int, num_envs: int = 1, **options: Any) -> tuple[jb.ReplayBuffer, jb.ReplayState]:
    """Return a buffer of plain numbers, read back one by one as `[B, 1]`."""
    buffer = jb.ReplayBuffer(view=options.pop("view", jb.Sequence(1)), length=length, num_envs=num_envs, **options)
    return buffer, buffer.init(jnp.float32(0))


def rewards_chunk(rewards: Any, terminated: Any = None, truncated: Any = None) -> jb.Transition:
    """Return a chunk `[K, 1]` of plain transitions numbered from 0."""
    count = len(rewards)

    def column(values: Any, dtype: Any) -> jax.Array:
        return jnp.asarray(np.zeros(count) if values is None else values, dtype)[:, None]

    numbers = column(np.arange(count), jnp.float32)
    return jb.Transition(
        numbers,
        numbers.astype(jnp.int32),
        column(rewards, jnp.float32),
        column(terminated, bool),
        column(truncated, bool),
        numbers + 1,
    )


@jax.jit
def every_slot(buffer: jb.ReplayBuffer, state: jb.ReplayState) -> tuple[jb.Sample, jax.Array]:
    """Return what each slot would give as a start, and which slots are legal starts."""
    storage = state.storage
    length, num_envs = ring.shape(storage)
    slots = jnp.arange(length * num_envs, dtype=jnp.int32)
    row, env = ring.unravel(storage, slots)
    window = buffer.window(state)
    legal = starts.is_legal(storage, window, ring.age_of_row(storage, row, env), env)
    count = starts.count(storage, window)
    draw = jb.Draw(slots, jnp.ones(slots.shape, jnp.float32), jnp.float32(1), jnp.float32(1), count)
    return buffer.assemble(state, draw, jax.random.key(0)), legal


def leaves(state: jb.ReplayState) -> np.ndarray:
    """Return the leaves of a prioritized buffer's tree, one a slot."""
    sampler = state.sampler
    while not hasattr(sampler, "tree"):  # inside a sampler that narrows or mixes
        sampler = sampler.sampler
    tree = sampler.tree
    return np.asarray(tree.leaves)[: tree.capacity]


def assert_frequencies(counts: Any, expected: Any) -> None:
    """Check by a chi-square test that counts are in proportion to `expected`, and zero where that is."""
    counts, expected = np.ravel(counts), np.ravel(np.asarray(expected, np.float64))
    assert counts[expected == 0].sum() == 0
    counts, expected = counts[expected > 0], expected[expected > 0]
    assert stats.chisquare(counts, expected * (counts.sum() / expected.sum())).pvalue > 1e-5
