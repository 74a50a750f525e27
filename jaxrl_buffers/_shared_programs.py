"""Operations on the state of a `Shared`, compiled. They use up the state that they change."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxrl_buffers import _needs as needs
from jaxrl_buffers import starts
from jaxrl_buffers.replay import ReplayBuffer, ReplayState
from jaxrl_buffers.types import Handle, PyTree


@jax.jit
def count_starts(buffer: ReplayBuffer, state: ReplayState) -> jax.Array:
    num_valid = buffer.num_valid(state)
    if not needs.every_env(buffer.sampler):
        return num_valid
    counts = starts.count_of_every_env(state.storage, buffer.window(state))
    return jnp.where(jnp.min(counts) > 0, num_valid, 0)


@functools.partial(jax.jit, donate_argnums=1)
def add(
    buffer: ReplayBuffer, state: ReplayState, chunk: PyTree, priorities: ArrayLike | None, env_ids: ArrayLike | None
) -> ReplayState:
    return buffer.add(state, chunk, priorities=priorities, env_ids=env_ids)


@functools.partial(jax.jit, static_argnums=2, donate_argnums=1)
def dequeue(
    buffer: ReplayBuffer, state: ReplayState, num_rows: int, env_ids: ArrayLike | None
) -> tuple[ReplayState, PyTree, jax.Array]:
    return buffer.dequeue(state, num_rows, env_ids)


@functools.partial(jax.jit, donate_argnums=1)
def update_priorities(
    buffer: ReplayBuffer, state: ReplayState, handle: Handle, priorities: jax.Array, mask: jax.Array | None
) -> ReplayState:
    return buffer.update_priorities(state, handle, priorities, mask)


@functools.partial(jax.jit, donate_argnums=1)
def mark_break(buffer: ReplayBuffer, state: ReplayState, env_ids: ArrayLike | None) -> ReplayState:
    return buffer.mark_break(state, env_ids)
