"""`ReplayBuffer`: a storage, a sampler and a view put together.

Every method is a pure function of an immutable state and works under `jit`, `vmap` and `scan`. If the buffer itself is
an argument of a jitted function, its hyper-parameters can change without recompilation.
"""

from __future__ import annotations

import functools
import warnings

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxrl_buffers import _needs as needs
from jaxrl_buffers import _statistics as statistics
from jaxrl_buffers import starts
from jaxrl_buffers._assembly import assembled
from jaxrl_buffers._checked import check
from jaxrl_buffers._checks import (
    check_chunk,
    check_handle,
    check_length,
    check_shape,
    require_choice,
    require_integer,
    row_structure,
    shown,
)
from jaxrl_buffers._fields import check_fields
from jaxrl_buffers._held_rows import HeldRows, ReplayState, chosen_envs
from jaxrl_buffers._random.hashing import split
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.samplers import Uniform
from jaxrl_buffers.samplers._marking import mark, mark_oldest
from jaxrl_buffers.storage import EpisodicReturns, Frames, Storage, ring
from jaxrl_buffers.storage import _fits as fits
from jaxrl_buffers.storage.episodes import Episodes
from jaxrl_buffers.storage.rows import PLATFORMS
from jaxrl_buffers.types import Draw, Handle, PyTree, Sample, Sampler, Scalar, View
from jaxrl_buffers.views import NStep

__all__ = ["ReplayBuffer", "ReplayState"]


class ReplayBuffer(HeldRows, Component):
    """A ring of rows, a sampler that draws the rows at which samples start, and a view that turns them into a batch.

    Args:
        sampler: for example `Uniform()` or `Prioritized(alpha=0.6, beta=0.4)`.
        view: for example `NStep(n=3, gamma=0.99)` or `Sequence(length=80)`.
        length: how many rows the ring has; the capacity is `length * num_envs` slots.
        num_envs: how many environments write side by side.
        lockstep: write all environments together, through one cursor. With False each environment has a cursor of its
            own, and `add` takes `env_ids` or `mask`.
        returns: how to record episodic returns, such as `EpisodicReturns(gamma=0.99)`; None records none.
        frames: how to store each frame of an observation once, such as `Frames(stack=4)`; None stores all of them.
        keep_episodes: keep the episode index, for `episode(state, handle)`, even if no other part needs it.
        platform: the platform for which rows and priorities are laid out in memory: `"cpu"`, `"gpu"` or `"tpu"`; by
            default the one that JAX uses. It changes only the speed and the last bit of sums.

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

    def __post_init__(self) -> None:
        require_integer("ReplayBuffer", "length", self.length, 1)
        require_integer("ReplayBuffer", "num_envs", self.num_envs, 1)
        if self.length * self.num_envs >= ring.POSITION_LIMIT:
            raise ValueError(
                f"ReplayBuffer(length={self.length}, num_envs={self.num_envs}): fewer than {ring.POSITION_LIMIT} slots "
                "can be counted in 32 bits; shorten the ring."
            )
        if self.platform is not None:
            require_choice("ReplayBuffer", "platform", self.platform, PLATFORMS)
        for name, part, kind in (("sampler", self.sampler, Sampler), ("view", self.view, View)):
            if not isinstance(part, kind):
                raise ValueError(
                    f"ReplayBuffer({name}={shown(part)}): `{name}` must have every attribute and method of "
                    f"`jaxrl_buffers.{kind.__name__}`; are sampler and view swapped?"
                )
        check_length("ReplayBuffer", self.length, self.view, self.lookback)

    @property
    def storage(self) -> Storage:
        """How rows are stored and read; its state is `state.storage`."""
        fit = fits.Fit(self.view.lookahead, self.view.stride)
        is_asked = self.keep_episodes or needs.episodes(self.view) or needs.episodes(self.sampler)
        index = Episodes(self.returns, fit, is_asked or self.returns is not None, needs.one_episode(self.view))
        layers = (index,) if self.frames is None else (self.frames, index)
        return Storage(layers, self.length, self.num_envs, self.lockstep, self.platform)

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
        priorities: ArrayLike | None = None,
        env_ids: ArrayLike | None = None,
        mask: ArrayLike | None = None,
    ) -> ReplayState:
        """Append `K` rows, overwriting the oldest when full.

        Inside one compiled step, call `add` before `sample`. In the other order, `sample` reads from the state that
        `add` then writes to, and XLA's CPU compiler copies all rows to keep that read right.

        Args:
            state: the buffer's state.
            chunk: leaves `[K, N, ...]`, or `[K, E, ...]` with `env_ids`; `K` is at most the ring's length.
            priorities: `[K, N]`, the priorities of rows that become legal starts by this call. Rows with a priority
                that is negative or not finite get the sampler's default. Some rows become legal starts only later, when
                the rows after them that the view needs are added. They get the default too.
            env_ids: `int[E]`, distinct: write only to these environments. Needs `lockstep=False`.
            mask: `bool[K, N]` or `[N]`: write only the rows where it is True. Needs `lockstep=False`.
        """
        storage = state.storage
        given = None if priorities is None else jnp.asarray(priorities, jnp.float32)
        where = None if mask is None else jnp.asarray(mask)
        if env_ids is not None and mask is not None:
            raise ValueError("add() got both `env_ids` and `mask`; pass one of them.")
        env = chosen_envs(storage, env_ids, mask)
        num_rows = check_chunk(chunk, self.storage.structure(storage), ring.shape(storage)[0], env.shape[0])
        if where is not None:
            check_shape("add", "mask", where, (num_rows, env.shape[0]), (env.shape[0],))
        if given is not None:
            check_shape("add", "priorities", given, (num_rows, env.shape[0]))
        return self._add(state, jax.tree.map(jnp.asarray, chunk), given, env, where)

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

        Samples are missing if there is nothing to draw (see `can_sample`), or if a draw without replacement finds too
        few starts. A missing sample has mask False and weight 0.

        Args:
            state: the buffer's state.
            key: a PRNG key, typed or raw.
            batch_size: `B`; a sequence counts as one sample.
            progress: the share of a round of updates that is done, in `[0, 1)`; `Recent` uses it.
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

        If a handle is stale, or its row is not a legal start, the mask is False and the weight 0. If the start is legal
        but the sampler cannot draw it now, such as a row too old for `Recent`, only the weight is 0.

        Args:
            state: the buffer's state.
            handle: `[B]`, such as `sample.handle`.
            key: a PRNG key. Only a random view, such as `Hindsight`, needs one.
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
        reader = self.storage.reader(state.storage)
        return assembled(self.view, reader, slots, valid, weights, key)

    def update_priorities(
        self, state: ReplayState, handle: Handle, priorities: jax.Array, mask: jax.Array | None = None
    ) -> ReplayState:
        """Set the priorities of sampled starts. Stale handles, and priorities that are not finite, change nothing.

        Args:
            state: the buffer's state.
            handle: `[B]`, from `sample.handle`.
            priorities: `[B]`, such as absolute TD errors; or `[B, L]`, reduced by `eta * max + (1 - eta) * mean`.
            mask: `bool[B, L]`, the entries of `[B, L]` that count, such as `sample.batch.mask`.
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

        A sampler with priorities decides at the time when rows are added which of them are legal starts for the view.
        If the view is replaced later, two things are wrong. Starts that are legal only for the old view may still be
        drawn, with mask False and weight 0. Starts that are legal only for the new view are never drawn. This method
        corrects both.
        """
        length, num_envs = ring.shape(state.storage)
        slots = jnp.arange(length * num_envs, dtype=jnp.int32)
        legal = starts.is_legal_slot(state.storage, self._window(state.storage), slots)
        return state._replace(sampler=self.sampler.reprioritize(state.sampler, legal))

    def report_return(self, state: ReplayState, mean_return: Scalar) -> ReplayState:
        """Report how well the agent does: the mean return of the episodes that ended since the last report.

        Samplers that adapt to it, such as `Recent(adaptive=True)`, remember it; others ignore it.
        """
        return state._replace(sampler=self.sampler.report_return(state.sampler, mean_return))

    def observe(self, state: ReplayState, mean_return: Scalar) -> ReplayState:
        """Do what `report_return` does; this is its old name."""
        message = "`observe` of a buffer is now called `report_return`; the old name will be removed in version 2."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.report_return(state, mean_return)

    def stats(self, state: ReplayState, progress: Scalar = 0.0) -> dict[str, jax.Array]:
        """Return statistics of what is stored and drawn, as scalars, in `O(T N log(T N))`.

        * `size`: how many slots are stored; `fill`: their share of the capacity; `num_starts`: the legal starts.
        * `episodes`: how many episodes are stored, whole or not, if the buffer keeps an index of them.
        * `lost_finals`: how many stored rows have lost their final observation, if the buffer has `frames`.
        * `age_<quantile>`: the age of legal starts, in rows; `drawn_age_<quantile>`: the age of what the sampler draws.
        * `priority_<quantile>`: the mass of legal starts, such as `(priority + epsilon)^alpha`. Starts are drawn in
          proportion to this mass. It is zero for rows that the sampler leaves out as too old.

        Quantiles are `min`, `q25`, `median`, `q75` and `max`; NaN if there is nothing to measure.
        """
        return statistics.summarize(self, state, progress)
