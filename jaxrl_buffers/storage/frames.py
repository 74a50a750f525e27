"""`Frames`: stacks of frames are taken apart when rows are added, and put together again when rows are read.

Only the newest frame of each observation is stored; `_frame_store.py` shows where. Both stacks of a row are parts of
one strip of frames. The strip holds the frames of up to `stack - 1` rows before the row, the frame of the row itself,
and the frame that follows.

    strip        a b c d        of the third row of an episode, with stack = 3
    `obs`        a b c
    `next_obs`     b c d
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl_buffers._checks import require_choice, require_integer
from jaxrl_buffers._fields import check_fields, named_field, with_field
from jaxrl_buffers._xla import keep, stack_bytes
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.storage import _frame_store as frame_store
from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage import rows as rows_module
from jaxrl_buffers.storage._frame_store import FrameStore, is_end, write_numbers, write_numbers_at
from jaxrl_buffers.storage.reader import Reader
from jaxrl_buffers.storage.ring import Break, Chunk, Places, Ring
from jaxrl_buffers.storage.rows import Rows
from jaxrl_buffers.types import PyTree

PADDINGS = ("edge", "zeros")
ROWS_PER_FINAL = 8  # by default, one final frame is kept for this many rows


class Frames(Component):
    """Store each frame of stacked observations once. Rows are still added and sampled with whole stacks.

    A transition takes `1 + 1 / 8` frames of memory instead of `2 * stack`. The data must meet two conditions:

    * `next_obs` is the `obs` of the next row, unless an episode ends in between;
    * a stack holds the newest frames of its episode, the newest one last.

    The oldest `stack - 1` rows of each environment are not sampled, because the frames before them are overwritten.
    If episodes are short, some final observations are overwritten too. A sample that needs a lost final observation has
    weight 0 and, if its batch has a mask, mask False. `buffer.stats` counts such rows as `lost_finals`.

    Args:
        stack: how many frames a stack has. With 1, observations are not stacked, and `Frames` only avoids storing
            `next_obs`.
        axis: the axis of `obs` along which frames are stacked.
        padding: what fills a stack at the start of an episode: `"edge"` its first frame, `"zeros"` zeros.
        stacked: the part of `obs` that is stacked, by its dotted name; all of it by default. The rest is stored whole.
        num_finals: how many final observations are kept for each environment; by default one for every eight rows.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = jb.ReplayBuffer(frames=jb.Frames(stack=4), length=100_000, num_envs=8)
    """

    stack: int = field(static=True, default=4)
    axis: int = field(static=True, default=-1)
    padding: str = field(static=True, default="edge")
    stacked: str | None = field(static=True, default=None)
    num_finals: int | None = field(static=True, default=None)

    def __post_init__(self) -> None:
        require_integer("Frames", "stack", self.stack, 1)
        require_choice("Frames", "padding", self.padding, PADDINGS)
        if self.num_finals is not None:
            require_integer("Frames", "num_finals", self.num_finals, 1)

    place = "frames"
    is_wanted = True

    @property
    def lookback(self) -> int:
        """How many older rows hold frames of a row's stack."""
        return self.stack - 1

    def init(self, structure: PyTree, shape: tuple[int, int], platform: str | None) -> FrameStore:
        """Return a store without frames, for a ring of shape `(T, N)` and rows of the given structure."""
        stacked = "obs" if self.stacked is None else f"obs.{self.stacked}"
        check_fields(structure, "Frames", (stacked, "next_obs", "terminated", "truncated"))
        obs, next_obs = (named_field(structure, name) for name in ("obs", "next_obs"))
        if obs != next_obs:
            raise ValueError(
                f"init(): Frames needs `obs` and `next_obs` of one shape and dtype, but the example has {obs} and "
                f"{next_obs}; make them alike, or leave Frames out."
            )
        num_finals = -(-shape[0] // ROWS_PER_FINAL) if self.num_finals is None else self.num_finals
        images = rows_module.empty(
            self._map(self._frame_structure, obs), (shape[0] + num_finals + 1, shape[1]), platform
        )
        steps, final, next_steps, next_final = (jnp.zeros(axes, jnp.int32) for axes in (shape, shape, *[shape[1:]] * 2))
        return FrameStore(images, steps, final, next_steps, next_final)

    def kept(self, rows: PyTree) -> PyTree:
        """Return rows without their observations."""
        return _with_observations(rows, (), ())

    def added(self, storage: Ring, structure: PyTree) -> PyTree:
        """Return the structure of rows with their observations."""

        def stacked(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            place = self.axis % (len(leaf.shape) + 1)
            return jax.ShapeDtypeStruct((*leaf.shape[:place], self.stack, *leaf.shape[place:]), leaf.dtype)

        obs = self._map(stacked, storage.frames.images.structure)
        return _with_observations(structure, obs, obs)

    def record(self, before: Ring, chunk: Chunk) -> FrameStore:
        """Return the store after a chunk was added, given the ring before the chunk."""
        store, num_envs = before.frames, ring.shape(before)[1]
        places, num_finals = ring.places(before, chunk), frame_store.num_finals(before)
        modulus = frame_store.modulus(num_finals)
        ended = places.is_written & is_end(chunk.rows)
        count = jnp.cumsum(ended, axis=0, dtype=jnp.int32)  # episodes that have ended in the chunk, this row included
        final = ring.wrap(ring.of_env(store.next_final, places.env) + count - ended, modulus)
        steps = self._steps_of_chunk(ring.of_env(store.next_steps, chunk.env), ended)
        # A chunk can end more episodes than there is room for final frames; then only its last ones are written.
        is_kept = ended & (count[-1:] - count < num_finals)
        following = jnp.where(ended, 0, jnp.minimum(steps + 1, self.stack))
        next_steps = jnp.take_along_axis(following, chunk.newest[None], axis=0)[0]
        next_final = ring.wrap(ring.of_env(store.next_final, chunk.env) + count[-1], modulus)
        column = jnp.where(jnp.any(places.is_written, axis=0), chunk.env, num_envs)
        return FrameStore(
            images=self._write_images(before, chunk, places, jnp.where(is_kept, final % num_finals, num_finals + 1)),
            steps=write_numbers(before, store.steps, places, jnp.minimum(steps, self.stack - 1)),
            final=write_numbers(before, store.final, places, final),
            next_steps=store.next_steps.at[column].set(next_steps, mode="drop"),
            next_final=store.next_final.at[column].set(next_final, mode="drop"),
        )

    def _write_images(self, before: Ring, chunk: Chunk, places: Places, final: jax.Array) -> Rows:
        """Write the newest frames of a chunk of `[K, E]` rows.

        Args:
            before: the ring before the chunk.
            chunk: the rows with their observations.
            places: where the rows go.
            final: `int32[K, E]`, the place of each row's `next_obs` among final frames; above `F` if it is not final.
        """
        (length, _), images = ring.shape(before), before.frames.images
        obs, next_obs = (self._map(self._newest_frame, named_field(chunk.rows, name)) for name in ("obs", "next_obs"))
        last_place = images.shape[0] - 1  # of the frame after the newest row
        if ring.is_lockstep(before):
            images = images.write(obs, before.head % length, length)
            images = images.write(jax.tree.map(lambda leaf: leaf[-1:], next_obs), last_place, last_place + 1)
            return images.write_at(next_obs, length + final, places.env)
        columns = jnp.arange(chunk.env.shape[0])[None]
        last = jax.tree.map(lambda leaf: leaf[chunk.newest[None], columns], next_obs)
        is_written = jnp.any(places.is_written, axis=0)[None]
        place = [
            jnp.where(places.is_written, places.row, last_place + 1),
            length + final,
            jnp.where(is_written, last_place, last_place + 1),
        ]
        frames = jax.tree.map(lambda *parts: jnp.concatenate(parts), obs, next_obs, last)
        place = jnp.concatenate(place)
        return images.write_at(frames, place, jnp.broadcast_to(chunk.env[None], place.shape))

    def _steps_of_chunk(self, next_steps: jax.Array, ended: jax.Array) -> jax.Array:
        """Return how many earlier rows the episode of each row `[K, E]` has, at most `stack`."""
        offset, begin = ring.begin_of_episodes(ended)
        return jnp.minimum(jnp.where(begin < 0, next_steps[None] + offset, offset - begin), self.stack)

    def reader(self, storage: Ring, reader: Reader, as_added: bool) -> Reader:
        """Return a reader of rows with their observations."""
        complete = functools.partial(frame_store.has_field, storage)
        return reader.map(functools.partial(self._completed, storage))._replace(complete=complete)

    def _completed(self, storage: Ring, rows: PyTree, row: jax.Array, env: jax.Array) -> PyTree:
        """Return stored rows, at indices of any shape, with their observations."""
        length, _ = ring.shape(storage)
        store, num_finals = storage.frames, frame_store.num_finals(storage)
        final = length + store.final.at[row, env].get(mode="clip") % num_finals
        following = jnp.where(is_end(rows), final, ring.wrap(row + 1, length))
        following = jnp.where(ring.age_of_row(storage, row, env) == 0, length + num_finals, following)[..., None]
        offset = np.arange(self.stack - 1, -1, -1, dtype=np.int32).reshape(*[1] * row.ndim, -1)
        steps = store.steps.at[row, env].get(mode="clip")[..., None]
        place = ring.wrap(row[..., None] - jnp.minimum(offset, steps), length)
        # Where `offset > steps`, the row is before the episode, and the first frame of the episode takes its place.
        strip = jnp.concatenate([place, following], axis=-1)
        is_padding = jnp.pad(offset > steps, [*[(0, 0)] * row.ndim, (0, 1)])
        whole, frames = _gather(storage, strip[..., -2:], env), _gather(storage, strip, env)
        strips = self._map(lambda leaf, _: self._padded(leaf, is_padding), frames, lambda _, leaf: leaf, whole)
        obs = self._map(lambda frames: self._joined(frames[:, :-1]), strips, lambda frames: frames[:, 0])
        next_obs = self._map(lambda frames: self._joined(frames[:, 1:]), strips, lambda frames: frames[:, 1])
        obs, next_obs = jax.tree.map(lambda leaf: leaf.reshape(*row.shape, *leaf.shape[1:]), (obs, next_obs))
        return _with_observations(rows, obs, next_obs)

    def mark_break(self, storage: Ring, broken: Break) -> FrameStore:
        """Return the store after open episodes were closed: the frame after the newest row becomes a final frame."""
        store, (length, num_envs), num_finals = storage.frames, ring.shape(storage), frame_store.num_finals(storage)
        env = jnp.arange(num_envs, dtype=jnp.int32)
        is_open = broken.where & (store.next_steps > 0)
        place = jnp.where(is_open, length + store.next_final % num_finals, length + num_finals + 1)[None]
        row = jnp.where(is_open, broken.row, length)[None]
        newest = store.images.read((length + num_finals) * num_envs + env[None])
        return FrameStore(
            images=store.images.write_at(newest, place, env[None]),
            steps=store.steps,
            final=write_numbers_at(store.final, row, env[None], store.next_final[None]),
            next_steps=jnp.where(broken.where, 0, store.next_steps),
            next_final=ring.wrap(store.next_final + is_open, frame_store.modulus(num_finals)),
        )

    def describe(self, storage: Ring) -> dict[str, jax.Array]:
        """Count the stored rows whose final observation was overwritten."""
        length, num_envs = ring.shape(storage)
        row, env = ring.unravel(storage, jnp.arange(length * num_envs, dtype=jnp.int32))
        is_stored = ring.age_of_row(storage, row, env) < ring.of_env(storage.size, env)
        return {"lost_finals": jnp.sum(frame_store.is_lost(storage, row, env) & is_stored, dtype=jnp.int32)}

    def _padded(self, frames: jax.Array, is_padding: jax.Array) -> jax.Array:
        """Return frames `[B, S, ...]` with the padding at places before the start of an episode."""
        if self.padding == "edge":  # these places were read as the first frame already
            return frames
        return jnp.where(is_padding.reshape(*frames.shape[:2], *[1] * (frames.ndim - 2)), 0, frames)

    def _joined(self, frames: jax.Array) -> jax.Array:
        """Return frames `[B, stack, ...]` stacked along `axis`."""
        axis = self.axis % (frames.ndim - 1)
        if axis < frames.ndim - 2:
            return jnp.moveaxis(frames, 1, 1 + axis)
        return stack_bytes([frames[:, number] for number in range(self.stack)])

    def _newest_frame(self, leaf: jax.Array) -> jax.Array:
        """Return the newest frame of each stack `[K, E, ...]`."""
        return lax.index_in_dim(leaf, -1, 2 + self.axis % (leaf.ndim - 2), keepdims=False)

    def _frame_structure(self, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Return the shape and dtype of one frame of a stack."""
        shape = leaf.shape
        if not -len(shape) <= self.axis < len(shape) or shape[self.axis] != self.stack:
            raise ValueError(
                f"init(): Frames(stack={self.stack}, axis={self.axis}) got an observation of shape {shape}, which does "
                f"not have {self.stack} frames along that axis; name the part that is stacked by `stacked=`."
            )
        place = self.axis % len(shape)
        return jax.ShapeDtypeStruct((*shape[:place], *shape[place + 1 :]), leaf.dtype)

    def _map(
        self,
        stacked: Callable[..., Any],
        observation: PyTree,
        whole: Callable[..., Any] = lambda leaf: leaf,
        *others: PyTree,
    ) -> PyTree:
        """Apply `stacked` to the leaves that are stacked and `whole` to the rest."""

        def apply(path: tuple[Any, ...], *leaves: Any) -> Any:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            is_stacked = self.stacked is None or f"{name}.".startswith(f"{self.stacked}.")
            return stacked(*leaves) if is_stacked and self.stack > 1 else whole(*leaves)

        return jax.tree_util.tree_map_with_path(apply, observation, *others)


def _gather(storage: Ring, place: jax.Array, env: jax.Array) -> PyTree:
    """Return the frames `[B, S, ...]` at places `[..., S]`; the axes before `S` are merged into `B`."""
    images, unknown = storage.frames.images, storage.frames.next_final[0]
    index = place * images.shape[1] + env[..., None]
    frames = images.read(index.reshape(-1, place.shape[-1]))
    return jax.tree.map(lambda leaf: keep(leaf, unknown), frames)


def _with_observations(rows: PyTree, obs: PyTree, next_obs: PyTree) -> PyTree:
    return with_field(with_field(rows, "obs", obs), "next_obs", next_obs)
