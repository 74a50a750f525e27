"""Conversion of Gymnasium's spaces: observations to pytrees of arrays, actions to `Discrete` and `Box`."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import jax
import numpy as np

from algorithms.environments.spaces import Box, Discrete, Space
from jaxrl_buffers.types import PyTree

IMAGE_SIDE = 20  # pixels; what is smaller may be a board, or other numbers


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


def encode_stored(space: gymnasium.Space[Any], value: PyTree) -> PyTree:
    """Do the same as `encode` with stored observations `[K, ...]`, which may be encoded already.

    What is not of the space is left for other checks, except choices that the space does not have.
    """
    match space:
        case gymnasium.spaces.Dict() if isinstance(value, dict) and value.keys() == space.spaces.keys():
            return {name: encode_stored(part, value[name]) for name, part in space.spaces.items()}
        case gymnasium.spaces.Tuple() if isinstance(value, tuple) and len(value) == len(space.spaces):
            return tuple(encode_stored(part, each) for part, each in zip(space.spaces, value, strict=True))
        case gymnasium.spaces.Discrete() | gymnasium.spaces.MultiDiscrete() | gymnasium.spaces.MultiBinary():
            if isinstance(value, (dict, tuple)) or value.dtype == np.bool_ or value.shape[1:] != space.shape:
                return value
            encoded = encode(space, value)
            if not isinstance(space, gymnasium.spaces.MultiBinary):
                _require_choices(space, value, encoded)
            return encoded
        case _:
            return value


def _require_choices(space: gymnasium.Space[Any], value: np.ndarray, encoded: np.ndarray) -> None:
    """Refuse encoded observations that lack a choice."""
    is_whole = encoded.reshape(len(value), -1).sum(axis=1) == max(value[:1].size, 1)
    if not is_whole.all():
        row = int(np.argmin(is_whole))
        raise ValueError(f"the observation {value[row].tolist()} is not in {space}; is it of another environment?")


def structure(space: gymnasium.Space[Any]) -> PyTree:
    """Return the shapes and dtypes of one encoded observation."""
    example = encode(space, space.sample())
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), example)


def warn_of_images(space: gymnasium.Space[Any], name: str) -> None:
    """Warn of images that would not pass through convolutions as they should."""
    for leaf in jax.tree.leaves(structure(space)):
        shape, sides = leaf.shape, sum(size >= IMAGE_SIDE for size in leaf.shape)
        if leaf.dtype == np.uint8 and sides >= 2 and (len(shape) != 3 or min(shape[:2]) < IMAGE_SIDE):
            warnings.warn(
                f"{name} has observations of uint8{list(shape)}; if these are images, change them to [height, width, "
                "channels], or they do not pass through convolutions as images.",
                stacklevel=2,
            )


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


def encode_actions(space: gymnasium.Space[Any], action: PyTree) -> PyTree:
    """Turn actions `[K, ...]` of the environment into those of agents: the opposite of `decode_actions`."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return jax.tree.map(lambda leaf: leaf - space.start, action)
    return jax.tree.map(lambda leaf: leaf.reshape(len(leaf), -1) if leaf.shape[1:] == space.shape else leaf, action)


def bounds(space: gymnasium.Space[Any]) -> tuple[Any, Any]:
    """Return the smallest and the largest action of a space that `action_space` accepts."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(space.start), int(space.start + space.n - 1)
    assert isinstance(space, gymnasium.spaces.Box)
    return np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)


def decode_actions(space: gymnasium.Space[Any], action: Any) -> Any:
    """Turn actions `[N, ...]` of an agent, of NumPy or JAX, into actions of the environment."""
    assert space.dtype is not None  # see `action_space`
    # JAX has no numbers of 64 bits, unless it is set to use them.
    dtype: Any = space.dtype if isinstance(action, np.ndarray) else jax.dtypes.canonicalize_dtype(space.dtype)
    if isinstance(space, gymnasium.spaces.Discrete):
        return action.astype(dtype) + dtype.type(space.start)
    assert isinstance(space, gymnasium.spaces.Box)
    action = action.reshape(action.shape[0], *space.shape)
    # Scaling may round an action to just outside of its bounds, and some environments refuse such an action.
    return action.clip(space.low[None], space.high[None]).astype(dtype)


def _one_hot(chosen: np.ndarray, size: int) -> np.ndarray:
    return chosen[..., None] == np.arange(size)


def _dtype(space: gymnasium.spaces.Box) -> np.dtype:
    kind = np.dtype(space.dtype)
    if kind == np.uint8 or kind == np.bool_:
        return kind
    return np.dtype(np.float32 if np.issubdtype(kind, np.floating) else np.int32)
