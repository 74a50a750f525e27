"""On-policy rollouts: advantages, returns and random minibatches, as PPO needs them.

There are two ways to use them. If a chunk is collected at once, `Rollout.advantages` turns it into a batch. If rows
come a few at a time, `add` stores them, `finish_path` closes their paths with a last value, and `batch` returns them
all.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_buffers._checks import (
    check_chunk,
    check_shape,
    require_choice,
    require_integer,
    require_number,
    row_structure,
)
from jaxrl_buffers._fields import check_fields, named_field
from jaxrl_buffers._mesh import Axis
from jaxrl_buffers._random.hashing import unrolled
from jaxrl_buffers.advantages import discount_cumsum, generalized_advantages, normalize, rewards_to_go
from jaxrl_buffers.component import MESH_AXIS, Component, field
from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage._leaves import Leaves
from jaxrl_buffers.storage.reader import Reader
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import PyTree, Scalar, Transition

RETURNS = ("lambda", "rewards_to_go")


class RolloutBatch(NamedTuple):
    """What an on-policy learner trains on: leaves `[K, N, ...]`, or `[B, ...]` in a minibatch.

    A learner leaves out the entries whose `mask` is False. Their advantage and return are zero.
    """

    obs: PyTree
    action: PyTree
    advantage: jax.Array  # float32
    return_: jax.Array  # float32: what the critic should predict
    mask: jax.Array  # bool
    extras: PyTree  # as they were added: the value, the log-probability of the action, ...


class RolloutRow(NamedTuple):
    """A stored step, and what follows it if its path ends there."""

    transition: Transition
    is_closed: jax.Array  # bool: whether the path ends with this row, and `last_value` is known
    last_value: jax.Array  # float32: the value of what follows a closed row


class Rollout(Component):
    """Turn steps of the current policy into advantages and returns.

    Rows are `Transition`s whose `extras["value"]` is the critic's value of `obs`. `next_obs` is never read, so it may
    be `()`. A path is the part of the rollout that belongs to one episode. If the episode terminated, the value after
    the end of the path is zero. If the episode was truncated, or goes on after the last row, this value is the critic's
    value of the final observation. See `generalized_advantages` and `rewards_to_go` for the equations.

    Args:
        length: how many rows `add` can store; older ones are overwritten.
        num_envs: how many environments write side by side.
        gamma: the discount of one step.
        gae_lambda: how far to trust rewards over the critic: 0 uses one reward and then the critic, 1 all rewards.
        epsilon: added to the standard deviation by which advantages are divided.
        normalize: bring the advantages of all valid rows to mean 0 and standard deviation 1.
        returns: `"lambda"` gives `advantage + value`; `"rewards_to_go"` gives the discounted sum of the rewards and the
            last value.

    Example:
        >>> import jaxrl_buffers as jb
        >>> rollout = jb.rollout(3, gamma=0.5, gae_lambda=0.5, normalize=False, returns="rewards_to_go")
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

    length: int = field(static=True)
    num_envs: int = field(static=True, default=1)
    gamma: Scalar = field(default=0.99, kw_only=True)
    gae_lambda: Scalar = field(default=0.95, kw_only=True)
    epsilon: Scalar = field(default=1e-8, kw_only=True)
    normalize: bool = field(static=True, default=True, kw_only=True)
    returns: str = field(static=True, default="lambda", kw_only=True)
    axis: Axis = field(static=True, default=None, kw_only=True, repr=False, metadata=MESH_AXIS)

    renamed: ClassVar[Mapping[str, str]] = {"is_normalized": "normalize"}

    def __post_init__(self) -> None:
        require_integer("Rollout", "length", self.length, 1)
        require_integer("Rollout", "num_envs", self.num_envs, 1)
        require_number(self, "gamma", self.gamma, 0)
        require_number(self, "gae_lambda", self.gae_lambda, 0, 1)
        require_number(self, "epsilon", self.epsilon, 0)
        require_choice("Rollout", "returns", self.returns, RETURNS)

    def advantages(self, chunk: Transition, next_value: jax.Array) -> RolloutBatch:
        """Return the batch of a chunk `[K, N, ...]` that was collected at once.

        Args:
            chunk: transitions with `extras["value"]`.
            next_value: `float32[K, N]`, the critic's value of `next_obs`. It is read only where an episode was
                truncated, and in the last row.
        """
        shape = jnp.shape(_value(chunk))
        for name in ("reward", "terminated", "truncated"):
            check_shape("advantages", f"chunk.{name}", getattr(chunk, name), shape)
        check_shape("advantages", "next_value", next_value, shape)
        chunk = jax.tree.map(jnp.asarray, chunk)
        rows = RolloutRow(chunk, _is_over(chunk), _value_after(chunk, next_value))
        return self._batch(rows, jnp.ones(shape, bool))

    def init(self, example: Transition) -> Ring:
        """Return an empty state for rows like `example`, which is one unbatched transition or `ShapeDtypeStruct`s."""
        structure = row_structure(example)
        check_fields(structure, "Rollout", ("obs", "action", "reward", "terminated", "truncated", "extras"))
        _value(structure)
        row = RolloutRow(structure, jnp.zeros((), bool), jnp.zeros((), jnp.float32))
        return ring.init(row, self.length, self.num_envs, lockstep=True)

    @jax.jit
    def add(self, state: Ring, chunk: Transition, next_value: jax.Array | None = None) -> Ring:
        """Append `K` rows, overwriting the oldest if the rollout is full. Terminated rows close their paths.

        Args:
            state: the state.
            chunk: transitions `[K, N, ...]` with `extras["value"]`.
            next_value: `float32[K, N]`, the critic's value of `next_obs`. Truncated rows close their paths with it.
                Without it, call `finish_path` right after each truncated row. Otherwise the rows of its path have mask
                False.
        """
        length, num_envs = ring.shape(state)
        num_rows = check_chunk(chunk, state.rows.structure.transition, length, num_envs)
        is_closed = jnp.asarray(chunk.terminated, bool)
        if next_value is not None:
            check_shape("add", "next_value", next_value, (num_rows, num_envs))
            is_closed = _is_over(chunk)
        value_after = _value_after(chunk, 0 if next_value is None else next_value)
        return ring.write(state, RolloutRow(chunk, is_closed, value_after))

    @jax.jit
    def finish_path(self, state: Ring, last_value: jax.Array, where: jax.Array | None = None) -> Ring:
        """Close the path of the newest row: the value of what follows is `last_value`.

        A path that is already closed does not change. So the value after a terminated row stays zero.

        Args:
            state: the state.
            last_value: `float32[N]`, the critic's value of the final observation; zero where the task is over.
            where: `bool[N]`, the environments whose paths are closed; by default all.
        """
        shape = ring.shape(state)[1:]
        check_shape("finish_path", "last_value", last_value, shape)
        where = jnp.ones(shape, bool) if where is None else jnp.asarray(where)
        check_shape("finish_path", "where", where, shape)
        rows, newest = state.data, ring.row_of_age(state, jnp.int32(0), jnp.int32(0))
        closed = rows.is_closed[newest]
        value_after = jnp.where(where & ~closed, jnp.asarray(last_value, jnp.float32), rows.last_value[newest])
        rows = RolloutRow(
            rows.transition, rows.is_closed.at[newest].set(closed | where), rows.last_value.at[newest].set(value_after)
        )
        return state._replace(rows=Leaves(rows))

    @jax.jit
    def batch(self, state: Ring) -> RolloutBatch:
        """Return all rows in order of time, `[T, N, ...]`; the mask is True for stored rows of closed paths."""
        rows, stored = Reader(state).oldest(0, ring.shape(state)[0])
        # This is positive at every row whose path is closed. The discount is zero at the end of each path, closed or
        # not, so nothing is carried from one path to another.
        closed_ahead = discount_cumsum(rows.is_closed & stored, ~_is_end(rows))
        return self._batch(rows, stored & (closed_ahead > 0))

    def sample(self, state: Ring, key: jax.Array, batch_size: int) -> RolloutBatch:
        """Draw `B` distinct rows of closed paths; consumes `key`. If there are fewer, the rest has mask False."""
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
        """Forget all rows. Call it when the policy has changed."""
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
        if self.normalize:
            advantage = normalize(advantage, mask, self.epsilon, self.axis)
        advantage, returns = jnp.where(mask, advantage, 0), jnp.where(mask, returns, 0)
        return RolloutBatch(steps.obs, steps.action, advantage, returns, mask, steps.extras)


def flatten_rows(batch: RolloutBatch) -> RolloutBatch:
    """Return a batch whose axes `[K, N]` of time and environments are merged into one."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch)


def take_rows(batch: RolloutBatch, index: jax.Array) -> RolloutBatch:
    """Return the entries `index[B]` of a flat batch. Entries that do not exist get mask False."""
    taken = jax.tree.map(lambda leaf: leaf.at[index].get(mode="clip"), batch)
    return taken._replace(mask=batch.mask.at[index].get(mode="fill", fill_value=False))


def _value(steps: Transition) -> jax.Array:
    try:
        return named_field(steps.extras, "value")
    except ValueError as error:
        raise ValueError(f'a rollout needs the value of each observation as `extras["value"]`; {error}') from None


def _value_after(steps: Transition, next_value: jax.Array | int) -> jax.Array:
    return jnp.where(steps.terminated, 0, next_value).astype(jnp.float32)


def _is_over(steps: Transition) -> jax.Array:
    return jnp.asarray(steps.terminated, bool) | jnp.asarray(steps.truncated, bool)


def _is_end(rows: RolloutRow) -> jax.Array:
    return rows.is_closed | _is_over(rows.transition)
