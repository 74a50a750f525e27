"""Networks on one unbatched observation, which may be any pytree; callers `vmap`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from algorithms.memory import KINDS, History, Memory
from jaxrl_buffers._checks import require_choice, require_integer, require_tuple, shown
from jaxrl_buffers._random.hashing import unrolled
from jaxrl_buffers._xla import convolve, map_stack, narrow_product
from jaxrl_buffers.types import PyTree

# The functions in jax.nn that change one number at a time.
ACTIVATIONS = (
    *("relu", "relu6", "leaky_relu", "elu", "celu", "selu", "gelu", "silu", "swish", "mish", "squareplus", "softplus"),
    *("sigmoid", "log_sigmoid", "tanh", "soft_sign", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh"),
    *("sparse_plus", "sparse_sigmoid", "identity"),
)


class Torso(nn.Module):
    """Features of any pytree of observations: images pass through convolutions, all the rest is flattened.

    Leaves of rank 3 count as images `[height, width, channels]`; `uint8` ones are divided by 255. With a memory, a
    recurrent core comes before the dense layers, and observations come as a `History`.

    Args:
        hidden_sizes: widths of the dense layers.
        channels: of the convolutions for images, one after the other; `(16,)` is the network of MinAtar.
        activation: name of a function in `jax.nn`.
        memory: `gru`, `lstm`, or None for a network that sees one observation at a time.
        memory_size: width of what is remembered.
        kernel_sizes: height and width of the kernel of every convolution, or one number for all.
        strides: of every convolution, or one number for all. Images are not padded.

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

    def __post_init__(self):
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
        """What comes before the dense layers."""
        return _encoder(self)

    @nn.compact
    def __call__(self, obs: PyTree, *others: jax.Array) -> jax.Array:
        """Return features of an observation, or of each row of a `History`, together with other vectors."""
        x = _encoder(self, name="encoder")(obs)[0]
        x = jnp.concatenate([x, *others], axis=-1) if others else x
        for size in self.hidden_sizes:
            x = getattr(jax.nn, self.activation)(nn.Dense(size)(x))
        return x


class Layer(NamedTuple):
    """One convolution."""

    num_channels: int
    kernel_size: int
    stride: int


class Encoder(nn.Module):
    """Observations as vectors, with what is remembered if there is a memory; see `Torso`."""

    layers: tuple[Layer, ...]
    activation: str
    memory: str | None
    memory_size: int

    @nn.compact
    def __call__(self, obs: PyTree) -> tuple[jax.Array, PyTree]:
        """Return the vector of an observation, or vectors of all rows of a `History`, and the last carry."""
        if not isinstance(obs, History):
            return self._flatten(obs, 0), ()
        rows = obs.obs if obs.following is None else _concatenate(obs.obs, obs.following)
        x, carry = self._flatten(rows, 1), ()
        if self.memory is not None:
            x = getattr(jax.nn, self.activation)(nn.Dense(self.memory_size)(x))
            carry, x = Memory(self.memory, self.memory_size)(x, obs.carry, obs.is_first, obs.is_burn_in)
        elif obs.following is not None:
            x = x[obs.is_first.shape[0] :]
        return (x if obs.last is None else x[obs.last]), carry

    def _flatten(self, obs: PyTree, num_axes: int) -> jax.Array:
        """Make vectors of images and all the rest, behind `num_axes` leading axes."""
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
"""The network for frames of 84x84: Mnih et al. (2015), https://doi.org/10.1038/nature14236."""


def _encoder(torso: Torso, **options: Any) -> Encoder:
    number, given = len(torso.channels), (torso.kernel_sizes, torso.strides)
    sizes = (each if len(each) == number else each * number for each in given)
    layers = tuple(map(Layer, torso.channels, *sizes))
    return Encoder(layers, torso.activation, torso.memory, torso.memory_size, **options)


class QNetwork(nn.Module):
    """Values `float32[A]` of all discrete actions.

    With `dueling`, `Q(s, a) = V(s) + A(s, a) - mean_a A(s, a)`; Wang et al. (2016), https://arxiv.org/abs/1511.06581.
    """

    num_actions: int
    torso: Torso = Torso()
    dueling: bool = False

    role = "critic"

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        features = self.torso(obs)
        values = _head(self.num_actions)(features)
        if self.dueling:
            values = _head(1)(features) + values - jnp.mean(values, axis=-1, keepdims=True)
        return values


class Critic(nn.Module):
    """The value `float32[]` of an observation and a continuous action in `[-1, 1]`."""

    torso: Torso = Torso()

    role = "critic"

    @nn.compact
    def __call__(self, obs: PyTree, action: jax.Array) -> jax.Array:
        return _head(1)(self.torso(obs, action))[..., 0]


class DeterministicActor(nn.Module):
    """One action `float32[A]` in `(-1, 1)`."""

    action_size: int
    torso: Torso = Torso()

    role = "actor"

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        return jnp.tanh(_small_head(self.action_size)(self.torso(obs)))


class ValueNetwork(nn.Module):
    """The value `float32[]` of an observation."""

    torso: Torso = Torso()

    role = "critic"

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        return _head(1)(self.torso(obs))[..., 0]


class CategoricalActor(nn.Module):
    """Log-probabilities `float32[A]` of all discrete actions."""

    num_actions: int
    torso: Torso = Torso()

    role = "actor"

    @nn.compact
    def __call__(self, obs: PyTree) -> jax.Array:
        return jax.nn.log_softmax(_small_head(self.num_actions)(self.torso(obs)))


class GaussianActor(nn.Module):
    """Mean and logarithm of the standard deviation, `float32[A]` each, of a Gaussian policy."""

    action_size: int
    torso: Torso = Torso()

    role = "actor"

    @nn.compact
    def __call__(self, obs: PyTree) -> tuple[jax.Array, jax.Array]:
        mean, log_std = jnp.split(_small_head(2 * self.action_size)(self.torso(obs)), 2, axis=-1)
        return mean, log_std


def init_network(network: Any, key: jax.Array, *inputs: PyTree) -> PyTree:
    """Return the first parameters of one of these networks; consumes `key`.

    A torso that somebody else wrote gets keys of the type of `key`.
    """
    return network.init(unrolled(key) if type(network.torso) is Torso else key, *inputs)


def apply_batch(network: nn.Module, params: PyTree, obs: PyTree, *inputs: PyTree) -> Any:
    """Apply a network to every sample: inputs `[B, ...]`, outputs `[B, ...]`.

    A `History` has leaves `[B, L, ...]`; other inputs and all outputs are then flat, `[B * L, ...]`, so that
    algorithms need not know whether their samples are sequences.
    """
    apply: Any = jax.vmap(network.apply, in_axes=(None, *[0] * (1 + len(inputs))))
    if not isinstance(obs, History):
        return apply(params, obs, *inputs)
    obs = obs.of(getattr(network, "role", None))
    shape = obs.is_first.shape
    inputs = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), inputs)
    outputs = apply(params, obs, *inputs)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), outputs)


def apply_stack(network: nn.Module, params: PyTree, obs: PyTree, *inputs: PyTree) -> Any:
    """Apply `C` networks, whose parameters are stacked `[C, ...]`, to every sample: outputs `[C, B, ...]`."""
    if not isinstance(obs, History):
        return map_stack(lambda params, inputs: apply_batch(network, params, *inputs), params, (obs, *inputs))
    num_networks = jax.tree.leaves(params)[0].shape[0]
    obs = obs.of(network.role)

    def apply_one(params: PyTree, carry: PyTree) -> Any:
        return apply_batch(network, params, obs._replace(carry=carry), *inputs)

    carry = jax.tree.map(lambda leaf: leaf[:, :num_networks], obs.carry)  # [B, C, ...], a memory for each of them
    return jax.vmap(apply_one, in_axes=(0, 1))(params, carry)


def _concatenate(rows: PyTree, others: PyTree) -> PyTree:
    return jax.tree.map(lambda one, two: jnp.concatenate([one, two]), rows, others)


def torso_features(network: Any, params: PyTree, obs: PyTree) -> jax.Array:
    """Return what the torso of a network makes of observations `[B, ...]`: features `float32[B, F]`."""
    obs = obs.of(network.role) if isinstance(obs, History) else obs
    return apply_batch(network.torso, {"params": params["params"].get("torso", {})}, obs)


def _small_head(size: int) -> nn.Dense:
    """A last layer with small first outputs: a policy begins near the middle of its bounds, nowhere saturated."""
    return _head(size, kernel_init=nn.initializers.orthogonal(0.01))


def _head(size: int, **options: Any) -> nn.Dense:
    """A last layer."""
    return nn.Dense(size, dot_general=narrow_product, **options)


def _as_float(leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.float32) / 255 if leaf.dtype == jnp.uint8 else leaf.astype(jnp.float32)
