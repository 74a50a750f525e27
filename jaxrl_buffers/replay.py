"""`ReplayBuffer`: storage x sampler x view.

Every method is a pure function of an immutable state and works under `jit`, `vmap` and `scan`. Pass the buffer itself
as an argument to a jitted function and its hyper-parameters can change without recompilation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_buffers import _statistics as statistics
from jaxrl_buffers import starts
from jaxrl_buffers._checked import check
from jaxrl_buffers._checks import (
    check_chunk,
    check_env_ids,
    check_handle,
    check_shape,
    require_choice,
    require_integer,
    row_structure,
)
from jaxrl_buffers._fields import check_fields, field_at
from jaxrl_buffers._parts import any_says
from jaxrl_buffers._platforms import PLATFORMS
from jaxrl_buffers._random.hashing import split
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.samplers import Uniform
from jaxrl_buffers.samplers._marking import mark, mark_oldest
from jaxrl_buffers.storage import EpisodicReturns, Frames, Reader, Ring, Storage, episodes, ring
from jaxrl_buffers.storage import _fits as fits
from jaxrl_buffers.storage.episodes import Episodes
from jaxrl_buffers.types import Batch, Draw, Handle, PyTree, Sample, Sampler, Scalar, View, Window
from jaxrl_buffers.views import NStep


class ReplayState(NamedTuple):
    """Everything that a buffer remembers."""

    storage: Ring
    sampler: PyTree


class ReplayBuffer(Component):
    """A ring of rows, a sampler that says which rows start a sample, and a view that says what they mean.

    Args:
        sampler: for example `Uniform()` or `Prioritized(alpha=0.6, beta=0.4)`.
        view: for example `NStep(n=3, gamma=0.99)` or `Sequence(length=80)`.
        length: rows of the ring; the capacity is `length * num_envs` slots.
        num_envs: environments that write side by side.
        lockstep: all environments are written together, through one cursor. With False each one has its own cursor
            and `add` takes `env_ids` or `mask`.
        returns: record episodic returns, such as `EpisodicReturns(gamma=0.99)`.
        frames: keep observations once, such as `Frames(stack=4)`.
        keep_episodes: keep the episode index, for `episode(state, handle)`, also if no other part asks for it.
        platform: for which rows and priorities are laid out in memory: `"cpu"`, `"gpu"` or `"tpu"`; by default the one
            that JAX uses. It changes how fast the buffer is, and nothing else but the last bit of sums.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrl_buffers as jb
        >>> buffer = jb.ReplayBuffer(sampler=jb.Prioritized(), view=jb.NStep(n=3), length=8, num_envs=2)
        >>> step = jb.Transition(jnp.zeros(3), jnp.int32(0), 0.0, False, False, jnp.zeros(3))
        >>> state = buffer.init(step)
        >>> state = buffer.add(state, jax.tree.map(lambda x: jnp.broadcast_to(x, (4, 2, *jnp.shape(x))), step))
        >>> sample = buffer.sample(state, jax.random.key(0), batch_size=5)
        >>> state = buffer.update_priorities(state, sample.handle, jnp.ones(5))
        >>> print(sample.batch.obs.shape, sample.weights)
        (5, 3) [1. 1. 1. 1. 1.]
    """

    sampler: Sampler = Uniform()
    view: View = NStep()
    length: int = field(static=True, kw_only=True)
    num_envs: int = field(static=True, default=1, kw_only=True)
    lockstep: bool = field(static=True, default=True, kw_only=True)
    returns: EpisodicReturns | None = field(default=None, kw_only=True)
    frames: Frames | None = field(default=None, kw_only=True)
    keep_episodes: bool = field(static=True, default=False, kw_only=True)
    platform: str | None = field(static=True, default=None, kw_only=True)

    def __post_init__(self):
        require_integer("ReplayBuffer", "length", self.length, 1)
        require_integer("ReplayBuffer", "num_envs", self.num_envs, 1)
        if self.length * self.num_envs >= ring.POSITION_LIMIT:
            raise ValueError(
                f"ReplayBuffer(length={self.length}, num_envs={self.num_envs}): fewer than {ring.POSITION_LIMIT} slots "
                "can be counted in 32 bits; shorten the ring."
            )
        if self.platform is not None:
            require_choice("ReplayBuffer", "platform", self.platform, PLATFORMS)
        if hasattr(self.view, "draw") or hasattr(self.sampler, "lookahead"):
            raise ValueError("ReplayBuffer(): a sampler stands in the place of the view, or a view in the sampler's.")
        span = self.view.span + self.lookback - self.view.lookback
        if span > self.length:
            raise ValueError(
                f"ReplayBuffer(length={self.length}): one sample of {self.view!r} spans {span} rows, more than "
                "the ring holds; raise `length` or shorten the view."
            )
        if self.length % self.view.stride:
            raise ValueError(
                f"ReplayBuffer(length={self.length}): the ring's length must be a multiple of the view's period, "
                f"{self.view.stride}, so that sequences start at the same rows in every round; "
                f"{_multiple(self.length, self.view.stride)} would do."
            )
        needed = self.view.lookahead + self.lookback + self.view.stride
        if needed > self.length:
            raise ValueError(
                f"ReplayBuffer(length={self.length}): a full ring would have no start of {self.view!r} at times, for "
                f"one in {self.view.stride} rows is a start and needs {needed - self.view.stride} others; "
                f"make the ring {_multiple(needed, self.view.stride)} rows long, or shorten the view or its period."
            )

    @property
    def storage(self) -> Storage:
        """How rows are stored and read; its state is `state.storage`."""
        fit = fits.Fit(self.view.lookahead, self.view.stride)
        is_asked = self.keep_episodes or any_says("needs_episodes", self.view, self.sampler)
        index = Episodes(self.returns, fit, is_asked or self.returns is not None, fits.are_needed(self.view))
        layers = (index,) if self.frames is None else (self.frames, index)
        return Storage(layers, self.length, self.num_envs, self.lockstep, self.platform)

    @property
    def lookback(self) -> int:
        """How many older rows a start needs: those that the view reads, and those that hold its frames."""
        return self.view.lookback + self.storage.lookback

    def init(self, example: PyTree) -> ReplayState:
        """Return an empty state for rows like `example`: one unbatched row, or `ShapeDtypeStruct`s."""
        structure = row_structure(example)
        check_fields(structure, type(self.view).__name__, self.view.fields)
        return ReplayState(self.storage.init(structure), self.sampler.init((self.length, self.num_envs), self.platform))

    def add(
        self,
        state: ReplayState,
        chunk: PyTree,
        *,
        priorities: jax.Array | None = None,
        env_ids: jax.Array | None = None,
        mask: jax.Array | None = None,
    ) -> ReplayState:
        """Append `K` rows, overwriting the oldest when full.

        Inside one compiled step, add before you sample. The other way round, rows are read from the state that this
        writes to, and XLA's CPU compiler copies all of them to keep that read right.

        Args:
            state: the buffer's state.
            chunk: leaves `[K, N, ...]`, `K` at most the ring's length; `[K, E, ...]` with `env_ids`.
            priorities: `[K, N]` for the rows of the chunk that become legal starts by this call; the default where
                not finite or negative. Rows that become legal later, once a view's lookahead is there, get the default.
            env_ids: `int[E]`, distinct: write only to these environments. Needs `lockstep=False`.
            mask: `bool[K, N]` or `[N]`: write only where True, in order of time. Needs `lockstep=False`.
        """
        storage = state.storage
        priorities = None if priorities is None else jnp.asarray(priorities, jnp.float32)
        if env_ids is not None and mask is not None:
            raise ValueError("add() got both `env_ids` and `mask`; pass one of them.")
        env = _chosen_envs(storage, env_ids, mask)
        num_rows = check_chunk(chunk, self.storage.structure(storage), ring.shape(storage)[0], env.shape[0])
        if mask is not None:
            check_shape("add", "mask", mask, (num_rows, env.shape[0]), (env.shape[0],))
        if priorities is not None:
            check_shape("add", "priorities", priorities, (num_rows, env.shape[0]))
        return self._add(state, jax.tree.map(jnp.asarray, chunk), priorities, env, mask)

    @jax.jit
    def _add(
        self,
        state: ReplayState,
        chunk: PyTree,
        priorities: jax.Array | None,
        env: jax.Array,
        mask: jax.Array | None,
    ) -> ReplayState:
        storage, lookahead = state.storage, self.view.lookahead
        rows, priorities = ring.sort_chunk(chunk, priorities, env, mask)
        written = self.storage.add(storage, rows)
        if priorities is not None:
            not_given = jnp.full((lookahead, env.shape[0]), -1, jnp.float32)
            priorities = jnp.concatenate([not_given, priorities])
        offset = jnp.arange(-lookahead, rows.num_rows, dtype=jnp.int32)[:, None]
        position = ring.of_env(storage.head, env[None]) + offset
        window = self._window(written)
        sampler = mark(self.sampler, state.sampler, written, window, position, env, priorities)
        return ReplayState(written, mark_oldest(self.sampler, sampler, written, window, self.lookback, env))

    def sample(self, state: ReplayState, key: jax.Array, batch_size: int, progress: Scalar = 0.0) -> Sample:
        """Draw a batch; consumes `key`.

        With nothing to draw (see `can_sample`), and for what a draw without replacement lacks, the mask is False and
        the weight 0.

        Args:
            state: the buffer's state.
            key: a PRNG key, typed or raw.
            batch_size: `B`; sequences count as one.
            progress: which part of a round of updates is done, in `[0, 1)`; samplers that emphasize recent rows ask.
        """
        require_integer("sample", "batch_size", batch_size, 1)
        return self._sample(state, key, int(batch_size), progress)

    @functools.partial(jax.jit, static_argnames="batch_size")
    def _sample(self, state: ReplayState, key: jax.Array, batch_size: int, progress: Scalar) -> Sample:
        key_draw, key_view = split(key) if self.view.is_random else (key, key)
        window = self._window(state.storage)
        draw = self.sampler.draw(state.sampler, state.storage, key_draw, batch_size, window, progress)
        check(lambda: jnp.any(draw.mass > 0), "sample() found no start to draw; ask can_sample(state) first")
        return self.assemble(state, draw, key_view)

    def read(self, state: ReplayState, handle: Handle, key: jax.Array | None = None, progress: Scalar = 0.0) -> Sample:
        """Return the sample of given starts, as if `sample` had drawn them; consumes `key`.

        Handles that are stale, or of rows which are no legal starts, have mask False and weight 0. Where a start is
        legal but the sampler cannot draw it at present, such as one too old for `Recent`, only the weight is 0.

        Args:
            state: the buffer's state.
            handle: from `Sample.handle`, `[B]`, or made by hand.
            key: a PRNG key; needed only by views that are random, such as `Hindsight`.
            progress: as in `sample`.
        """
        check_handle("read", handle)
        if key is None and self.view.is_random:
            raise ValueError(f"read() needs a `key`, because {type(self.view).__name__} is random; pass one.")
        return self._read(state, handle, jax.random.key(0) if key is None else key, progress)

    @jax.jit
    def _read(self, state: ReplayState, handle: Handle, key: jax.Array, progress: Scalar) -> Sample:
        window = self._window(state.storage)
        slots, live = ring.locate(state.storage, handle)
        slots = jnp.where(live, slots, 0)
        legal = live & starts.is_legal_slot(state.storage, window, slots)
        draw = self.sampler.measure(state.sampler, state.storage, slots, window, progress)
        draw = draw._replace(mass=jnp.where(legal, draw.mass, 0))
        return self._assembled(state, slots, legal, jnp.where(draw.mass > 0, self.sampler.weights(draw), 0), key)

    def assemble(self, state: ReplayState, draw: Draw, key: jax.Array) -> Sample:
        """Turn a draw into a sample; consumes `key`."""
        return self._assembled(state, draw.slots, draw.mass > 0, self.sampler.weights(draw), key)

    def _assembled(
        self, state: ReplayState, slots: jax.Array, valid: jax.Array, weights: jax.Array, key: jax.Array
    ) -> Sample:
        slots = jnp.where(valid, slots, 0)
        reader = self.storage.reader(state.storage)
        batch = _masked(self.view(reader, slots, key), valid)
        handle = ring.handles_of(state.storage, slots, valid)
        if not isinstance(batch, Batch):
            valid &= _is_whole(reader, slots, self.view.span)
        elif batch.mask.ndim == 1:
            valid = batch.mask
        return Sample(batch, handle, jnp.where(valid, weights, 0))

    def update_priorities(
        self, state: ReplayState, handle: Handle, priorities: jax.Array, mask: jax.Array | None = None
    ) -> ReplayState:
        """Set the priorities of sampled starts; stale handles and priorities that are not finite change nothing.

        Args:
            state: the buffer's state.
            handle: from `Sample.handle`, `[B]`.
            priorities: `[B]`, such as absolute TD errors; or `[B, L]`, reduced by `eta * max + (1 - eta) * mean`.
            mask: with `[B, L]`, the entries that count, such as `sample.batch.mask`.
        """
        priorities = jnp.asarray(priorities)
        batch = check_handle("update_priorities", handle)
        check_shape("update_priorities", "priorities", priorities, batch, (*batch, *priorities.shape[1:2]))
        if mask is not None:
            if priorities.ndim == 1:
                raise ValueError("update_priorities() got a `mask`, which goes with priorities [B, L], not with [B].")
            check_shape("update_priorities", "mask", mask, priorities.shape)
        return state._replace(sampler=self._update(state, handle, priorities, mask))

    @jax.jit
    def _update(self, state: ReplayState, handle: Handle, priorities: jax.Array, mask: jax.Array | None) -> PyTree:
        slots, live = ring.locate(state.storage, handle)
        return self.sampler.update(state.sampler, slots, priorities, live, mask)

    @jax.jit
    def reprioritize(self, state: ReplayState) -> ReplayState:
        """Apply a changed `alpha` or `epsilon`, or a replaced view, to every stored priority, in `O(T N)`.

        Which rows a sampler with priorities can draw is settled when they are added. If the view is replaced later,
        what is no start for the new one is never read, but comes back with mask False and weight 0; and what is a start
        only for the new one is not drawn. This puts both right.
        """
        length, num_envs = ring.shape(state.storage)
        slots = jnp.arange(length * num_envs, dtype=jnp.int32)
        legal = starts.is_legal_slot(state.storage, self._window(state.storage), slots)
        return state._replace(sampler=self.sampler.reprioritize(state.sampler, legal))

    def observe(self, state: ReplayState, mean_return: Scalar) -> ReplayState:
        """Tell the sampler how well the agent does, such as the mean return of the episodes that ended lately."""
        return state._replace(sampler=self.sampler.observe(state.sampler, mean_return))

    def stats(self, state: ReplayState, progress: Scalar = 0.0) -> dict[str, jax.Array]:
        """Return scalars to look at, in `O(T N log(T N))`.

        * `size`: stored slots; `fill`: their part of the capacity; `num_starts`: legal starts.
        * `episodes`: stored episodes, whole or not, if the buffer keeps an index of them.
        * `lost_finals`: stored rows whose final observation is not kept any more, if the buffer has `frames`.
        * `age_<quantile>`: age in rows of the legal starts; `drawn_age_<quantile>`: of what the sampler draws.
        * `priority_<quantile>`: the masses in proportion to which legal starts are drawn, such as
          `(priority + epsilon)^alpha`; zero outside the window of a sampler that leaves old rows out.

        Quantiles `min`, `q25`, `median`, `q75` and `max` are values that occur; NaN while there is nothing.
        """
        return statistics.summarize(self, state, progress)

    def window(self, state: ReplayState) -> Window:
        """Return which ages a sample may start at."""
        return self._window(state.storage)

    def _window(self, storage: Ring) -> Window:
        return starts.legal_window(storage, self.view, self.lookback)

    def num_valid(self, state: ReplayState) -> jax.Array:
        """Count the legal starts."""
        return starts.count(state.storage, self._window(state.storage))

    def can_sample(self, state: ReplayState, at_least: int = 1) -> jax.Array:
        """Tell whether there are `at_least` legal starts."""
        return self.num_valid(state) >= at_least

    def size(self, state: ReplayState) -> jax.Array:
        """Count the stored slots of all environments."""
        size = state.storage.size
        return jnp.sum(size, dtype=jnp.int32) if size.ndim else size * ring.shape(state.storage)[1]

    def age(self, state: ReplayState, handle: Handle) -> jax.Array:
        """Return how many rows were written after those that handles of any shape name."""
        return ring.age_of_position(state.storage, handle.position, handle.env)

    def slice(self, state: ReplayState, start: jax.Array | int, num_rows: int) -> tuple[PyTree, jax.Array]:
        """Copy out rows in order of time, `start` behind the oldest: leaves `[num_rows, N, ...]`, which are whole.

        Rows are not whole if they do not exist or, with `Frames`, if their frames are gone.
        """
        require_integer("slice", "num_rows", num_rows, 1)
        return self._slice(state.storage, start, num_rows)

    @functools.partial(jax.jit, static_argnames="num_rows")
    def _slice(self, storage: Ring, start: jax.Array | int, num_rows: int) -> tuple[PyTree, jax.Array]:
        return self.storage.reader(storage, as_added=True).oldest(start, num_rows)

    def gather_all(self, state: ReplayState) -> tuple[PyTree, jax.Array]:
        """Return leaves `[T, N, ...]` in order of time, oldest first, and `bool[T, N]` telling which are whole."""
        return self._slice(state.storage, 0, ring.shape(state.storage)[0])

    def dequeue(
        self, state: ReplayState, num_rows: int, env_ids: jax.Array | None = None
    ) -> tuple[ReplayState, PyTree, jax.Array]:
        """Take out the oldest rows (of `env_ids` only): leaves `[num_rows, E, ...]`, which of them are whole."""
        require_integer("dequeue", "num_rows", num_rows, 1)
        rows, stored = self.slice(state, 0, num_rows)
        if env_ids is not None:
            env = check_env_ids(env_ids, ring.shape(state.storage)[1])
            rows, stored = jax.tree.map(lambda leaf: leaf[:, env], (rows, stored))
        return self.drop_oldest(state, num_rows, env_ids), rows, stored

    def drop_oldest(self, state: ReplayState, num_rows: int, env_ids: jax.Array | None = None) -> ReplayState:
        """Forget the oldest rows of each environment (of `env_ids` only), or all if there are fewer."""
        require_integer("drop_oldest", "num_rows", num_rows, 0)
        num_rows = min(num_rows, ring.shape(state.storage)[0])
        size, sampler = self._drop(state, _chosen_envs(state.storage, env_ids), num_rows)
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

    def clear(self, state: ReplayState, env_ids: jax.Array | None = None) -> ReplayState:
        """Forget all rows (of `env_ids` only) with their priorities, in `O(T N)`; old handles stay stale for ever."""
        return self.drop_oldest(state, ring.shape(state.storage)[0], env_ids)

    def get_field(self, state: ReplayState, name: str, handle: Handle) -> tuple[PyTree, jax.Array]:
        """Read a named field, such as `"obs.image"`, of the rows that handles of any shape name.

        Returns:
            The values, and of which rows they are still stored; with `Frames`, whole observations.
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
        """Tell where the episodes of the rows that handles of any shape name begin and end, in constant time."""
        return episodes.describe(state.storage, handle)

    def mark_break(self, state: ReplayState, env_ids: jax.Array | None = None) -> ReplayState:
        """Close all open episodes (of `env_ids` only), so that rows added from now on never continue them.

        The newest row of each environment becomes truncated. For a run that resumes with environments begun anew.
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


def _chosen_envs(storage: Ring, env_ids: Any, mask: Any = None) -> jax.Array:
    """Return the environments that an operation is for: all, unless the caller names some."""
    if ring.is_lockstep(storage) and (env_ids is not None or mask is not None):
        raise ValueError(
            "`env_ids` or `mask` was given, but this buffer moves all environments in lock-step; "
            "build it with `lockstep=False`."
        )
    num_envs = ring.shape(storage)[1]
    return jnp.arange(num_envs, dtype=jnp.int32) if env_ids is None else check_env_ids(env_ids, num_envs)


def _multiple(number: int, of: int) -> int:
    """Return the least multiple that is not below a number."""
    return -(-number // of) * of


def _set_size(storage: Ring, env: jax.Array, change: Callable[[jax.Array], jax.Array]) -> jax.Array:
    if ring.is_lockstep(storage):
        return change(storage.size)
    env = jnp.where(env < 0, storage.size.shape[0], env)  # negative numbers would count from the end
    return storage.size.at[env].set(change(ring.of_env(storage.size, env)), mode="drop")


def _is_whole(reader: Reader, slots: jax.Array, span: int) -> jax.Array:
    """Tell which starts can be read whole: batches without a mask say it by their weights only."""
    if reader.complete is None:
        return jnp.ones(slots.shape, bool)
    row, env = reader.locate(slots)
    rows = reader.later(row[:, None], jnp.arange(span, dtype=jnp.int32)[None])
    return jnp.all(reader.is_complete(rows, jnp.broadcast_to(env[:, None], rows.shape)), axis=1)


def _masked(batch: PyTree, valid: jax.Array) -> PyTree:
    """Mask out what was not drawn, where the batch has a mask."""
    if not isinstance(batch, Batch):
        return batch
    return batch._replace(mask=batch.mask & valid.reshape(-1, *[1] * (batch.mask.ndim - 1)))
