"""On-policy rollouts: advantages, returns and shuffled minibatches, such as PPO needs.

A chunk collected in one go becomes a batch by `Rollout.advantages`. Rows that come one by one are kept by `add`, their
paths closed by `finish_path` with an explicit last value, and all of them returned by `batch`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_buffers._checks import (
    check_chunk,
    check_shape,
    require_choice,
    require_integer,
    require_number,
    row_structure,
)
from jaxrl_buffers._fields import check_fields, named_field
from jaxrl_buffers._random.hashing import unrolled
from jaxrl_buffers.advantages import discount_cumsum, generalized_advantages, normalize, rewards_to_go
from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage._leaves import Leaves
from jaxrl_buffers.storage.reader import Reader
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import PyTree, Scalar, Transition

RETURNS = ("lambda", "rewards_to_go")


class RolloutBatch(NamedTuple):
    """What an on-policy learner trains on; `[K, N, ...]`, or `[B, ...]` as a minibatch.

    Entries whose `mask` is False carry no information; their advantage and return are zero.
    """

    obs: PyTree
    action: PyTree
    advantage: jax.Array  # float32
    return_: jax.Array  # float32, what the critic should predict
    mask: jax.Array  # bool
    extras: PyTree  # as stored: the value, the log-probability of the action, ...


class RolloutRow(NamedTuple):
    """A stored step, and whether its path was closed behind it."""

    transition: Transition
    is_closed: jax.Array  # bool
    last_value: jax.Array  # float32, what comes behind a closed row is worth


class Rollout(struct.PyTreeNode):
    """Turn steps of the present policy into advantages and returns.

    Rows are `Transition`s whose `extras["value"]` is the critic's value of `obs`; nothing reads `next_obs`, so it may
    be `()`. A terminated path is worth nothing behind its end; a truncated one, and one that goes on behind the last
    row, is worth the value of its final observation.

    Args:
        length: rows that `add` can hold; older ones are overwritten.
        num_envs: environments side by side.
        gamma: the discount of one step.
        gae_lambda: 0 trusts the critic after one step, 1 never.
        epsilon: added to the standard deviation that advantages are divided by.
        is_normalized: bring advantages to mean 0 and deviation 1 over all valid rows.
        returns: `"lambda"` gives `advantage + value`, `"rewards_to_go"` the sum of rewards and of the last value.

    Example:
        >>> import jaxrl_buffers as jb
        >>> rollout = jb.rollout(3, gamma=0.5, gae_lambda=0.5, is_normalized=False, returns="rewards_to_go")
        >>> column = lambda *values: jnp.array(values)[:, None]
        >>> chunk = jb.Transition(
        ...     obs=column(0, 1, 2),
        ...     action=column(0, 0, 0),
        ...     reward=column(1.0, 2.0, 3.0),
        ...     terminated=column(False, False, False),
        ...     truncated=column(False, False, True),
        ...     next_obs=column(1, 2, 3),
        ...     extras={"value": column(0.0, 0.5, 1.0)},
        ... )
        >>> batch = rollout.advantages(chunk, next_value=column(0.5, 1.0, 2.0))
        >>> print(batch.advantage[:, 0], batch.return_[:, 0])
        [1.9375 2.75   3.    ] [3. 4. 4.]
    """

    length: int = struct.field(pytree_node=False)
    num_envs: int = struct.field(pytree_node=False, default=1)
    gamma: Scalar = struct.field(default=0.99, kw_only=True)
    gae_lambda: Scalar = struct.field(default=0.95, kw_only=True)
    epsilon: Scalar = struct.field(default=1e-8, kw_only=True)
    is_normalized: bool = struct.field(pytree_node=False, default=True, kw_only=True)
    returns: str = struct.field(pytree_node=False, default="lambda", kw_only=True)

    def __post_init__(self):
        require_integer("Rollout", "length", self.length, 1)
        require_integer("Rollout", "num_envs", self.num_envs, 1)
        require_number(self, "gamma", self.gamma, 0)
        require_number(self, "gae_lambda", self.gae_lambda, 0, 1)
        require_number(self, "epsilon", self.epsilon, 0)
        require_choice("Rollout", "returns", self.returns, RETURNS)

    def advantages(self, chunk: Transition, next_value: jax.Array) -> RolloutBatch:
        """Return the batch of a chunk `[K, N, ...]` collected in one go.

        Args:
            chunk: transitions with `extras["value"]`.
            next_value: `float32[K, N]`, the critic's value of `next_obs`, which is the final observation where an
                episode ended. Read only where one was truncated and in the last row.
        """
        shape = jnp.shape(_value(chunk))
        for name in ("reward", "terminated", "truncated"):
            check_shape("advantages", f"chunk.{name}", getattr(chunk, name), shape)
        check_shape("advantages", "next_value", next_value, shape)
        chunk = jax.tree.map(jnp.asarray, chunk)
        rows = RolloutRow(chunk, _is_over(chunk), _worth_behind(chunk, next_value))
        return self._batch(rows, jnp.ones(shape, bool))

    def init(self, example: Transition) -> Ring:
        """Return an empty state for rows like `example`: one unbatched transition, or `ShapeDtypeStruct`s."""
        structure = row_structure(example)
        check_fields(structure, "Rollout", ("obs", "action", "reward", "terminated", "truncated", "extras"))
        _value(structure)
        row = RolloutRow(structure, jnp.zeros((), bool), jnp.zeros((), jnp.float32))
        return ring.init(row, self.length, self.num_envs, lockstep=True)

    @jax.jit
    def add(self, state: Ring, chunk: Transition, next_value: jax.Array | None = None) -> Ring:
        """Append `K` rows, overwriting the oldest when full; terminated rows close their paths.

        Args:
            state: the state.
            chunk: transitions `[K, N, ...]` with `extras["value"]`.
            next_value: `float32[K, N]`, with which truncated rows close their paths. If left out, `finish_path` must
                follow a truncated row at once; else the rows of its path stay masked.
        """
        length, num_envs = ring.shape(state)
        num_rows = check_chunk(chunk, state.rows.structure.transition, length, num_envs)
        is_closed = jnp.asarray(chunk.terminated, bool)
        if next_value is not None:
            check_shape("add", "next_value", next_value, (num_rows, num_envs))
            is_closed = _is_over(chunk)
        worth = _worth_behind(chunk, 0 if next_value is None else next_value)
        return ring.write(state, RolloutRow(chunk, is_closed, worth))

    @jax.jit
    def finish_path(self, state: Ring, last_value: jax.Array, where: jax.Array | None = None) -> Ring:
        """Close the path of the newest row, which goes on with `last_value`; nothing happens where it is closed.

        So a terminated path stays worth nothing behind its end, whatever is given.

        Args:
            state: the state.
            last_value: `float32[N]`, the value of the final observation; zero where the task is over.
            where: `bool[N]`, the environments concerned; by default all.
        """
        shape = ring.shape(state)[1:]
        check_shape("finish_path", "last_value", last_value, shape)
        where = jnp.ones(shape, bool) if where is None else jnp.asarray(where)
        check_shape("finish_path", "where", where, shape)
        rows, newest = state.data, ring.row_of_age(state, jnp.int32(0), jnp.int32(0))
        closed = rows.is_closed[newest]
        worth = jnp.where(where & ~closed, jnp.asarray(last_value, jnp.float32), rows.last_value[newest])
        rows = RolloutRow(
            rows.transition, rows.is_closed.at[newest].set(closed | where), rows.last_value.at[newest].set(worth)
        )
        return state._replace(rows=Leaves(rows))

    @jax.jit
    def batch(self, state: Ring) -> RolloutBatch:
        """Return all rows in order of time, `[T, N, ...]`; masked where not stored or not of a closed path."""
        rows, stored = Reader(state).oldest(0, ring.shape(state)[0])
        # One at every row from which the next end of a path is a closed one.
        closed_ahead = discount_cumsum(rows.is_closed & stored, ~_is_end(rows))
        return self._batch(rows, stored & (closed_ahead > 0))

    def sample(self, state: Ring, key: jax.Array, batch_size: int) -> RolloutBatch:
        """Draw distinct rows `[B, ...]` of closed paths, masked where there are fewer; consumes `key`."""
        require_integer("sample", "batch_size", batch_size, 1)
        return self._sample(state, key, int(batch_size))

    @functools.partial(jax.jit, static_argnames="batch_size")
    def _sample(self, state: Ring, key: jax.Array, batch_size: int) -> RolloutBatch:
        batch = flatten_rows(self.batch(state))
        size = batch.mask.shape[0]
        uniforms = jax.random.uniform(unrolled(key), (size,), jnp.float32)
        order = jnp.argsort(jnp.where(batch.mask, uniforms, jnp.inf))
        return take_rows(batch, jnp.pad(order, (0, max(batch_size - size, 0)), constant_values=size)[:batch_size])

    def clear(self, state: Ring) -> Ring:
        """Forget all rows, such as after the policy has changed."""
        return state._replace(size=jnp.zeros_like(state.size))

    @jax.jit
    def _batch(self, rows: RolloutRow, mask: jax.Array) -> RolloutBatch:
        steps, is_end = rows.transition, _is_end(rows)
        value = _value(steps)
        advantage = generalized_advantages(steps.reward, value, is_end, rows.last_value, self.gamma, self.gae_lambda)
        if self.returns == "lambda":
            returns = advantage + value
        else:
            returns = rewards_to_go(steps.reward, is_end, rows.last_value, self.gamma)
        if self.is_normalized:
            advantage = normalize(advantage, mask, self.epsilon)
        advantage, returns = jnp.where(mask, advantage, 0), jnp.where(mask, returns, 0)
        return RolloutBatch(steps.obs, steps.action, advantage, returns, mask, steps.extras)


def flatten_rows(batch: RolloutBatch) -> RolloutBatch:
    """Merge the axes `[K, N]` of time and environments into one."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch)


def take_rows(batch: RolloutBatch, index: jax.Array) -> RolloutBatch:
    """Return the entries of a flat batch at `index[B]`, masked where there is no such entry."""
    taken = jax.tree.map(lambda leaf: leaf.at[index].get(mode="clip"), batch)
    return taken._replace(mask=batch.mask.at[index].get(mode="fill", fill_value=False))


def _value(steps: Transition) -> jax.Array:
    try:
        return named_field(steps.extras, "value")
    except ValueError as error:
        raise ValueError(f'a rollout needs the value of each observation as `extras["value"]`; {error}') from None


def _worth_behind(steps: Transition, next_value: jax.Array | int) -> jax.Array:
    return jnp.where(steps.terminated, 0, next_value).astype(jnp.float32)


def _is_over(steps: Transition) -> jax.Array:
    return jnp.asarray(steps.terminated, bool) | jnp.asarray(steps.truncated, bool)


def _is_end(rows: RolloutRow) -> jax.Array:
    return rows.is_closed | _is_over(rows.transition)
