"""Recurrent cores, with which a network remembers earlier observations.

A network with a memory gets a `History` instead of an observation, and returns one output for each row of the history.
The inputs of all rows are multiplied by the input weights at once. A loop over rows computes only the recurrent part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxrl_buffers._checks import require_choice, require_integer
from jaxrl_buffers._xla import one_by_one, scan_carries
from jaxrl_buffers.types import PyTree

KINDS = ("gru", "lstm")
Gates = Sequence[tuple[jax.Array, jax.Array]]  # for each gate, its recurrent kernel and bias


class History(NamedTuple):
    """Consecutive observations of one environment, and the memory before the first observation.

    If `following` is None, a network returns one output for each row of `obs`. Otherwise it returns one output for each
    observation in `following` instead. `following[i]` comes directly after row `last[i]`. The network sees it with the
    memory of all rows up to and including row `last[i]`.
    """

    obs: PyTree  # [L, ...]
    carry: PyTree  # the memory before the first row: a dict from role to memory, or None for an empty memory
    is_first: Any  # bool[L], rows that begin an episode; the memory is emptied before them
    following: PyTree = None  # [L, ...]
    last: Any = None  # int32[L]; None if following[i] comes directly after row i
    is_burn_in: Any = None  # bool[L], rows that only refresh the memory; no gradient passes back through them

    @property
    def rows(self) -> PyTree:
        """The observations of `B` histories `[B, L, ...]` as one batch of rows `[B * L, ...]`."""
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), self.obs)

    def of(self, role: str | None) -> History:
        """Return the history with only the memory of the networks in one role, such as `actor`."""
        return self._replace(carry=self.carry[role] if isinstance(self.carry, dict) else self.carry)


class RecurrentCore(nn.Module):
    """A gated recurrent unit (GRU) or a long short-term memory (LSTM), after a dense layer.

    GRU, with `x` the input and `h` the carry (Cho et al. 2014, https://arxiv.org/abs/1406.1078):

        r, z = sigmoid(W_r x + U_r h + b_r), sigmoid(W_z x + U_z h + b_z)
        n    = tanh(W_n x + b_n + r * (U_n h + c_n))
        h'   = (1 - z) n + z h

    LSTM, with the carry `(c, h)` (Hochreiter and Schmidhuber 1997). 1 is added to the input of the forget gate `f`,
    so that a new network forgets slowly:

        i, f, o = sigmoid(W_i x + U_i h + b_i), ...
        c'      = f c + i tanh(W_g x + U_g h + b_g)
        h'      = o tanh(c')

    Args:
        kind: `gru` or `lstm`.
        size: `H`, the number of outputs. A GRU remembers `H` numbers, and an LSTM remembers `2 H`.
    """

    kind: str = "gru"
    size: int = 64

    def __post_init__(self) -> None:
        require_choice("RecurrentCore", "kind", self.kind, KINDS)
        require_integer("RecurrentCore", "size", self.size, 1)
        super().__post_init__()

    @property
    def carry(self) -> jax.Array:
        """An empty memory: `float32[H]` for a GRU, `float32[2, H]` for an LSTM."""
        return jnp.zeros((self.size,) if self.kind == "gru" else (2, self.size), jnp.float32)

    @nn.compact
    def __call__(
        self,
        inputs: jax.Array,
        carry: PyTree,
        is_first: jax.Array,
        is_burn_in: jax.Array | None = None,
        last: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Apply the core to the rows of a history, and then to successors of its rows if there are any.

        Args:
            inputs: `[L, F]`, the rows; or `[2 L, F]`, the rows and then `L` successors of rows.
            carry: the memory before the first row; None for an empty memory.
            is_first: `bool[L]`, rows that begin an episode.
            is_burn_in: `bool[L]`, rows through which no gradient passes back; None if there are none.
            last: `int32[L]`: successor `i` comes directly after row `last[i]`; None if it comes directly after row `i`.

        Returns:
            The memory after the last row, and outputs `[L, H]`. The outputs are those of the successors, or those of
            the rows if there are no successors.
        """
        num_gates = 3 if self.kind == "gru" else 4
        cell = _gru if self.kind == "gru" else _lstm
        kernel = self.param("recurrent_kernel", _orthogonal_blocks(num_gates), (self.size, num_gates * self.size))
        bias = self.param("recurrent_bias", nn.initializers.zeros, (num_gates * self.size,))
        gates = nn.Dense(num_gates * self.size)(inputs)
        weights = tuple(zip(jnp.split(kernel, num_gates, axis=-1), jnp.split(bias, num_gates), strict=True))

        def step(carry: jax.Array, gates: Sequence[jax.Array], row: PyTree) -> jax.Array:
            is_first, is_burn_in = row
            after = cell(gates, jnp.where(is_first, jnp.zeros_like(carry), carry), weights)
            return after if is_burn_in is None else jnp.where(is_burn_in, jax.lax.stop_gradient(after), after)

        num_rows = is_first.shape[0]
        carry = self.carry if carry is None else carry
        final, carries = scan_carries(step, carry, gates[:num_rows], num_gates, (is_first, is_burn_in))
        if inputs.shape[0] > num_rows:
            successors = tuple(jnp.split(gates[num_rows:], num_gates, axis=-1))
            carries = carries if last is None else carries[last]
            carries = jax.vmap(cell, in_axes=(0, 0, None))(successors, carries, weights)
        return final, carries if self.kind == "gru" else carries[:, 1]


def _gru(gates: Sequence[jax.Array], carry: jax.Array, weights: Gates) -> jax.Array:
    reset, keep, new = ((gate, carry @ kernel + bias) for gate, (kernel, bias) in zip(gates, weights, strict=True))
    reset, keep = (jax.nn.sigmoid(sum(gate)) for gate in (reset, keep))
    new = jnp.tanh(new[0] + reset * new[1])
    return (1 - keep) * new + keep * carry


def _lstm(gates: Sequence[jax.Array], carry: jax.Array, weights: Gates) -> jax.Array:
    enter, forget, new, show = (
        gate + carry[1] @ kernel + bias for gate, (kernel, bias) in zip(gates, weights, strict=True)
    )
    cell = jax.nn.sigmoid(forget + 1) * carry[0] + jax.nn.sigmoid(enter) * jnp.tanh(new)
    return jnp.stack([cell, jax.nn.sigmoid(show) * jnp.tanh(cell)])


def _orthogonal_blocks(num_gates: int) -> nn.initializers.Initializer:
    """Return an initializer that makes the matrix of each gate orthogonal."""

    def init(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
        size = shape[0]
        block = one_by_one(lambda key: nn.initializers.orthogonal()(key, (size, size), dtype))
        blocks = [block(part) for part in jax.random.split(key, num_gates)]
        return jnp.concatenate(blocks, axis=1)

    return init
