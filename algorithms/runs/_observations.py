"""Converts the observations that users pass in to what a compiled program takes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from algorithms.environments import Described
from algorithms.environments.gymnasium import HostEnvironment
from jaxrl_buffers._checks import one_line
from jaxrl_buffers.types import PyTree


class Observations:
    """The observations of an environment.

    Args:
        env: the environment.
    """

    def __init__(self, env: Described):
        self._env = env
        self._likes, self._structure = jax.tree.flatten(env.obs)  # done once, as it takes milliseconds

    def batched(self, obs: PyTree) -> tuple[PyTree, bool]:
        """Return observations `[N, ...]` with the dtypes that agents see, and whether a single observation was given.

        Raises:
            ValueError: when the observations do not fit the environment.
        """
        env = self._env
        try:
            given = self._structure.flatten_up_to(env.encode(obs) if isinstance(env, HostEnvironment) else obs)
            leaves = [_fitted(leaf, like) for leaf, like in zip(given, self._likes, strict=True)]
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise ValueError(f"got something that is not an observation of {env.name}: {one_line(error)}") from None
        pairs = [*zip(leaves, self._likes, strict=True)]
        before = {leaf.shape[: leaf.ndim - like.ndim] for leaf, like in pairs}
        is_alike = all(leaf.shape[leaf.ndim - like.ndim :] == like.shape for leaf, like in pairs)
        axes = before.pop()
        if before or not is_alike or len(axes) > 1:
            got, needed = (self._spelled(one) for one in (leaves, self._likes))
            raise ValueError(
                f"got observations of shape {got}, but those of {env.name} have the shape {needed}; give one, or many "
                "along a first axis."
            )
        return self._structure.unflatten(leaves if axes else [leaf[None] for leaf in leaves]), not axes

    def _spelled(self, leaves: list[Any]) -> Any:
        return self._structure.unflatten([list(leaf.shape) for leaf in leaves])


def _fitted(leaf: object, like: jax.ShapeDtypeStruct) -> Any:
    """Return a leaf cast to the right dtype; refuse a leaf whose values the cast would change."""
    leaf = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    if leaf.dtype == like.dtype:
        return leaf
    cast = leaf.astype(like.dtype)
    is_same_kind = np.can_cast(leaf.dtype, like.dtype, "same_kind")
    if not is_same_kind and not isinstance(leaf, Tracer) and not np.array_equal(cast.astype(leaf.dtype), leaf):
        raise ValueError(f"it has {leaf.dtype} values that do not fit into {like.dtype}.")
    return cast
