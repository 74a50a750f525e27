"""Add-ons that attract a policy to behaviors or repel it from them, by the Kullback-Leibler divergence."""

from __future__ import annotations

import abc
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.addons.behaviors import Behavior, divergence
from algorithms.networks.distributions import Distribution
from algorithms.types import Metrics
from jaxrl_buffers import _mesh as mesh
from jaxrl_buffers._checks import require_number
from jaxrl_buffers._mesh import Axis
from jaxrl_buffers.component import MESH_AXIS, Component, field
from jaxrl_buffers.types import PyTree, Sample, Scalar


class BehaviorKL(Component, abc.ABC):
    """The shared part of both add-ons: behaviors `b_i` with preferences `p_i`, their weights divided by the sum."""

    behaviors: tuple[Behavior, ...]
    weights: tuple[Scalar, ...] | None = None
    scale: Scalar = 1.0
    axis: Axis = field(static=True, default=None, kw_only=True, repr=False, metadata=MESH_AXIS)

    learning_rate: ClassVar[float] = 0.0  # the add-on has no parameters

    def __post_init__(self) -> None:
        owner = type(self).__name__
        _check_behaviors(owner, self.behaviors)
        require_number(self, "scale", self.scale, 0)
        if self.weights is None:
            return
        if not isinstance(self.weights, tuple) or len(self.weights) != len(self.behaviors):
            raise ValueError(
                f"{owner}(weights={self.weights!r}): give a tuple of {len(self.behaviors)} weights, one for each "
                "behavior."
            )
        for weight in self.weights:
            require_number(self, "weights", weight, 0)
        known = [float(weight) for weight in self.weights if isinstance(weight, (int, float, np.number))]
        if len(known) == len(self.weights) and not 0 < sum(known) < math.inf:
            raise ValueError(f"{owner}(weights={self.weights!r}): all weights must be finite, and one above 0.")

    @abc.abstractmethod
    def loss(
        self, params: PyTree, policy: Distribution, features: jax.Array, sample: Sample, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Return the term and metrics; `key` is not used."""

    def init(self, key: jax.Array, obs: PyTree, action: PyTree, features: jax.Array) -> PyTree:
        """Return `()`, because the add-on has no parameters."""
        return ()

    def divergences(self, policy: Distribution, sample: Sample) -> jax.Array:
        """Return the mean over samples `b` of `w_b KL(b_i || pi)`, for each of `I` behaviors: `float32[I]`."""
        each = [jnp.mean(sample.weights * divergence(fixed, policy, sample.batch.obs)) for fixed in self.behaviors]
        return jnp.stack(each)

    @property
    def preferences(self) -> jax.Array:
        """The weights of the behaviors divided by their sum, `float32[I]`."""
        if self.weights is None:
            return jnp.full(len(self.behaviors), 1 / len(self.behaviors), jnp.float32)
        stacked = jnp.stack([jnp.asarray(weight, jnp.float32) for weight in self.weights])
        return stacked / jnp.sum(stacked)


class AttractionKL(BehaviorKL):
    """Attract the policy `pi` to the nearest of some behaviors `b_i`.

        L = scale * min_i (mean_b w_b KL(b_i || pi) - ln p_i)

    `mean_b` is the mean over samples, and `w_b` are the importance weights of the samples. `p_i` are the weights of the
    behaviors divided by their sum.

    Args:
        behaviors: policies, each from `behavior(...)`.
        weights: one weight for each behavior. A larger weight makes the behavior count as nearer. A behavior with the
            weight 0 is left out. The weights may have any sum. None gives all behaviors the same weight.
        scale: factor on the whole term.

    Example:
        >>> from algorithms import DDQN, Discrete
        >>> from algorithms.addons import behavior
        >>> from algorithms.networks.distributions import Categorical
        >>> first = behavior(lambda obs: Categorical(jnp.log(jnp.broadcast_to(jnp.array([0.9, 0.1]), (len(obs), 2)))))
        >>> agent = DDQN(Discrete(2), addons=(AttractionKL((first,), scale=0.1),))
    """

    def loss(
        self, params: PyTree, policy: Distribution, features: jax.Array, sample: Sample, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Return the term, and the metric `kl`, the divergence from the nearest behavior; `key` is not used."""
        kl = self.divergences(policy, sample)
        distance = kl - jnp.log(self.preferences)
        # With several devices, the behavior that is nearest for the samples of all of them counts.
        axis = self.axis if distance.size > 1 else None
        nearest = jnp.argmin(mesh.mean(jax.lax.stop_gradient(distance), axis))
        least = jnp.min(distance) if axis is None else distance[nearest]
        return jnp.asarray(self.scale, jnp.float32) * least, {"kl": kl[nearest]}


class RepulsionKL(BehaviorKL):
    """Repel the policy `pi` from behaviors `b_i`.

        L = -scale * sum_i p_i mean_b w_b KL(b_i || pi)

    `mean_b` is the mean over samples, and `w_b` are the importance weights of the samples. `p_i` are the weights of the
    behaviors divided by their sum. The term has no minimum, so choose a `scale` that keeps it small compared with the
    algorithm's own loss. In PyTorchRL the weights of behaviors have no effect.

    Args:
        behaviors: policies, each from `behavior(...)`.
        weights: one weight for each behavior. They may have any sum. None gives all behaviors the same weight.
        scale: factor on the whole term.

    Example:
        >>> from algorithms import DDQN, Discrete
        >>> from algorithms.addons import behavior
        >>> from algorithms.networks.distributions import Categorical
        >>> old = behavior(lambda obs: Categorical(jnp.log(jnp.broadcast_to(jnp.array([0.9, 0.1]), (len(obs), 2)))))
        >>> agent = DDQN(Discrete(2), addons=(RepulsionKL((old,), scale=0.01),))
    """

    def loss(
        self, params: PyTree, policy: Distribution, features: jax.Array, sample: Sample, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Return the term, and the metric `kl`, the weighted mean of the divergences; `key` is not used."""
        mean = jnp.sum(self.preferences * self.divergences(policy, sample))
        return -jnp.asarray(self.scale, jnp.float32) * mean, {"kl": mean}


def _check_behaviors(owner: str, behaviors: object) -> None:
    """Refuse anything but a tuple of behaviors."""
    if not isinstance(behaviors, tuple) or not behaviors:
        raise ValueError(f"{owner}(behaviors={behaviors!r}): give a tuple of at least one behavior(...).")
    for fixed in behaviors:
        # JAX sees a plain function as a leaf, which cannot be an argument of compiled code.
        if not callable(fixed) or jax.tree_util.all_leaves([fixed]):
            raise ValueError(f"{owner}: {fixed!r} is not a behavior; make one by behavior(agent, state).")
