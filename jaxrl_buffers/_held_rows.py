"""`HeldRows`: what every replay buffer does with the rows that it holds, apart from sampling.

It counts them, reads them, forgets them and finds their episodes. `ReplayBuffer` is built on it.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxrl_buffers import starts
from jaxrl_buffers._checked import check
from jaxrl_buffers._checks import check_env_ids, require_integer
from jaxrl_buffers._fields import field_at
from jaxrl_buffers.samplers._marking import mark, mark_oldest
from jaxrl_buffers.storage import Ring, Storage, episodes, ring
from jaxrl_buffers.types import Handle, PyTree, Sampler, View, Window


class ReplayState(NamedTuple):
    """Everything that a buffer remembers."""

    storage: Ring
    sampler: PyTree


class HeldRows(abc.ABC):
    """The rows of a buffer. A class derived from it is also a `Component`, with the fields `sampler` and `view`."""

    sampler: Sampler
    view: View

    @property
    @abc.abstractmethod
    def storage(self) -> Storage:
        """How rows are stored and read; its state is `state.storage`."""

    @property
    def lookback(self) -> int:
        """How many older rows a start needs: the rows that the view reads, and the rows that hold its frames."""
        return self.view.lookback + self.storage.lookback

    def window(self, state: ReplayState) -> Window:
        """Return the ages at which a sample may start, as a `Window`. The newest row has age 0."""
        return self._window(state.storage)

    def _window(self, storage: Ring) -> Window:
        return starts.legal_window(storage, self.view, self.lookback)

    def num_valid(self, state: ReplayState) -> jax.Array:
        """Count the legal starts: `int32[]`."""
        return starts.count(state.storage, self._window(state.storage))

    def can_sample(self, state: ReplayState, at_least: int = 1) -> jax.Array:
        """Return whether there are `at_least` legal starts: `bool[]`."""
        return self.num_valid(state) >= at_least

    def size(self, state: ReplayState) -> jax.Array:
        """Count the stored slots of all environments: `int32[]`."""
        size = state.storage.size
        return jnp.sum(size, dtype=jnp.int32) if size.ndim else size * ring.shape(state.storage)[1]

    def age(self, state: ReplayState, handle: Handle) -> jax.Array:
        """Return the age of each row that `handle` names: how many rows of its environment are newer.

        The handle may have any shape; the result `int32[...]` has the same shape.
        """
        return ring.age_of_position(state.storage, handle.position, handle.env)

    def slice(self, state: ReplayState, start: jax.Array | int, num_rows: int) -> tuple[PyTree, jax.Array]:
        """Copy `num_rows` rows of every environment in order of time. The first is `start` rows after the oldest.

        Returns:
            Leaves `[num_rows, N, ...]`, and `bool[num_rows, N]`: which of these rows are whole. A row is not whole if
            it does not exist or, with `Frames`, if some of its frames are gone.
        """
        require_integer("slice", "num_rows", num_rows, 1)
        return self._slice(state.storage, start, num_rows)

    @functools.partial(jax.jit, static_argnames="num_rows")
    def _slice(self, storage: Ring, start: jax.Array | int, num_rows: int) -> tuple[PyTree, jax.Array]:
        return self.storage.reader(storage, as_added=True).oldest(start, num_rows)

    def gather_all(self, state: ReplayState) -> tuple[PyTree, jax.Array]:
        """Copy all rows in order of time, as `slice` does: leaves `[T, N, ...]`, and `bool[T, N]`."""
        return self._slice(state.storage, 0, ring.shape(state.storage)[0])

    def dequeue(
        self, state: ReplayState, num_rows: int, env_ids: ArrayLike | None = None
    ) -> tuple[ReplayState, PyTree, jax.Array]:
        """Take out the oldest rows of every environment, or of `env_ids` only.

        Returns:
            The state without these rows, their leaves `[num_rows, E, ...]`, and `bool[num_rows, E]`: which of these
            rows are whole, as in `slice`.
        """
        require_integer("dequeue", "num_rows", num_rows, 1)
        rows, is_whole = self.slice(state, 0, num_rows)
        if env_ids is not None:
            env = check_env_ids(env_ids, ring.shape(state.storage)[1])
            rows, is_whole = jax.tree.map(lambda leaf: leaf[:, env], (rows, is_whole))
        return self.drop_oldest(state, num_rows, env_ids), rows, is_whole

    def drop_oldest(self, state: ReplayState, num_rows: int, env_ids: ArrayLike | None = None) -> ReplayState:
        """Forget the oldest `num_rows` rows of every environment, or of `env_ids` only.

        An environment with fewer rows loses all of them.
        """
        require_integer("drop_oldest", "num_rows", num_rows, 0)
        num_rows = min(num_rows, ring.shape(state.storage)[0])
        size, sampler = self._drop(state, chosen_envs(state.storage, env_ids), num_rows)
        return ReplayState(state.storage._replace(size=size), sampler)

    @functools.partial(jax.jit, static_argnames="num_rows")
    def _drop(self, state: ReplayState, env: jax.Array, num_rows: int) -> tuple[jax.Array, PyTree]:
        storage = state.storage
        size = _set_size(storage, env, lambda old: jnp.maximum(old - num_rows, 0))
        offset = jnp.arange(num_rows, dtype=jnp.int32)[:, None]
        oldest = ring.of_env(storage.head, env[None]) - ring.of_env(storage.size, env[None])
        dropped = storage._replace(size=size)
        window = self._window(dropped)
        sampler = mark(self.sampler, state.sampler, dropped, window, oldest + offset, env, only_dead=True)
        return size, mark_oldest(self.sampler, sampler, dropped, window, self.lookback, env)

    def clear(self, state: ReplayState, env_ids: ArrayLike | None = None) -> ReplayState:
        """Forget all rows and their priorities, or only those of the environments `env_ids`, in `O(T N)`.

        Handles of these rows stay stale for ever.
        """
        return self.drop_oldest(state, ring.shape(state.storage)[0], env_ids)

    def get_field(self, state: ReplayState, name: str, handle: Handle) -> tuple[PyTree, jax.Array]:
        """Read one field, such as `"obs.image"`, of the rows that `handle` names. The handle may have any shape.

        Returns:
            The values, and `bool[...]` in the shape of the handle: which rows are still stored. With `Frames`, the
            values of an observation are its whole stack of frames.
        """
        slots, live = ring.locate(state.storage, handle)
        values, is_whole = self._field(state.storage, name, jnp.where(live, slots, 0))
        check(lambda: jnp.all(live & is_whole), "get_field() was asked for rows that are not stored")
        return values, live & is_whole

    @functools.partial(jax.jit, static_argnames="name")
    def _field(self, storage: Ring, name: str, slots: jax.Array) -> tuple[PyTree, jax.Array]:
        row, env = ring.unravel(storage, slots)
        reader = self.storage.reader(storage, as_added=True)
        return field_at(reader.read(row, env), name), reader.is_complete(row, env, name.split(".")[0])

    def episode(self, state: ReplayState, handle: Handle) -> episodes.Episode:
        """Return where the episode of each named row begins and ends, in constant time. Handles may have any shape."""
        return episodes.describe(state.storage, handle)

    def mark_break(self, state: ReplayState, env_ids: ArrayLike | None = None) -> ReplayState:
        """Close the open episodes of every environment, or of `env_ids` only: the newest row becomes truncated.

        Rows that are added later then never continue these episodes. Use it when a run resumes with environments that
        were reset.
        """
        num_envs = ring.shape(state.storage)[1]
        where = jnp.ones(num_envs, bool)
        if env_ids is not None:
            env = check_env_ids(env_ids, num_envs)
            where = jnp.zeros(num_envs, bool).at[jnp.where(env < 0, num_envs, env)].set(True, mode="drop")
        return self._mark_break(state, where)

    @jax.jit
    def _mark_break(self, state: ReplayState, where: jax.Array) -> ReplayState:
        return state._replace(storage=self.storage.mark_break(state.storage, where))


def chosen_envs(storage: Ring, env_ids: ArrayLike | None, mask: ArrayLike | None = None) -> jax.Array:
    """Return the environments that an operation is for: all of them, unless the caller names some."""
    if ring.is_lockstep(storage) and (env_ids is not None or mask is not None):
        raise ValueError(
            "`env_ids` or `mask` was given, but this buffer moves all environments in lock-step; "
            "build it with `lockstep=False`."
        )
    num_envs = ring.shape(storage)[1]
    return jnp.arange(num_envs, dtype=jnp.int32) if env_ids is None else check_env_ids(env_ids, num_envs)


def _set_size(storage: Ring, env: jax.Array, change: Callable[[jax.Array], jax.Array]) -> jax.Array:
    if ring.is_lockstep(storage):
        return change(storage.size)
    env = jnp.where(env < 0, storage.size.shape[0], env)  # negative numbers would count from the end
    return storage.size.at[env].set(change(ring.of_env(storage.size, env)), mode="drop")
