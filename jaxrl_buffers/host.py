"""Operations outside of `jit`: they raise errors on misuse, and return exactly as many rows as there are.

`Shared`, `Intake` and `Feeder` are here too. With them, several threads or processes use one state.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxrl_buffers import _needs as needs
from jaxrl_buffers import segment_tree, starts
from jaxrl_buffers.feeder import Feeder as Feeder
from jaxrl_buffers.feeder import Stopped as Stopped
from jaxrl_buffers.intake import Intake as Intake
from jaxrl_buffers.replay import ReplayBuffer, ReplayState
from jaxrl_buffers.segment_tree import SegmentTree
from jaxrl_buffers.shared import Shared as Shared
from jaxrl_buffers.storage import ring
from jaxrl_buffers.types import Handle, PyTree, Sample, Scalar


def sample(
    buffer: ReplayBuffer,
    state: ReplayState,
    key: jax.Array,
    batch_size: int,
    progress: Scalar = 0.0,
    at_least: int = 1,
) -> Sample:
    """Sample as `buffer.sample` does, but raise `ValueError` if fewer than `at_least` starts are stored.

    A balanced sampler draws from every environment. With such a sampler, this also raises `ValueError` if an
    environment has no start.
    """
    num_valid = int(buffer.num_valid(state))
    if num_valid < max(at_least, 1):
        raise ValueError(
            f"sample() needs at least {max(at_least, 1)} legal starts, but {num_valid} are stored; add more rows first."
        )
    if needs.every_env(buffer.sampler):
        counts = starts.count_of_every_env(state.storage, buffer.window(state))
        if empty := np.flatnonzero(np.asarray(counts) == 0).tolist():
            raise ValueError(
                f"sample() draws from every environment alike, but {empty} hold no legal start; add rows to them "
                "first, or use a sampler that is not balanced."
            )
    return buffer.sample(state, key, batch_size, progress)


def gather_all(buffer: ReplayBuffer, state: ReplayState) -> PyTree:
    """Return leaves `[rows stored, N, ...]` in order of time; all environments must have the same number of rows.

    With `Frames`, the oldest rows are left out if the frames before them are gone.

    Raises:
        ValueError: if environments have different numbers of rows, or a final observation is lost.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = jb.ReplayBuffer(view=jb.Sequence(1), length=8)
        >>> state = buffer.add(buffer.init(jnp.int32(0)), jnp.array([[5], [6]]))
        >>> print(jb.host.gather_all(buffer, state)[:, 0])
        [5 6]
    """
    sizes = _sizes(state)
    if (sizes != sizes[0]).any():
        raise ValueError(
            f"gather_all() needs the same number of rows in every environment, but they hold {sizes.tolist()}."
        )
    rows, whole = buffer.gather_all(state)
    is_whole = np.logical_and.reduce(np.asarray(whole)[: sizes[0]], axis=1)
    earliest = is_whole[: buffer.storage.lookback]
    begin = int(np.logical_and.accumulate(~earliest).sum())
    if num_lost := int((~is_whole[begin:]).sum()):
        raise ValueError(
            f"gather_all() would give back {num_lost} rows whose final observations are gone; raise `num_finals` of "
            "Frames, or use the mask that `buffer.gather_all` returns."
        )
    return jax.tree.map(lambda leaf: leaf[begin : sizes[0]], rows)


def dequeue(
    buffer: ReplayBuffer, state: ReplayState, num_rows: int, env_ids: ArrayLike | None = None
) -> tuple[ReplayState, PyTree]:
    """Dequeue as `buffer.dequeue` does, but raise `ValueError` if an environment has too few whole rows.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = jb.ReplayBuffer(view=jb.Sequence(1), length=8)
        >>> state = buffer.add(buffer.init(jnp.int32(0)), jnp.array([[5], [6]]))
        >>> state, rows = jb.host.dequeue(buffer, state, 1)
        >>> print(rows[:, 0], buffer.size(state))
        [5] 1
    """
    held = _sizes(state)
    state, rows, whole = buffer.dequeue(state, num_rows, env_ids)
    held = held if env_ids is None else held[np.asarray(env_ids)]
    if held.min() < num_rows:
        raise ValueError(f"dequeue() was asked for {num_rows} rows, but the environments hold {held.tolist()}.")
    if not (is_whole := np.asarray(whole).all(axis=1)).all():
        raise ValueError(
            f"dequeue() was asked for {num_rows} rows, but some frames of {int((~is_whole).sum())} of them are gone; "
            "use the mask that `buffer.dequeue` returns."
        )
    return state, rows


def get_field(buffer: ReplayBuffer, state: ReplayState, name: str, handle: Handle) -> PyTree:
    """Read as `buffer.get_field` does, but raise `ValueError` if a row or its frames are not stored any more."""
    values, live = buffer.get_field(state, name, handle)
    if not bool(jnp.all(live)):
        gone = np.asarray(handle.position)[~np.asarray(live)].ravel()
        raise ValueError(f"get_field() was asked for positions that are not stored: {gone[:8].tolist()}.")
    return values


def find(tree: SegmentTree, thresholds: jax.Array) -> jax.Array:
    """Search as `segment_tree.find` does, but raise `ValueError` if a threshold exceeds the total."""
    indices = segment_tree.find(tree, thresholds)
    if bool(jnp.any(indices == segment_tree.NOT_FOUND)):
        total, largest = float(segment_tree.reduce(tree).total), float(jnp.max(thresholds))
        raise ValueError(f"find() got the threshold {largest}, but the sum of all leaves is only {total}.")
    return indices


def _sizes(state: ReplayState) -> np.ndarray:
    """Return how many rows each environment holds."""
    return np.broadcast_to(np.asarray(state.storage.size), ring.shape(state.storage)[1:])
