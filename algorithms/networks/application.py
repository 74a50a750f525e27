"""Networks applied to batches, to stacks of parameters, and to histories of observations.

Agents call these functions instead of `vmap`. So the same code of an agent works for single steps and for sequences.
"""

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
    """A flax module with a head on top of a torso, such as those in `algorithms.networks.heads`."""

    @property
    def role(self) -> str:
        """The group of parameters that the network belongs to: `actor` or `critic`."""
        ...

    @property
    def torso(self) -> nn.Module:
        """The part below the head, which turns observations into features."""
        ...

    @property
    def init(self) -> Callable[..., PyTree]:
        """The module's `init`: from a key and inputs to parameters."""
        ...

    @property
    def apply(self) -> Callable[..., Any]:
        """The module's `apply`: from parameters and inputs to outputs."""
        ...


def init_network(network: Network, key: jax.Array, *inputs: PyTree) -> PyTree:
    """Return the initial parameters of a network, for inputs of these shapes and dtypes; consumes `key`."""
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), inputs)
    # Networks of this library draw faster from unrolled keys. If the head or the torso is a user's, it gets the kind of
    # key that the user passed.
    is_ours = type(network).__module__.startswith("algorithms.") and type(network.torso) is Torso
    return network.init(unrolled(key) if is_ours else key, *zeros)


def init_stack(network: Network, key: jax.Array, num_networks: int, *inputs: PyTree) -> PyTree:
    """Return the initial parameters of `C` networks, stacked `[C, ...]`; consumes `key`."""
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), inputs)
    return jax.vmap(lambda key: init_network(network, key, *zeros))(split(key, num_networks))


def apply_batch(network: Network, params: PyTree, obs: PyTree, *inputs: PyTree) -> Any:
    """Return the outputs `[B, ...]` of a network for observations and other inputs `[B, ...]`.

    If `obs` is a `History` with leaves `[B, L, ...]`, the other inputs and all outputs are `[B * L, ...]`.
    """
    return _apply(network, params, obs.of(network.role) if isinstance(obs, History) else obs, *inputs)


def apply_stack(network: Network, params: PyTree, obs: PyTree, *inputs: PyTree) -> Any:
    """Return the outputs `[C, B, ...]` of `C` networks with stacked parameters `[C, ...]`; see `apply_batch`."""
    if not isinstance(obs, History):
        return map_stack(lambda params, inputs: _apply(network, params, *inputs), params, (obs, *inputs))
    num_networks = jax.tree.leaves(params)[0].shape[0]
    obs = obs.of(network.role)

    def apply_one(params: PyTree, carry: PyTree) -> Any:
        return _apply(network, params, obs._replace(carry=carry), *inputs)

    carry = jax.tree.map(lambda leaf: leaf[:, :num_networks], obs.carry)  # [B, C, ...], a memory for each network
    return jax.vmap(apply_one, in_axes=(0, 1))(params, carry)


def torso_features(network: Network, params: PyTree, obs: PyTree) -> jax.Array:
    """Return the outputs `float32[B, F]` of a network's torso for observations `[B, ...]`."""
    obs = obs.of(network.role) if isinstance(obs, History) else obs
    return _apply(network.torso, {"params": params["params"].get("torso", {})}, obs)


def _apply(network: Network | nn.Module, params: PyTree, obs: PyTree, *inputs: PyTree) -> Any:
    """Apply a network to every sample. If `obs` is a `History`, its carry must be the memory of this network."""
    apply: Any = jax.vmap(network.apply, in_axes=(None, *[0] * (1 + len(inputs))))
    if not isinstance(obs, History):
        return apply(params, obs, *inputs)
    shape = obs.is_first.shape
    inputs = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), inputs)
    outputs = apply(params, obs, *inputs)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), outputs)
