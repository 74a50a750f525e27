"""The protocol of terms in a policy's loss."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import jax

from algorithms.networks.distributions import Distribution
from algorithms.types.data import Metrics
from jaxrl_buffers.types import PyTree, Sample, Scalar


@runtime_checkable
class Addon(Protocol):
    """A term to add to the loss of a policy: a frozen pytree of hyper-parameters with pure methods."""

    @property
    def learning_rate(self) -> Scalar:
        """The learning rate of Adam for the add-on's own parameters."""
        ...

    def init(self, key: jax.Array, obs: PyTree, action: PyTree, features: jax.Array) -> PyTree:
        """Return the add-on's own initial parameters, or `()` if it has none; consumes `key`.

        Args:
            key: a PRNG key.
            obs: an unbatched observation.
            action: an unbatched action.
            features: `float32[F]`, the output of the policy's torso for that observation.
        """
        ...

    def loss(
        self, params: PyTree, policy: Distribution, features: jax.Array, sample: Sample, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Return the term of the loss, `float32[]`, and metrics; consumes `key`.

        Args:
            params: the add-on's own parameters.
            policy: the learner's distributions at `sample.batch.obs`, `[B, ...]`.
            features: `float32[B, F]`, the output of the policy's torso for `sample.batch.obs`.
            sample: the batch, and the weight `sample.weights` of each sample. Multiply the loss of a sample by its
                weight.
            key: a PRNG key.
        """
        ...
