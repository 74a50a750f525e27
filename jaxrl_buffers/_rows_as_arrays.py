"""Stored rows as arrays under the names that D4RL gave them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxrl_buffers import _filling as filling
from jaxrl_buffers._array_files import copy
from jaxrl_buffers.replay import ReplayBuffer, ReplayState
from jaxrl_buffers.types import Transition


def of_state(buffer: ReplayBuffer, state: ReplayState) -> dict[str, Any]:
    """Return all stored rows as arrays `[M, ...]`; see `datasets.to_arrays`."""
    row = buffer.storage.structure(state.storage)
    if not isinstance(row, Transition):
        raise ValueError(f"to_arrays() needs stored transitions, but the buffer holds {type(row).__name__}.")
    sizes = np.broadcast_to(np.asarray(state.storage.size), buffer.num_envs)
    begins = np.cumsum(sizes) - sizes
    rows = jax.tree.map(lambda leaf: np.empty((int(sizes.sum()), *leaf.shape), leaf.dtype), row)
    is_whole = np.zeros(int(sizes.sum()), bool)
    num_rows = filling.rows_of_block(buffer, row, int(sizes.max()))
    for start in range(0, int(sizes.max()), num_rows):
        block, whole = jax.device_get(buffer.slice(state, start, num_rows))
        for env, (begin, count) in enumerate(zip(begins, np.minimum(sizes - start, num_rows), strict=True)):
            place = slice(begin + start, begin + start + max(count, 0))
            copy(rows, place, jax.tree.map(lambda leaf, env=env: leaf[:, env], block))
            is_whole[place] = whole[: max(count, 0), env]
    ends_here = np.zeros(is_whole.shape, bool)
    ends_here[(begins + sizes)[sizes > 0] - 1] = True
    return _named(_cut(rows, is_whole, ends_here))


def _cut(rows: Transition, is_whole: np.ndarray, ends_here: np.ndarray) -> Transition:
    """Leave out rows that are not whole. A row becomes truncated if its next row is not whole or does not exist."""
    has_next = np.append(is_whole[1:], False) & ~ends_here
    truncated = rows.truncated.astype(bool) | ~(has_next | rows.terminated.astype(bool))
    rows = rows._replace(terminated=rows.terminated.astype(bool), truncated=truncated)
    return rows if is_whole.all() else jax.tree.map(lambda leaf: leaf[is_whole], rows)


def _named(rows: Transition) -> dict[str, Any]:
    """Return the fields of transitions under D4RL's names."""
    arrays = {
        "observations": rows.obs,
        "actions": rows.action,
        "rewards": rows.reward,
        "terminals": rows.terminated,
        "timeouts": rows.truncated,
        "next_observations": rows.next_obs,
    }
    if not jax.tree.leaves(rows.extras):
        return arrays
    return arrays | {"infos": rows.extras if isinstance(rows.extras, dict) else {"extras": rows.extras}}
