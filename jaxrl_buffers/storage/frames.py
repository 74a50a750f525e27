"""Observations kept once: no frame of a stack is stored twice, and no `next_obs` that is the next row's `obs`.

Of every row only the newest frame of `obs` is kept. A stack is put together again from the frames of the rows before;
the newest frame of `next_obs` is that of the following row, or a final one behind the end of an episode, or the one
behind the write head. All of these lie in one array, so that reading a stack is one gather:

    rows 0..T-1 of the ring | a ring of F final frames | the frame behind the newest row
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from jaxrl_buffers._checks import require_choice, require_integer
from jaxrl_buffers._fields import check_fields, named_field, with_field
from jaxrl_buffers._xla import keep, set_at, stack_bytes
from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage import rows as rows_module
from jaxrl_buffers.storage._leaves import write_rows
from jaxrl_buffers.storage.reader import Reader
from jaxrl_buffers.storage.ring import Break, Chunk, Places, Ring
from jaxrl_buffers.storage.rows import Rows
from jaxrl_buffers.types import PyTree

PADDINGS = ("edge", "zeros")
ROWS_PER_FINAL = 8  # by default


class FrameStore(struct.PyTreeNode):
    """The frames of a ring, and what is needed to find them."""

    images: Rows  # [T + F + 1, N]
    steps: jax.Array  # int32[T, N]: how many rows of its episode came before, at most stack - 1
    final: jax.Array  # int32[T, N]: of rows that end an episode, the number of its final frame
    next_steps: jax.Array  # int32[N]: the steps of the row to come, at most stack; zero iff it begins an episode
    next_final: jax.Array  # int32[N]: the number of the final frame to come


class Frames(struct.PyTreeNode):
    """Keep observations once. Rows are added and sampled as ever, with stacked `obs` and `next_obs`.

    It is taken for granted that, unless an episode ends in between, `next_obs` is the `obs` of the next row, and that a
    stack holds the newest frames of its episode, the newest one last. So the bytes of a transition come down from
    `2 * stack` frames to `1 + 1 / 8`.

    The oldest `stack - 1` rows of each environment are no starts, because the frames before them are gone. If the final
    observation of a sample is gone, it has mask False and weight 0 (raw sequences only the weight, having no mask);
    `buffer.stats` counts such rows as `lost_finals`.

    Args:
        stack: frames of a stack; 1 if observations are not stacked, to save only `next_obs`.
        axis: along which frames are stacked.
        padding: what stands for frames before the begin of an episode: `"edge"` its first frame, `"zeros"` zeros.
        stacked: the dotted name, inside `obs`, of what is stacked; everything by default. The rest is kept whole.
        num_finals: how many final observations are kept for each environment; by default one for every eight rows.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = jb.ReplayBuffer(frames=jb.Frames(stack=4), length=100_000, num_envs=8)
    """

    stack: int = struct.field(pytree_node=False, default=4)
    axis: int = struct.field(pytree_node=False, default=-1)
    padding: str = struct.field(pytree_node=False, default="edge")
    stacked: str | None = struct.field(pytree_node=False, default=None)
    num_finals: int | None = struct.field(pytree_node=False, default=None)

    def __post_init__(self):
        require_integer("Frames", "stack", self.stack, 1)
        require_choice("Frames", "padding", self.padding, PADDINGS)
        if self.num_finals is not None:
            require_integer("Frames", "num_finals", self.num_finals, 1)

    place = "frames"
    is_wanted = True

    @property
    def lookback(self) -> int:
        """How many older rows hold the frames of a row."""
        return self.stack - 1

    def init(self, structure: PyTree, shape: tuple[int, int], platform: str | None) -> FrameStore:
        """Return the frames of an empty ring of shape `(T, N)` for rows of the given structure."""
        stacked = "obs" if self.stacked is None else f"obs.{self.stacked}"
        check_fields(structure, "Frames", (stacked, "next_obs", "terminated", "truncated"))
        obs, next_obs = (named_field(structure, name) for name in ("obs", "next_obs"))
        if obs != next_obs:
            raise ValueError(f"init(): Frames needs `obs` and `next_obs` alike, the example has {obs} and {next_obs}.")
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
        """Return the frames after a chunk, given the ring as it was."""
        store, num_envs = before.frames, ring.shape(before)[1]
        places, num_finals = ring.places(before, chunk), _num_finals(before)
        ended = places.is_written & _is_end(chunk.rows)
        count = jnp.cumsum(ended, axis=0, dtype=jnp.int32)
        final = ring.wrap(_of_env(store.next_final, places.env) + count - ended, _modulus(num_finals))
        steps = self._steps_of_chunk(_of_env(store.next_steps, chunk.env), ended)
        # Of more final frames than there is room for, the last ones stay.
        is_kept = ended & (count[-1:] - count < num_finals)
        newest = jnp.maximum(chunk.lengths - 1, 0)[None]
        after = jnp.take_along_axis(jnp.where(ended, 0, jnp.minimum(steps + 1, self.stack)), newest, axis=0)[0]
        next_final = ring.wrap(_of_env(store.next_final, chunk.env) + count[-1], _modulus(num_finals))
        column = jnp.where(jnp.any(places.is_written, axis=0), chunk.env, num_envs)
        return FrameStore(
            images=self._write_images(before, chunk, places, jnp.where(is_kept, final % num_finals, num_finals + 1)),
            steps=_write_numbers(before, store.steps, places, jnp.minimum(steps, self.stack - 1)),
            final=_write_numbers(before, store.final, places, final),
            next_steps=store.next_steps.at[column].set(after, mode="drop"),
            next_final=store.next_final.at[column].set(next_final, mode="drop"),
        )

    def _write_images(self, before: Ring, chunk: Chunk, places: Places, final: jax.Array) -> Rows:
        """Write the newest frames of a chunk `[K, E]`: of rows, final ones `[K, E]`, and the one behind the head."""
        (length, _), images = ring.shape(before), before.frames.images
        obs, next_obs = (self._map(self._newest_frame, named_field(chunk.rows, name)) for name in ("obs", "next_obs"))
        behind = images.shape[0] - 1
        if ring.is_lockstep(before):
            images = images.write(obs, before.head % length, length)
            images = images.write(jax.tree.map(lambda leaf: leaf[-1:], next_obs), behind, behind + 1)
            return images.write_at(next_obs, length + final, places.env)
        newest, columns = jnp.maximum(chunk.lengths - 1, 0)[None], jnp.arange(chunk.env.shape[0])[None]
        last = jax.tree.map(lambda leaf: leaf[newest, columns], next_obs)
        is_written = jnp.any(places.is_written, axis=0)[None]
        place = [
            jnp.where(places.is_written, places.row, behind + 1),
            length + final,
            jnp.where(is_written, behind, behind + 1),
        ]
        frames = jax.tree.map(lambda *parts: jnp.concatenate(parts), obs, next_obs, last)
        place = jnp.concatenate(place)
        return images.write_at(frames, place, jnp.broadcast_to(chunk.env[None], place.shape))

    def _steps_of_chunk(self, next_steps: jax.Array, ended: jax.Array) -> jax.Array:
        """Return how many rows came before each of `[K, E]` in its episode, at most a little more than `stack`."""
        offset = jnp.arange(ended.shape[0], dtype=jnp.int32)[:, None]
        begin = lax.cummax(jnp.where(jnp.roll(ended, 1, axis=0) & (offset > 0), offset, -1))
        return jnp.minimum(jnp.where(begin < 0, next_steps[None] + offset, offset - begin), self.stack)

    def reader(self, storage: Ring, reader: Reader, as_added: bool) -> Reader:
        """Return a reader of rows with their observations."""
        complete = functools.partial(_has_field, storage)
        return reader.map(functools.partial(self._completed, storage))._replace(complete=complete)

    def _completed(self, storage: Ring, rows: PyTree, row: jax.Array, env: jax.Array) -> PyTree:
        """Return stored rows with their observations."""
        length, _ = ring.shape(storage)
        store, num_finals = storage.frames, _num_finals(storage)
        final = length + store.final.at[row, env].get(mode="clip") % num_finals
        following = jnp.where(_is_end(rows), final, ring.wrap(row + 1, length))
        following = jnp.where(ring.age_of_row(storage, row, env) == 0, length + num_finals, following)[..., None]
        offset = np.arange(self.stack - 1, -1, -1, dtype=np.int32).reshape(*[1] * row.ndim, -1)
        steps = store.steps.at[row, env].get(mode="clip")[..., None]
        place = ring.wrap(row[..., None] - jnp.minimum(offset, steps), length)
        # Both stacks of a row are cut from one strip of frames: that of `next_obs` begins and ends one frame later.
        strip = jnp.concatenate([place, following], axis=-1)
        is_padding = jnp.pad(offset > steps, [*[(0, 0)] * row.ndim, (0, 1)])
        whole, frames = _gather(storage, strip[..., -2:], env), _gather(storage, strip, env)
        strips = self._map(lambda leaf, _: self._padded(leaf, is_padding), frames, lambda _, leaf: leaf, whole)
        obs = self._map(lambda frames: self._joined(frames[:, :-1]), strips, lambda frames: frames[:, 0])
        next_obs = self._map(lambda frames: self._joined(frames[:, 1:]), strips, lambda frames: frames[:, 1])
        obs, next_obs = jax.tree.map(lambda leaf: leaf.reshape(*row.shape, *leaf.shape[1:]), (obs, next_obs))
        return _with_observations(rows, obs, next_obs)

    def mark_break(self, storage: Ring, broken: Break) -> FrameStore:
        """Let the frame behind the newest row of every open episode be a final one."""
        store, (length, num_envs), num_finals = storage.frames, ring.shape(storage), _num_finals(storage)
        env = jnp.arange(num_envs, dtype=jnp.int32)
        is_open = broken.where & (store.next_steps > 0)
        place = jnp.where(is_open, length + store.next_final % num_finals, length + num_finals + 1)[None]
        row = jnp.where(is_open, broken.row, length)[None]
        behind = store.images.read((length + num_finals) * num_envs + env[None])
        return FrameStore(
            images=store.images.write_at(behind, place, env[None]),
            steps=store.steps,
            final=_write_numbers_at(store.final, row, env[None], store.next_final[None]),
            next_steps=jnp.where(broken.where, 0, store.next_steps),
            next_final=ring.wrap(store.next_final + is_open, _modulus(num_finals)),
        )

    def describe(self, storage: Ring) -> dict[str, jax.Array]:
        """Count the stored rows whose final observation is gone."""
        length, num_envs = ring.shape(storage)
        row, env = ring.unravel(storage, jnp.arange(length * num_envs, dtype=jnp.int32))
        is_stored = ring.age_of_row(storage, row, env) < ring.of_env(storage.size, env)
        return {"lost_finals": jnp.sum(_is_lost(storage, row, env) & is_stored, dtype=jnp.int32)}

    def _padded(self, frames: jax.Array, is_padding: jax.Array) -> jax.Array:
        """Return frames `[B, S, ...]` with what stands for those before the begin of an episode."""
        if self.padding == "edge":  # whose place is that of the first one
            return frames
        return jnp.where(is_padding.reshape(*frames.shape[:2], *[1] * (frames.ndim - 2)), 0, frames)

    def _joined(self, frames: jax.Array) -> jax.Array:
        """Return frames `[B, stack, ...]` as stacks, along their axis."""
        axis = self.axis % (frames.ndim - 1)
        if axis < frames.ndim - 2:
            return jnp.moveaxis(frames, 1, 1 + axis)
        return stack_bytes([frames[:, number] for number in range(self.stack)])

    def _newest_frame(self, leaf: jax.Array) -> jax.Array:
        """Return the last frames of stacks `[K, E, ...]`."""
        return lax.index_in_dim(leaf, -1, 2 + self.axis % (leaf.ndim - 2), keepdims=False)

    def _frame_structure(self, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Return the shape of one frame."""
        shape = leaf.shape
        if not -len(shape) <= self.axis < len(shape) or shape[self.axis] != self.stack:
            raise ValueError(
                f"init(): Frames(stack={self.stack}, axis={self.axis}) got an observation of shape {shape}, which has "
                "not that many frames along that axis; name what is stacked by `stacked=`."
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
        """Apply one function to what is stacked, another one to the rest."""

        def apply(path: tuple[Any, ...], *leaves: Any) -> Any:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            is_stacked = self.stacked is None or f"{name}.".startswith(f"{self.stacked}.")
            return stacked(*leaves) if is_stacked and self.stack > 1 else whole(*leaves)

        return jax.tree_util.tree_map_with_path(apply, observation, *others)


def _is_lost(storage: Ring, row: jax.Array, env: jax.Array) -> jax.Array:
    """Tell which rows end an episode whose final observation was overwritten."""
    store, num_finals = storage.frames, _num_finals(storage)
    number = store.final.at[row, env].get(mode="clip")
    age = ring.wrap(_of_env(store.next_final, env) - 1 - number, _modulus(num_finals))
    return _is_end(ring.read(storage, row, env)) & (age >= num_finals)


def _has_field(storage: Ring, row: jax.Array, env: jax.Array, field: str | None) -> jax.Array:
    """Tell of which rows a named field can be read, or all of them."""
    if field not in ("obs", "next_obs", None):
        return jnp.ones(row.shape, bool)
    steps = storage.frames.steps.at[row, env].get(mode="clip")
    has_stack = ring.age_of_row(storage, row, env) + steps < ring.of_env(storage.size, env)
    return has_stack if field == "obs" else has_stack & ~_is_lost(storage, row, env)


def _write_numbers(storage: Ring, numbers: jax.Array, places: Places, values: jax.Array) -> jax.Array:
    """Write values `[K, E]` to the rows of a chunk: contiguously in lock-step."""
    if not ring.is_lockstep(storage):
        return _write_numbers_at(numbers, places.row, places.env, values)
    length, _ = ring.shape(storage)
    return write_rows(numbers, values, storage.head % length, length)


def _write_numbers_at(numbers: jax.Array, row: jax.Array, env: jax.Array, values: jax.Array) -> jax.Array:
    return set_at(numbers, (row.reshape(-1), env.reshape(-1)), values.reshape(-1))


def _gather(storage: Ring, place: jax.Array, env: jax.Array) -> PyTree:
    """Return the frames `[B, S, ...]` at places `[..., S]`, where `B` is all but `S`."""
    images, unknown = storage.frames.images, storage.frames.next_final[0]
    index = place * images.shape[1] + env[..., None]
    frames = images.read(index.reshape(-1, place.shape[-1]))
    return jax.tree.map(lambda leaf: keep(leaf, unknown), frames)


def _with_observations(rows: PyTree, obs: PyTree, next_obs: PyTree) -> PyTree:
    return with_field(with_field(rows, "obs", obs), "next_obs", next_obs)


def _is_end(rows: PyTree) -> jax.Array:
    return named_field(rows, "terminated").astype(bool) | named_field(rows, "truncated").astype(bool)


def _num_finals(storage: Ring) -> int:
    return storage.frames.images.shape[0] - ring.shape(storage)[0] - 1


def _modulus(num_finals: int) -> int:
    """Return what final frames are counted modulo."""
    return ring.POSITION_LIMIT // num_finals * num_finals


def _of_env(by_env: jax.Array, env: jax.Array) -> jax.Array:
    return by_env.at[env].get(mode="clip")
