"""Observations kept once: no frame of a stack is stored twice, and no `next_obs` that is the next row's `obs`.

Of every row only the newest frame of `obs` is kept. A stack is put together again from the frames of the rows before;
the newest frame of `next_obs` is that of the following row, or a final one behind the end of an episode, or the one
behind the write head. All of these lie in one array, so that reading a stack is one gather:

    rows 0..T-1 of the ring | a ring of F final frames | the frame behind the newest row
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from jaxrl_buffers._checks import check_fields, named_field, require_choice, require_integer, with_field
from jaxrl_buffers._xla import keep
from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage.ring import Reader, Ring, Rows
from jaxrl_buffers.types import PyTree

PADDINGS = ("edge", "zeros")
ROWS_PER_FINAL = 8  # by default


class FrameStore(struct.PyTreeNode):
    """The frames of a ring, and what is needed to find them."""

    images: PyTree  # leaves [T + F + 1, N, ...]
    steps: jax.Array  # int32[T, N]: how many rows of its episode came before, at most stack - 1
    final: jax.Array  # int32[T, N]: of rows that end an episode, the number of its final frame
    next_steps: jax.Array  # int32[N]: the steps of the row to come, at most stack; zero iff it begins an episode
    next_final: jax.Array  # int32[N]: the number of the final frame to come
    lookback: int = struct.field(pytree_node=False)


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

    def init(self, structure: PyTree, shape: tuple[int, int]) -> FrameStore:
        """Return the frames of an empty ring of shape `(T, N)` for rows of the given structure."""
        stacked = "obs" if self.stacked is None else f"obs.{self.stacked}"
        check_fields(structure, "Frames", (stacked, "next_obs", "terminated", "truncated"))
        obs, next_obs = (named_field(structure, name) for name in ("obs", "next_obs"))
        if obs != next_obs:
            raise ValueError(f"init(): Frames needs `obs` and `next_obs` alike, the example has {obs} and {next_obs}.")
        num_finals = -(-shape[0] // ROWS_PER_FINAL) if self.num_finals is None else self.num_finals
        num_rows = shape[0] + num_finals + 1

        def zeros(leaf: jax.ShapeDtypeStruct) -> jax.Array:
            return jnp.zeros((num_rows, shape[1], *leaf.shape), leaf.dtype)

        images = jax.tree.map(zeros, self._map(self._frame_structure, obs))
        steps, final, next_steps, next_final = (jnp.zeros(axes, jnp.int32) for axes in (shape, shape, *[shape[1:]] * 2))
        return FrameStore(images, steps, final, next_steps, next_final, self.stack - 1)

    def row_structure(self, storage: Ring) -> PyTree:
        """Return the shapes and dtypes of one row as it is added."""

        def unstacked(leaf: jax.Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype)

        def stacked(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            place = self.axis % (len(leaf.shape) + 1)
            return jax.ShapeDtypeStruct((*leaf.shape[:place], self.stack, *leaf.shape[place:]), leaf.dtype)

        obs = self._map(stacked, jax.tree.map(unstacked, storage.frames.images))
        return _with_observations(ring.row_structure(storage), obs, obs)

    def record(self, before: Ring, written: Ring, rows: Rows) -> Ring:
        """Return the ring `written` with its frames, given the ring as it was and the whole rows that were written."""
        store, (length, num_envs) = before.frames, ring.shape(before)
        num_finals = _num_finals(before)
        known = (rows.env >= 0) & (rows.env < num_envs) & (rows.lengths > 0)
        offset = jnp.arange(jax.tree.leaves(rows.data)[0].shape[0], dtype=jnp.int32)[:, None]
        is_written = known[None] & (offset < rows.lengths[None])
        ended = is_written & _is_end(rows.data)
        count = jnp.cumsum(ended, axis=0, dtype=jnp.int32)
        env = jnp.broadcast_to(rows.env[None], is_written.shape)
        row = jnp.where(is_written, ring.wrap(ring.of_env(before.head % length, env) + offset, length), length)
        final = ring.wrap(_of_env(store.next_final, env) + count - ended, _modulus(num_finals))
        steps = self._steps_of_chunk(_of_env(store.next_steps, rows.env), ended)
        newest = jnp.maximum(rows.lengths - 1, 0)[None]
        # Of more final frames than there is room for, the last ones stay.
        kept = ended & (count[-1:] - count < num_finals)
        outside = length + num_finals + 1
        places = [
            jnp.where(is_written, row, outside),
            jnp.where(kept, length + final % num_finals, outside),
            jnp.where(known, length + num_finals, outside)[None],
        ]
        obs, next_obs = (self._map(self._newest_frame, named_field(rows.data, name)) for name in ("obs", "next_obs"))
        images = _write_images(before, places, rows, obs, next_obs)
        column = jnp.where(known, rows.env, num_envs)
        after = jnp.take_along_axis(jnp.where(ended, 0, jnp.minimum(steps + 1, self.stack)), newest, axis=0)[0]
        next_final = ring.wrap(_of_env(store.next_final, rows.env) + count[-1], _modulus(num_finals))
        return written._replace(
            frames=store.replace(
                images=images,
                steps=_write_rows(before, store.steps, row, rows.env, jnp.minimum(steps, self.stack - 1)),
                final=_write_rows(before, store.final, row, rows.env, final),
                next_steps=store.next_steps.at[column].set(after, mode="drop"),
                next_final=store.next_final.at[column].set(next_final, mode="drop"),
            )
        )

    def _steps_of_chunk(self, next_steps: jax.Array, ended: jax.Array) -> jax.Array:
        """Return how many rows came before each of `[K, E]` in its episode, at most a little more than `stack`."""
        offset = jnp.arange(ended.shape[0], dtype=jnp.int32)[:, None]
        begin = lax.cummax(jnp.where(jnp.roll(ended, 1, axis=0) & (offset > 0), offset, -1))
        return jnp.minimum(jnp.where(begin < 0, next_steps[None] + offset, offset - begin), self.stack)

    def reader(self, storage: Ring) -> Reader:
        """Return a reader of whole rows."""
        return Reader(storage, (functools.partial(self._completed, storage),), functools.partial(is_complete, storage))

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
        strips = self._map(
            lambda leaf: self._padded(_gather(storage, leaf, strip, env), is_padding),
            store.images,
            lambda leaf: _gather(storage, leaf, strip[..., -2:], env),
        )
        obs = self._map(lambda frames: self._joined(frames[:, :-1]), strips, lambda frames: frames[:, 0])
        next_obs = self._map(lambda frames: self._joined(frames[:, 1:]), strips, lambda frames: frames[:, 1])
        obs, next_obs = jax.tree.map(lambda leaf: leaf.reshape(*row.shape, *leaf.shape[1:]), (obs, next_obs))
        return _with_observations(rows, obs, next_obs)

    def _padded(self, frames: jax.Array, is_padding: jax.Array) -> jax.Array:
        """Return frames `[B, S, ...]` with what stands for those before the begin of an episode."""
        if self.padding == "edge":  # whose place is that of the first one
            return frames
        return jnp.where(is_padding.reshape(*frames.shape[:2], *[1] * (frames.ndim - 2)), 0, frames)

    def _joined(self, frames: jax.Array) -> jax.Array:
        """Return frames `[B, stack, ...]` as stacks, along their axis."""
        axis = self.axis % (frames.ndim - 1)
        if axis < frames.ndim - 2 or frames.dtype != jnp.uint8 or self.stack != 4:
            return jnp.moveaxis(frames, 1, 1 + axis)
        # Four bytes side by side are a word: put together as such, XLA's CPU backend uses vector instructions.
        first, second, third, fourth = (frames[:, number].astype(jnp.uint32) for number in range(4))
        return lax.bitcast_convert_type(first | second << 8 | third << 16 | fourth << 24, jnp.uint8)

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
        self, stacked: Callable[[Any], Any], observation: PyTree, whole: Callable[[Any], Any] = lambda leaf: leaf
    ) -> PyTree:
        """Apply one function to what is stacked, another one to the rest."""

        def apply(path: tuple[Any, ...], leaf: Any) -> Any:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            is_stacked = self.stacked is None or f"{name}.".startswith(f"{self.stacked}.")
            return stacked(leaf) if is_stacked and self.stack > 1 else whole(leaf)

        return jax.tree_util.tree_map_with_path(apply, observation)


def without_observations(rows: PyTree) -> PyTree:
    """Return what the ring itself holds of rows."""
    return _with_observations(rows, (), ())


def is_lost(storage: Ring, row: jax.Array, env: jax.Array) -> jax.Array:
    """Tell which rows end an episode whose final observation was overwritten."""
    store, num_finals = storage.frames, _num_finals(storage)
    number = store.final.at[row, env].get(mode="clip")
    age = ring.wrap(_of_env(store.next_final, env) - 1 - number, _modulus(num_finals))
    return _is_end(ring.read(storage, row, env)) & (age >= num_finals)


def has_stack(storage: Ring, row: jax.Array, env: jax.Array) -> jax.Array:
    """Tell which rows have all the frames of their `obs`."""
    steps = storage.frames.steps.at[row, env].get(mode="clip")
    oldest = ring.age_of_row(storage, row, env) + steps
    return oldest < ring.of_env(storage.size, env)


def is_complete(storage: Ring, row: jax.Array, env: jax.Array) -> jax.Array:
    """Tell which rows have all their frames, those of their `next_obs` included."""
    return has_stack(storage, row, env) & ~is_lost(storage, row, env)


def has_field(storage: Ring, name: str, row: jax.Array, env: jax.Array) -> jax.Array:
    """Tell of which rows the field at a dotted path can be read."""
    if not isinstance(storage.frames, FrameStore) or name.split(".")[0] not in ("obs", "next_obs"):
        return jnp.ones(row.shape, bool)
    return (has_stack if name.split(".")[0] == "obs" else is_complete)(storage, row, env)


def mark_break(storage: Ring, where: jax.Array) -> Ring:
    """Let the frame behind the newest row of every open episode be a final one, in the environments `where[N]`."""
    store = storage.frames
    if not isinstance(store, FrameStore):
        return storage
    (length, num_envs), num_finals = ring.shape(storage), _num_finals(storage)
    env = jnp.arange(num_envs, dtype=jnp.int32)
    is_open = where & (store.next_steps > 0)
    place = jnp.where(is_open, length + store.next_final % num_finals, length + num_finals + 1)[None]
    row = jnp.where(is_open, ring.row_of_age(storage, jnp.zeros_like(env), env), length)[None]
    images = _write(store.images, [place], env, [jax.tree.map(lambda leaf: leaf[-1:], store.images)])
    return storage._replace(
        frames=store.replace(
            images=images,
            final=_write(store.final, [row], env, [store.next_final[None]]),
            next_steps=jnp.where(where, 0, store.next_steps),
            next_final=ring.wrap(store.next_final + is_open, _modulus(num_finals)),
        )
    )


def _write_images(storage: Ring, places: list[jax.Array], rows: Rows, obs: PyTree, next_obs: PyTree) -> PyTree:
    """Write newest frames `[K, E, ...]` to their places: of rows, of final ones, and the one behind the head."""
    images, newest = storage.frames.images, jnp.maximum(rows.lengths - 1, 0)[None]
    if not ring.is_lockstep(storage):
        last = jax.tree.map(lambda leaf: leaf[newest, jnp.arange(leaf.shape[1])[None]], next_obs)
        return _write(images, places, rows.env, [obs, next_obs, last])
    images = _write_rows(storage, images, places[0], rows.env, obs)
    images = jax.tree.map(lambda leaf, new: ring.write_one(leaf, new[-1:], leaf.shape[0] - 1), images, next_obs)
    return _write(images, places[1:2], rows.env, [next_obs])


def _write_rows(storage: Ring, tree: PyTree, row: jax.Array, env: jax.Array, values: PyTree) -> PyTree:
    """Write values `[K, E, ...]` to the rows `[K, E]` from the head on: contiguously in lock-step."""
    if not ring.is_lockstep(storage):
        return _write(tree, [row], env, [values])
    length, _ = ring.shape(storage)
    return jax.tree.map(lambda leaf, new: ring.write_rows(leaf, new, storage.head % length, length), tree, values)


def _write(tree: PyTree, places: list[jax.Array], env: jax.Array, values: list[PyTree]) -> PyTree:
    """Write values `[K, E, ...]` to places `[K, E]` of environments `[E]`, leaving out places behind the last one."""

    def write(leaf: jax.Array, *new: jax.Array) -> jax.Array:
        place, value = jnp.concatenate(places), jnp.concatenate(new)
        if place.size == 1:  # a single place would be a slice update, for which XLA may copy the whole leaf
            place = jnp.concatenate([place, jnp.full_like(place, leaf.shape[0])])
            value = jnp.concatenate([value, value])
        return leaf.at[place, jnp.broadcast_to(env[None], place.shape)].set(value, mode="drop")

    return jax.tree.map(write, tree, *values)


def _gather(storage: Ring, leaf: jax.Array, place: jax.Array, env: jax.Array) -> jax.Array:
    """Return the frames `[B, S, ...]` of a leaf `[rows, N, ...]` at places `[..., S]`, where `B` is all but `S`."""
    num_envs, shape = leaf.shape[1], leaf.shape[2:]
    index = keep(jnp.ravel(place * num_envs + env[..., None]))
    frames = leaf.reshape(-1, math.prod(shape)).at[index].get(mode="clip")
    return keep(frames).reshape(-1, place.shape[-1], *shape)


def _with_observations(rows: PyTree, obs: PyTree, next_obs: PyTree) -> PyTree:
    return with_field(with_field(rows, "obs", obs), "next_obs", next_obs)


def _is_end(rows: PyTree) -> jax.Array:
    return named_field(rows, "terminated").astype(bool) | named_field(rows, "truncated").astype(bool)


def _num_finals(storage: Ring) -> int:
    return jax.tree.leaves(storage.frames.images)[0].shape[0] - ring.shape(storage)[0] - 1


def _modulus(num_finals: int) -> int:
    """Return what final frames are counted modulo."""
    return ring.POSITION_LIMIT // num_finals * num_finals


def _of_env(by_env: jax.Array, env: jax.Array) -> jax.Array:
    return by_env.at[env].get(mode="clip")
