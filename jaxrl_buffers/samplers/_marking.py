"""How a buffer reports to its sampler which rows became, or ceased to be, legal starts."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_buffers import starts
from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import MarksRows, PyTree, Sampler, Window


def mark(
    sampler: Sampler,
    state: PyTree,
    storage: Ring,
    window: Window,
    position: jax.Array,
    env: jax.Array,
    priorities: jax.Array | None = None,
    only_dead: bool = False,
) -> PyTree:
    """Report rows at positions `[R, E]` to the sampler, if they are still stored in their slots.

    With `only_dead`, report only rows that are not legal starts.
    """
    if position.shape[0] == 0:
        return state
    length, num_envs = ring.shape(storage)
    env = jnp.broadcast_to(env[None], (position.shape[0], env.shape[0]))
    age = ring.age_of_position(storage, ring.wrap(position, ring.modulus(storage)), env)
    legal = starts.is_legal(storage, window, age, env)
    known = (env >= 0) & (env < num_envs)
    # If a position was overwritten or not written yet, its slot holds another row, about which nothing is reported.
    owner = known & (age < length) & (~legal if only_dead else True)
    slots = jnp.where(owner, ring.slot(storage, ring.row_of_age(storage, age, env), env), length * num_envs)
    if not ring.is_lockstep(storage):
        return _mark_slots(sampler, state, slots, legal & owner, priorities)
    gone = max(position.shape[0] - length, 0)  # rows that were overwritten by the last ones
    begin = ring.wrap(position[gone, 0], ring.modulus(storage)) % length * num_envs
    given = None if priorities is None else priorities[gone:]
    return mark_rows(sampler, state, begin, slots[gone:], (legal & owner)[gone:], given)


def mark_rows(
    sampler: Sampler,
    state: PyTree,
    begin: jax.Array,
    slots: jax.Array,
    legal: jax.Array,
    priorities: jax.Array | None = None,
) -> PyTree:
    """Report consecutive slots to a sampler: by the faster method of `MarksRows` if it has it, else by `mark`."""
    if isinstance(sampler, MarksRows):
        return sampler.mark_rows(state, begin, slots, legal, priorities)
    return _mark_slots(sampler, state, slots, legal, priorities)


def _mark_slots(
    sampler: Sampler, state: PyTree, slots: jax.Array, legal: jax.Array, priorities: jax.Array | None
) -> PyTree:
    flat = None if priorities is None else priorities.reshape(-1)
    return sampler.mark(state, slots.reshape(-1), legal.reshape(-1), flat)


def mark_oldest(
    sampler: Sampler, state: PyTree, storage: Ring, window: Window, lookback: int, env: jax.Array
) -> PyTree:
    """Report that the oldest `lookback` rows are not starts any more: they need older rows, which are gone."""
    if lookback == 0:
        return state
    offset = jnp.arange(lookback, dtype=jnp.int32)[:, None]
    oldest = ring.of_env(storage.head, env[None]) - ring.of_env(storage.size, env[None])
    return mark(sampler, state, storage, window, oldest + offset, env, only_dead=True)
