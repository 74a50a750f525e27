"""Attraction to behaviour policies, and repulsion from them, by the Kullback-Leibler divergence."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.addons.behaviors import Behavior, divergence
from algorithms.networks.distributions import Distribution
from algorithms.types import Metrics
from jaxrl_buffers._checks import require_number
from jaxrl_buffers.component import Component
from jaxrl_buffers.types import PyTree, Sample, Scalar


class AttractionKL(Component):
    """Draw the policy to the nearest of some behaviours.

        L = scale * min_i (mean_b w_b KL(b_i || pi) - ln p_i)

    with importance weights `w_b` of samples and `p_i`, the weights of behaviours divided by their sum.

    Args:
        behaviors: policies, each from `behavior(...)`.
        weights: how much each is preferred, of any sum; all the same by default. A weight of 0 leaves it out.
        scale: factor on the whole term.

    Example:
        >>> from algorithms import DDQN, Discrete
        >>> from algorithms.addons import behavior
        >>> from algorithms.networks.distributions import Categorical
        >>> first = behavior(lambda obs: Categorical(jnp.log(jnp.broadcast_to(jnp.array([0.9, 0.1]), (len(obs), 2)))))
        >>> agent = DDQN(Discrete(2), addons=(AttractionKL((first,), scale=0.1),))
    """

    behaviors: tuple[Behavior, ...]
    weights: tuple[Scalar, ...] | None = None
    scale: Scalar = 1.0

    learning_rate = 0.0  # nothing of its own is trained

    def __post_init__(self):
        _check(self, self.behaviors, self.weights, self.scale)

    def init(self, key: jax.Array, obs: PyTree, action: PyTree, features: jax.Array) -> PyTree:
        """There is nothing to train."""
        return ()

    def loss(
        self, params: PyTree, policy: Distribution, features: jax.Array, sample: Sample, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Return the term, and the divergence `kl` from the behaviour that is nearest; `key` is not used."""
        kl, weights = _divergences(self.behaviors, policy, sample), _normalized(self.weights, len(self.behaviors))
        distance = kl - jnp.log(weights)
        return jnp.asarray(self.scale, jnp.float32) * jnp.min(distance), {"kl": kl[jnp.argmin(distance)]}


class RepulsionKL(Component):
    """Drive the policy away from behaviours.

        L = -scale * sum_i p_i mean_b w_b KL(b_i || pi)

    It has no minimum: keep `scale` small beside the algorithm's own loss. In PyTorchRL the weights of behaviours were
    without effect.

    Args:
        behaviors: policies, each from `behavior(...)`.
        weights: how much each counts, of any sum; all the same by default.
        scale: factor on the whole term.
    """

    behaviors: tuple[Behavior, ...]
    weights: tuple[Scalar, ...] | None = None
    scale: Scalar = 1.0

    learning_rate = 0.0  # nothing of its own is trained

    def __post_init__(self):
        _check(self, self.behaviors, self.weights, self.scale)

    def init(self, key: jax.Array, obs: PyTree, action: PyTree, features: jax.Array) -> PyTree:
        """There is nothing to train."""
        return ()

    def loss(
        self, params: PyTree, policy: Distribution, features: jax.Array, sample: Sample, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Return the term, and the weighted divergence `kl` from the behaviours; `key` is not used."""
        kl, weights = _divergences(self.behaviors, policy, sample), _normalized(self.weights, len(self.behaviors))
        mean = jnp.sum(weights * kl)
        return -jnp.asarray(self.scale, jnp.float32) * mean, {"kl": mean}


def _divergences(behaviors: tuple[Behavior, ...], policy: Distribution, sample: Sample) -> jax.Array:
    """Return the mean divergences `float32[I]` of all behaviours."""
    each = [jnp.mean(sample.weights * divergence(fixed, policy, sample.batch.obs)) for fixed in behaviors]
    return jnp.stack(each)


def _normalized(weights: tuple[Scalar, ...] | None, num: int) -> jax.Array:
    if weights is None:
        return jnp.full(num, 1 / num, jnp.float32)
    stacked = jnp.stack([jnp.asarray(weight, jnp.float32) for weight in weights])
    return stacked / jnp.sum(stacked)


def _check(component: Any, behaviors: Any, weights: Any, scale: Any) -> None:
    owner = type(component).__name__
    if not isinstance(behaviors, tuple) or not behaviors:
        raise ValueError(f"{owner}(behaviors={behaviors!r}): give a tuple of at least one behavior(...).")
    for fixed in behaviors:
        # A plain function is a leaf to JAX, and could not enter compiled code.
        if not callable(fixed) or jax.tree_util.all_leaves([fixed]):
            raise ValueError(f"{owner}: {fixed!r} is no behaviour; make one by behavior(agent, state) or behavior(f).")
    require_number(component, "scale", scale, 0)
    if weights is None:
        return
    if not isinstance(weights, tuple) or len(weights) != len(behaviors):
        raise ValueError(f"{owner}(weights={weights!r}): give a tuple with a weight for each of {len(behaviors)}.")
    for weight in weights:
        require_number(component, "weights", weight, 0)
    if all(isinstance(weight, (int, float, np.number)) for weight in weights) and not 0 < sum(weights) < math.inf:
        raise ValueError(f"{owner}(weights={weights!r}): at least one weight must be above 0, and all finite.")
