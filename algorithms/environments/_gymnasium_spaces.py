"""Conversion of Gymnasium's spaces: observations to pytrees of arrays, actions to `Discrete` and `Box`."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import numpy as np

from algorithms.environments.spaces import Box, Discrete, Space
from jaxrl_buffers.types import PyTree


def encode(space: gymnasium.Space[Any], value: Any) -> PyTree:
    """Return one or many observations of a space as arrays. `value` may have any leading axes.

    Numbers of a Box keep their shape. Floating-point numbers become `float32` and integers become `int32`, but `uint8`
    and `bool` keep their dtype. A choice among `n` values becomes `n` booleans, one of which is True. Discrete is one
    such choice, and MultiDiscrete has one for each component.
    """
    match space:
        case gymnasium.spaces.Dict():
            return {name: encode(part, value[name]) for name, part in space.spaces.items()}
        case gymnasium.spaces.Tuple():
            return tuple(encode(part, each) for part, each in zip(space.spaces, value, strict=True))
        case gymnasium.spaces.Discrete():
            return _one_hot(np.asarray(value) - space.start, int(space.n))
        case gymnasium.spaces.MultiDiscrete():
            chosen = np.asarray(value) - space.start
            chosen = chosen.reshape(*chosen.shape[: chosen.ndim - space.nvec.ndim], -1)
            parts = [_one_hot(chosen[..., index], int(size)) for index, size in enumerate(space.nvec.ravel())]
            return np.concatenate(parts, axis=-1)
        case gymnasium.spaces.MultiBinary():
            return np.asarray(value, bool)
        case gymnasium.spaces.Box():
            return np.asarray(value, _dtype(space))
        case _:
            raise ValueError(
                f"observations of {type(space).__name__} cannot be stored as arrays; wrap the environment so that they "
                "are of Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple."
            )


def structure(space: gymnasium.Space[Any]) -> PyTree:
    """Return the shapes and dtypes of one encoded observation."""
    example = encode(space, space.sample())
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), example)


def action_space(space: gymnasium.Space[Any], name: str) -> Space:
    """Return the action space for agents. Refuse spaces that no agent supports."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return Discrete(int(space.n))
    if not isinstance(space, gymnasium.spaces.Box):
        raise ValueError(f"{name} has the action space {space}; agents need Discrete or Box, so wrap the environment.")
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise ValueError(
            f"{name} has unbounded actions {space}; wrap it in gymnasium.wrappers.RescaleAction or in a factory of "
            "your own, so that they have finite bounds."
        )
    return Box(*(tuple(np.asarray(bound, np.float32).ravel().tolist()) for bound in (space.low, space.high)))


def decode_actions(space: gymnasium.Space[Any], action: np.ndarray) -> np.ndarray:
    """Turn actions `[N, ...]` of an agent into actions of the environment."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return action.astype(space.dtype) + space.start
    assert isinstance(space, gymnasium.spaces.Box)  # see `action_space`
    action = action.reshape(action.shape[0], *space.shape)
    # Scaling may round an action to just outside of its bounds, and some environments refuse such an action.
    return np.clip(action, space.low, space.high).astype(space.dtype)


def _one_hot(chosen: np.ndarray, size: int) -> np.ndarray:
    return chosen[..., None] == np.arange(size)


def _dtype(space: gymnasium.spaces.Box) -> np.dtype:
    kind = np.dtype(space.dtype)
    if kind == np.uint8 or kind == np.bool_:
        return kind
    return np.dtype(np.float32 if np.issubdtype(kind, np.floating) else np.int32)
