"""Networks applied to batches, to stacks of parameters, and to histories of observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import linen as nn

from algorithms.networks.memories import History
from algorithms.networks.torsos import Torso
from jaxrl_buffers._random.hashing import split, unrolled
from jaxrl_buffers._xla import map_stack
from jaxrl_buffers.types import PyTree


class Network(Protocol):
    """A flax module with a head on top of a torso: one of `networks.heads`."""

    @property
    def role(self) -> str:
        """The group of parameters that the network belongs to: `actor` or `critic`."""
        ...

    @property
    def torso(self) -> nn.Module:
        """What is below the head."""
        ...

    @property
    def init(self) -> Callable[..., PyTree]:
        """That of the module: from a key and inputs to parameters."""
        ...

    @property
    def apply(self) -> Callable[..., Any]:
        """That of the module: from parameters and inputs to outputs."""
        ...


def init_network(network: Network, key: jax.Array, *inputs: PyTree) -> PyTree:
    """Return the first parameters of a network for inputs of these shapes and dtypes; consumes `key`.

    A torso that somebody else wrote gets keys of the type of `key`.
    """
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), inputs)
    return network.init(unrolled(key) if type(network.torso) is Torso else key, *zeros)


def init_stack(network: Network, key: jax.Array, num_networks: int, *inputs: PyTree) -> PyTree:
    """Return the first parameters of `C` networks, stacked `[C, ...]`; consumes `key`."""
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), inputs)
    return jax.vmap(lambda key: init_network(network, key, *zeros))(split(key, num_networks))


def apply_batch(network: Network, params: PyTree, obs: PyTree, *inputs: PyTree) -> Any:
    """Apply a network to every sample: inputs `[B, ...]`, outputs `[B, ...]`.

    A `History` has leaves `[B, L, ...]`. Other inputs and all outputs are then flat, `[B * L, ...]`, so that
    algorithms need not know whether their samples are sequences.
    """
    return _apply(network, params, obs.of(network.role) if isinstance(obs, History) else obs, *inputs)


def apply_stack(network: Network, params: PyTree, obs: PyTree, *inputs: PyTree) -> Any:
    """Apply `C` networks, whose parameters are stacked `[C, ...]`, to every sample: outputs `[C, B, ...]`."""
    if not isinstance(obs, History):
        return map_stack(lambda params, inputs: _apply(network, params, *inputs), params, (obs, *inputs))
    num_networks = jax.tree.leaves(params)[0].shape[0]
    obs = obs.of(network.role)

    def apply_one(params: PyTree, carry: PyTree) -> Any:
        return _apply(network, params, obs._replace(carry=carry), *inputs)

    carry = jax.tree.map(lambda leaf: leaf[:, :num_networks], obs.carry)  # [B, C, ...], a memory for each of them
    return jax.vmap(apply_one, in_axes=(0, 1))(params, carry)


def torso_features(network: Network, params: PyTree, obs: PyTree) -> jax.Array:
    """Return the outputs `float32[B, F]` of a network's torso at observations `[B, ...]`."""
    obs = obs.of(network.role) if isinstance(obs, History) else obs
    return _apply(network.torso, {"params": params["params"].get("torso", {})}, obs)


def _apply(network: Network | nn.Module, params: PyTree, obs: PyTree, *inputs: PyTree) -> Any:
    """Apply a network to every sample; the carry of a `History` is that of this network."""
    apply: Any = jax.vmap(network.apply, in_axes=(None, *[0] * (1 + len(inputs))))
    if not isinstance(obs, History):
        return apply(params, obs, *inputs)
    shape = obs.is_first.shape
    inputs = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), inputs)
    outputs = apply(params, obs, *inputs)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), outputs)
