"""What every agent provides, and what crosses the border between agents and the training loop."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from jaxrl_buffers.types import PyTree, Sample, Transition

Metrics = dict[str, jax.Array]  # a flat dict of scalars


class StepInfo(NamedTuple):
    """What a gradient tells besides itself."""

    priorities: jax.Array  # float32[B], absolute TD errors; float32[B, L] of sequences
    metrics: Metrics


@runtime_checkable
class Agent(Protocol):
    """An algorithm: a frozen pytree of hyper-parameters with pure methods.

    `grads` covers every trained quantity, so that averaging gradients over devices is all that training in parallel
    needs. Clipping, delays and target averaging live in `apply`, behind any such averaging.
    """

    @property
    def num_passes(self) -> int:
        """How often `gradients` and `apply` run for one sample."""
        ...

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> Any:
        """Return the state for observations and actions like these unbatched examples; consumes `key`."""
        ...

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return what acting remembers between steps, leaves `[N, ...]`; `()` if nothing."""
        ...

    def act(
        self, state: Any, obs: PyTree, carry: PyTree, key: jax.Array, deterministic: bool = False
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return actions `[N, ...]` in the environment's units, the next carry, and extras to store; consumes `key`."""
        ...

    def observe(self, state: Any, chunk: Transition) -> Any:
        """Take note of collected rows `[K, N, ...]`, for example in observation statistics."""
        ...

    def gradients(self, state: Any, sample: Sample, key: jax.Array, pass_index: int) -> tuple[PyTree, StepInfo]:
        """Return the gradients of all trained quantities, all taken at the present parameters; consumes `key`.

        All passes over one sample get the same key, and so may make the same draws. Priorities are those of pass 0.
        """
        ...

    def apply(self, state: Any, grads: PyTree) -> Any:
        """Take one step along the gradients."""
        ...
