"""Observations as people have them, made ready for a compiled program."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from algorithms.environments import Described
from algorithms.environments.gymnasium import HostEnvironment
from jaxrl_buffers.types import PyTree


def batched(env: Described, obs: PyTree) -> tuple[PyTree, bool]:
    """Return observations `[N, ...]` of the dtypes that agents see, and whether it was a single one.

    Raises:
        ValueError: when they are not those of the environment.
    """
    likes, structure = jax.tree.flatten(env.obs)
    try:
        given = env.encode(obs) if isinstance(env, HostEnvironment) else obs
        leaves = [_fitted(leaf, like) for leaf, like in zip(structure.flatten_up_to(given), likes, strict=True)]
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ValueError(f"got an observation that {env.name} never shows: {' '.join(str(error).split())}") from None
    before = {leaf.shape[: leaf.ndim - like.ndim] for leaf, like in zip(leaves, likes, strict=True)}
    behind = all(leaf.shape[leaf.ndim - like.ndim :] == like.shape for leaf, like in zip(leaves, likes, strict=True))
    axes = before.pop()
    if before or not behind or len(axes) > 1:
        got, needed = (_spelled(structure, one) for one in (leaves, likes))
        raise ValueError(f"got observations of shape {got}; {env.name} shows {needed}, one or many along a first axis.")
    leaves = leaves if axes else [leaf[None] for leaf in leaves]
    return jax.tree.unflatten(structure, leaves), not axes


def _fitted(leaf: Any, like: jax.ShapeDtypeStruct) -> Any:
    """Return a leaf of the right dtype; refuse one whose values would be others in it."""
    leaf = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    if leaf.dtype == like.dtype:
        return leaf
    cast = leaf.astype(like.dtype)
    is_same_kind = np.can_cast(leaf.dtype, like.dtype, "same_kind")
    if not is_same_kind and not isinstance(leaf, Tracer) and not np.array_equal(cast.astype(leaf.dtype), leaf):
        raise ValueError(f"its {leaf.dtype} holds values that {like.dtype} cannot hold.")
    return cast


def _spelled(structure: Any, leaves: list[Any]) -> Any:
    return jax.tree.unflatten(structure, [list(leaf.shape) for leaf in leaves])
