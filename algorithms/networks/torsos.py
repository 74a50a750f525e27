"""Torsos: networks that turn one unbatched observation into features. An observation may be any pytree."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from algorithms.networks.memories import KINDS, History, RecurrentCore
from jaxrl_buffers._checks import require_choice, require_integer, require_tuple, shown
from jaxrl_buffers._xla import convolve
from jaxrl_buffers.types import PyTree

# The elementwise functions in jax.nn.
ACTIVATIONS = (
    *("relu", "relu6", "leaky_relu", "elu", "celu", "selu", "gelu", "silu", "swish", "mish", "squareplus", "softplus"),
    *("sigmoid", "log_sigmoid", "tanh", "soft_sign", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh"),
    *("sparse_plus", "sparse_sigmoid", "identity"),
)


class Torso(nn.Module):
    """A network that turns an observation, any pytree, into features `float32[F]`.

    Leaves of rank 3 are images `[height, width, channels]` and pass through convolutions. All other leaves are
    flattened. Leaves of dtype `uint8` are divided by 255. Then all leaves are joined to one vector, which passes
    through the dense layers. With a memory, a recurrent core comes before the dense layers, and observations must be a
    `History`.

    Args:
        hidden_sizes: widths of the dense layers.
        channels: number of channels of each convolution; `(16,)` is the network of MinAtar.
        activation: name of a function in `jax.nn`.
        memory: `gru`, `lstm`, or None for a network that sees one observation at a time.
        memory_size: width of the recurrent core.
        kernel_sizes: height and width of the kernel of each convolution, or one number for all.
        strides: stride of each convolution, or one number for all. Images are not padded.

    Example:
        >>> torso = Torso(hidden_sizes=(64, 64))
        >>> obs = {"image": jnp.zeros((10, 10, 4), jnp.uint8), "speed": jnp.zeros(2)}
        >>> params = torso.init(jax.random.key(0), obs)
        >>> torso.apply(params, obs).shape
        (64,)
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    channels: tuple[int, ...] = (16,)
    activation: str = "relu"
    memory: str | None = None
    memory_size: int = 64
    kernel_sizes: tuple[int, ...] = (3,)
    strides: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        for name in ("hidden_sizes", "channels", "kernel_sizes", "strides"):
            require_tuple("Torso", name, getattr(self, name), "whole numbers")
            for size in getattr(self, name):
                require_integer("Torso", name, size, 1)
        for name in ("kernel_sizes", "strides"):
            if len(getattr(self, name)) not in (1, len(self.channels)):
                raise ValueError(
                    f"Torso({name}={getattr(self, name)}): there are {len(self.channels)} convolutions, of "
                    f"{self.channels} channels; give one number for each of them, or a single one for all."
                )
        if self.activation not in ACTIVATIONS:
            names = ", ".join(ACTIVATIONS)
            raise ValueError(f"there is no activation {shown(self.activation)} in jax.nn; use one of {names}.")
        if self.memory is not None:
            require_choice("Torso", "memory", self.memory, KINDS)
        require_integer("Torso", "memory_size", self.memory_size, 1)
        super().__post_init__()

    @property
    def encoder(self) -> Encoder:
        """The part of the torso before the dense layers."""
        return _encoder(self)

    @nn.compact
    def __call__(self, obs: PyTree, *others: jax.Array) -> jax.Array:
        """Return features of an observation, or of each row of a `History`.

        Args:
            obs: the observation, or a `History`.
            *others: vectors, such as an action. They are joined to the encoded observation before the dense layers.
        """
        x = _encoder(self, name="encoder")(obs)[0]
        x = jnp.concatenate([x, *others], axis=-1) if others else x
        for size in self.hidden_sizes:
            x = getattr(jax.nn, self.activation)(nn.Dense(size)(x))
        return x


class Layer(NamedTuple):
    """The sizes of one convolution."""

    num_channels: int
    kernel_size: int
    stride: int


class Encoder(nn.Module):
    """The part of a torso before the dense layers. It turns an observation into a vector, and holds the memory."""

    layers: tuple[Layer, ...]
    activation: str
    memory: str | None
    memory_size: int

    @nn.compact
    def __call__(self, obs: PyTree) -> tuple[jax.Array, PyTree]:
        """Return the vector of an observation, or of each row of a `History`, and the memory after the last row."""
        if not isinstance(obs, History):
            return self._flatten(obs, 0), ()
        rows = obs.obs if obs.following is None else _concatenate(obs.obs, obs.following)
        x, carry = self._flatten(rows, 1), ()
        if self.memory is not None:
            x = getattr(jax.nn, self.activation)(nn.Dense(self.memory_size)(x))
            # This name must not change: initial parameters depend on it, and checkpoints contain it.
            core = RecurrentCore(self.memory, self.memory_size, name="Memory_0")
            carry, x = core(x, obs.carry, obs.is_first, obs.is_burn_in, obs.last)
        elif obs.following is not None:
            x = x[obs.is_first.shape[0] :]
        return x, carry

    def _flatten(self, obs: PyTree, num_axes: int) -> jax.Array:
        """Return all leaves as one vector, with `num_axes` leading axes before it."""
        features = []
        for path, leaf in jax.tree.leaves_with_path(obs):
            x = _as_float(leaf)
            x = self._convolve(x, path) if leaf.ndim - num_axes == 3 else x
            features.append(x.reshape(*x.shape[:num_axes], -1))
        return jnp.concatenate(features, axis=-1) if len(features) > 1 else features[0]

    def _convolve(self, image: jax.Array, path: tuple[Any, ...]) -> jax.Array:
        """Pass images `[..., height, width, channels]` through all convolutions."""
        x = image
        for number, (size, kernel_size, stride) in enumerate(self.layers, 1):
            if min(x.shape[-3:-1]) < kernel_size:
                name = jax.tree_util.keystr(path, simple=True, separator=".") or "(the whole)"
                whole, left = ("x".join(map(str, each.shape[-3:-1])) for each in (image, x))
                raise ValueError(
                    f"observation {name} is an image of {whole}, of which {left} reach convolution {number}: too few "
                    f"for a kernel of {kernel_size}x{kernel_size}; use fewer or smaller kernels, or smaller strides."
                )
            layer = nn.Conv(size, (kernel_size,) * 2, (stride,) * 2, padding="VALID", conv_general_dilated=convolve)
            x = getattr(jax.nn, self.activation)(layer(x))
        return x


NATURE = Torso(hidden_sizes=(512,), channels=(32, 64, 64), kernel_sizes=(8, 4, 3), strides=(4, 2, 1))
"""The torso for Atari frames of 84x84: Mnih et al. (2015), https://doi.org/10.1038/nature14236."""

MEDIUM = Torso(channels=(32, 64), kernel_sizes=(4, 3), strides=(2, 2))
"""A torso for images that are too small for `NATURE` and too large to be kept at full size, such as 28x28."""


def torso_for(obs: PyTree) -> Torso:
    """Return a torso that fits observations, by the size of the smallest image in them.

    Args:
        obs: shapes and dtypes of one observation, such as `env.obs`.

    Returns:
        `NATURE` for images from 36x36, `MEDIUM` for images from 20x20, and `Torso()` for smaller ones, such as those of
        MinAtar, and for observations without images.

    Example:
        >>> torso_for(jax.ShapeDtypeStruct((96, 96, 3), jnp.uint8)) == NATURE
        True
        >>> torso_for(jax.ShapeDtypeStruct((17,), jnp.float32)).hidden_sizes
        (64, 64)
    """
    sides = [min(leaf.shape[:2]) for leaf in jax.tree.leaves(obs) if len(leaf.shape) == 3]
    smallest = min(sides, default=0)
    return NATURE if smallest >= 36 else MEDIUM if smallest >= 20 else Torso()


def _encoder(torso: Torso, **options: Any) -> Encoder:
    number, given = len(torso.channels), (torso.kernel_sizes, torso.strides)
    sizes = (each if len(each) == number else each * number for each in given)
    layers = tuple(map(Layer, torso.channels, *sizes))
    return Encoder(layers, torso.activation, torso.memory, torso.memory_size, **options)


def _concatenate(rows: PyTree, others: PyTree) -> PyTree:
    return jax.tree.map(lambda one, two: jnp.concatenate([one, two]), rows, others)


def _as_float(leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.float32) / 255 if leaf.dtype == jnp.uint8 else leaf.astype(jnp.float32)
