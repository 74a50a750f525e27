"""Memory for any agent: the networks of `Recurrent(agent)` remember earlier observations.

Every network has its own memory. While the agent acts, all memories are part of the carry. They are stored with each
step as `extras["carry"]`. The training loop empties them where an episode ends.

Off-policy agents learn from sequences (`jaxrl_buffers.Sequence`). A network begins a sequence with the memory that was
stored with the first row. This memory is stale, because the parameters have changed since then. So the first rows of a
sequence, the burn-in, only refresh the memory. No gradient passes through them: R2D2,
https://openreview.net/forum?id=r1lyTjAqYX. On-policy agents learn from all rows of some environments of a rollout, in
order.

The agent inside is a `MemoryAgent`, written for single steps. It gets the rows of all sequences as one flat batch. The
observations in this batch are a `History`. Rows that do not count have the weight zero.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp

from algorithms.networks.memories import History, RecurrentCore
from algorithms.types import HasParams, MemoryAgent, OnPolicyMemoryAgent, StepInfo
from algorithms.wrappers._base import Wrapper
from jaxrl_buffers import _mesh as mesh
from jaxrl_buffers._checks import require_integer
from jaxrl_buffers._mesh import Axis
from jaxrl_buffers.component import MESH_AXIS, Component, field
from jaxrl_buffers.types import Batch, PyTree, Sample, Transition
from jaxrl_buffers.views.sequence import sum_rows


class Recurrent(Wrapper[MemoryAgent], Component):
    """An agent whose networks remember earlier observations.

    Args:
        agent: an agent whose torso has a memory.
        n_step: deprecated. Use a view that sums up rewards, such as `jaxrl_buffers.Sequence(length, n=3)`.

    Example:
        >>> import jaxrl_buffers as jb
        >>> from algorithms import DDQN, Plan, Torso, environments, train
        >>> env = environments.make("CartPole-v1")
        >>> agent = Recurrent(DDQN(env.action_space, Torso((16,), memory="gru", memory_size=16)))
        >>> buffer = jb.sequences(100, num_envs=4, sequence_length=8, burn_in=2)
        >>> plan = Plan(
        ...     800, num_envs=4, start_steps=200, update_every=100, num_updates=1, mini_batch_size=8, test_every=0
        ... )
        >>> state, metrics = jax.jit(lambda key: train(key, agent, buffer, env, plan))(jax.random.key(0))
        >>> metrics["returns"].shape
        (1, 5)
    """

    agent: MemoryAgent
    n_step: int = field(static=True, default=1)
    axis: Axis = field(static=True, default=None, kw_only=True, repr=False, metadata=MESH_AXIS)

    learns_from_columns = True  # minibatches of a rollout hold whole environments

    def __post_init__(self) -> None:
        require_integer("Recurrent", "n_step", self.n_step, 1)
        if self.n_step != 1:
            message = (
                "`n_step` of Recurrent will be removed in version 2; "
                f"let the view sum rewards: Sequence(..., n={self.n_step})."
            )
            warnings.warn(message, DeprecationWarning, stacklevel=3)
        if not isinstance(self.agent, MemoryAgent):
            raise ValueError(
                f"Recurrent({type(self.agent).__name__}): this agent is no `algorithms.types.MemoryAgent`; give one "
                "such as DDQN(..., Torso(memory='gru')), and put other wrappers outside: Normalized(Recurrent(agent))."
            )
        if self.agent.torso.memory is None:
            raise ValueError(
                f"Recurrent({type(self.agent).__name__}): its networks have no memory; give the agent "
                "`torso=Torso(memory='gru')`."
            )

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> PyTree:
        """Return the first state, for observations like `obs` and actions like `action`; consumes `key`."""
        obs, action = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), (obs, action))
        return self.agent.init(key, History(obs, None, jax.ShapeDtypeStruct((1,), jnp.bool_)), action)

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return the carry of the agent inside, and empty memories `[N, ...]` for all roles."""
        empty = RecurrentCore(self.agent.torso.memory or "", self.agent.torso.memory_size).carry
        memories = {
            role: jnp.zeros((num_envs, *stacked, *empty.shape), empty.dtype) for role, stacked in self.agent.roles
        }
        return self.agent.initial_carry(num_envs), memories | {"is_first": jnp.ones(num_envs, bool)}

    def act(
        self, state: PyTree, obs: PyTree, carry: PyTree, key: jax.Array, deterministic: bool = False
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return actions `[N, ...]`, the next carry, and extras; consumes `key`.

        The extras are those of the agent inside, and under `carry` the memories before this step.
        """
        inner, memories = carry
        history = _history(jax.tree.map(lambda leaf: leaf[:, None], obs), memories, memories["is_first"][:, None])
        action, inner, extras = self.agent.act(state, history, inner, key, deterministic)
        after = {role: self._remember(state, history, role, stacked) for role, stacked in self.agent.roles}
        after["is_first"] = jnp.zeros_like(memories["is_first"])
        return action, (inner, after), {**(extras or {}), "carry": memories}

    def observe(self, state: PyTree, chunk: Transition) -> PyTree:
        """Return the state after rows `[K, N, ...]` were collected."""
        return self.agent.observe(state, chunk)

    def values(self, state: PyTree, chunk: Transition) -> tuple[jax.Array, jax.Array]:
        """Return the values of a chunk's `obs` and the values of its `next_obs`, `float32[K, N]` each."""
        columns = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), chunk)
        history = _history(columns.obs, *_first_carry(columns.extras["carry"]))
        if not isinstance(self.agent, OnPolicyMemoryAgent):
            raise AttributeError(
                f"{type(self.agent).__name__} cannot learn from a rollout: it has no `value`; give a replay buffer "
                "with the view Sequence, or an agent such as PPO."
            )
        both = self.agent.value(state, history), self.agent.value(state, history._replace(following=columns.next_obs))
        value, next_value = (values.reshape(columns.reward.shape).T for values in both)
        return value, next_value

    def gradients(self, state: PyTree, sample: Sample, key: jax.Array) -> tuple[PyTree, StepInfo]:
        """Return the gradients for sequences `[B, L, ...]`, with priorities `float32[B, L]`; consumes `key`."""
        shape, extras = sample.batch.mask.shape, sample.batch.extras
        if not (isinstance(extras, dict) and "carry" in extras):
            raise ValueError(
                "Recurrent.gradients() got sequences without the memory before their first row, `extras['carry']`; "
                "rows of a data set need an empty one: from_file(..., extras=algorithms.empty_row(agent, env).extras)."
            )
        if self.n_step != 1:
            sample = sample._replace(batch=sum_rows(sample.batch, self.n_step))
        grads, info = self.agent.gradients(state, flatten(sample, self.axis), key)
        return grads, info._replace(priorities=info.priorities.reshape(shape))

    def apply(self, state: PyTree, grads: PyTree) -> PyTree:
        """Return the state after one update with these gradients."""
        return self.agent.apply(state, grads)

    def _remember(self, state: HasParams, history: History, role: str, stacked: tuple[int, ...]) -> jax.Array:
        """Return the memories of the networks in one role after the last row of a history."""
        params, encoder = getattr(state.params, role), self.agent.torso.encoder

        def remember(params: PyTree, history: History) -> jax.Array:
            remembered: Any = encoder.apply({"params": params["params"]["torso"]["encoder"]}, history)
            return remembered[1]

        history = history.of(role)
        if stacked:
            remember = jax.vmap(remember, in_axes=(0, History(obs=None, carry=0, is_first=None)))
        return jax.vmap(remember, in_axes=(None, 0))(params, history)


def flatten(sample: Sample, axis: Axis = None) -> Sample:
    """Return sequences `[B, L, ...]` as one flat batch `[B * L, ...]`, with a `History` instead of observations.

    A row has the weight of its sequence, or 0 where the mask is False. All weights are multiplied by the number of rows
    divided by the number of rows that count. So a weighted mean over all rows is a mean over the rows that count. With
    an `axis` of a mesh, the rows of all devices along it are counted.
    """
    batch, shape = sample.batch, sample.batch.mask.shape
    carry, is_first = _first_carry(batch.extras["carry"])
    if is_first.ndim == 1:  # stored for the first row only; rows after the end of an episode do not count
        is_first = jnp.concatenate([is_first[:, None], jnp.zeros((shape[0], shape[1] - 1), bool)], axis=1)
    history = _history(batch.obs, carry, is_first)
    extras = {name: value for name, value in batch.extras.items() if name != "carry"}
    rows = batch._replace(obs=(), extras=extras)
    following = {}
    if isinstance(batch, Batch):
        history = history._replace(is_burn_in=jnp.cumsum(batch.mask, axis=1) == 0)  # rows before the first that counts
        rows = rows._replace(next_obs=(), num_steps=None)
        following = {"next_obs": history._replace(following=batch.next_obs, last=_last_rows(batch))}
    rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows)
    rows = rows._replace(obs=history, **following)
    weights = sample.weights.reshape(shape[0], -1) * batch.mask
    # A float, as the sums of priorities are: compilers then send both at once.
    num_counting = mesh.total(jnp.sum(batch.mask, dtype=jnp.float32), axis)
    weights = weights * (batch.mask.size * mesh.num_devices(axis) / jnp.maximum(num_counting, 1))
    return Sample(rows, sample.handle, weights.reshape(-1))


def _last_rows(batch: Batch) -> jax.Array | None:
    """Return the index `int32[B, L]` of the last row in the target of each row; None if targets span one row."""
    if batch.num_steps is None:
        return None
    return jnp.arange(batch.mask.shape[1], dtype=jnp.int32)[None] + batch.num_steps - 1


def _history(obs: PyTree, memories: PyTree, is_first: jax.Array) -> History:
    return History(obs, {role: memory for role, memory in memories.items() if role != "is_first"}, is_first)


def _first_carry(carry: PyTree) -> tuple[PyTree, jax.Array]:
    """Return the memories `[B, ...]` before the first rows, and `is_first` unchanged, `[B]` or `[B, L]`."""
    is_first = carry["is_first"]
    has_all_rows = is_first.ndim == 2
    memories = {role: memory[:, 0] if has_all_rows else memory for role, memory in carry.items() if role != "is_first"}
    return memories, is_first
