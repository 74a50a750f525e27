"""Steps of the optimizer and of target networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl_buffers.types import PyTree, Scalar

_ADAM = optax.scale_by_adam()
Schedule = Callable[[jax.Array], jax.Array]  # from the number of updates made to a factor; any of optax's will do


@dataclasses.dataclass(frozen=True)
class LinearDecay:
    """A schedule that falls in a straight line from 1 to `final` over `num_steps`, and stays there.

    Example:
        >>> print(LinearDecay(100)(jnp.int32(25)))
        0.75
    """

    num_steps: int
    final: float = 0.0

    def __call__(self, count: jax.Array) -> jax.Array:
        """Return the factor after `count` steps."""
        done = jnp.minimum(count.astype(jnp.float32) / self.num_steps, 1)
        return 1 - (1 - self.final) * done


def init(params: PyTree) -> optax.ScaleByAdamState:
    """Return the state of Adam for `params`; the learning rate is no part of it."""
    return _ADAM.init(params)  # pyright: ignore[reportReturnType]


def step(
    params: PyTree,
    grads: PyTree,
    state: optax.ScaleByAdamState,
    learning_rate: Scalar,
    max_grad_norm: Scalar | None = None,
) -> tuple[PyTree, optax.ScaleByAdamState]:
    """Take one step of Adam, along gradients whose global norm is first brought down to `max_grad_norm`."""
    rate = jnp.asarray(learning_rate, jnp.float32)
    if max_grad_norm is not None:
        grads = clip_by_global_norm(grads, max_grad_norm)
    updates, after = _ADAM.update(grads, state)
    return jax.tree.map(lambda param, update: param - rate * update, params, updates), after  # pyright: ignore[reportReturnType]


def scheduled(schedule: Schedule | None, num_updates: Any, *rates: Scalar) -> tuple[Scalar, ...]:
    """Multiply learning rates by the schedule's factor after `num_updates` updates of the agent.

    Adam's own count would not do: a group may rest at some updates, or take several steps in one.
    """
    if schedule is None:
        return rates
    factor = schedule(jnp.asarray(num_updates))
    return tuple(jnp.asarray(rate, jnp.float32) * factor for rate in rates)


def clip_by_global_norm(grads: PyTree, max_norm: Scalar) -> PyTree:
    """Scale gradients down so that their norm over all leaves is at most `max_norm`."""
    scale = jnp.minimum(1, jnp.asarray(max_norm, jnp.float32) / (optax.tree.norm(grads) + 1e-12))
    return jax.tree.map(lambda grad: grad * scale, grads)


def polyak(target: PyTree, online: PyTree, rate: Scalar, update: jax.Array | bool = True) -> PyTree:
    """Return `rate * target + (1 - rate) * online` where `update`, else the target as it is.

    A rate of 1 freezes the target, 0 copies the online parameters.
    """
    weight = jnp.where(update, 1 - jnp.asarray(rate, jnp.float32), 0)
    return jax.tree.map(lambda old, new: (1 - weight) * old + weight * new, target, online)


def count(num_updates: jax.Array, interval: Scalar) -> tuple[jax.Array, jax.Array]:
    """Count an update that was made; tell whether the target is due, as it is at every `interval`-th one."""
    num_updates = num_updates + 1
    return num_updates, is_due(num_updates, interval)


def is_due(num_updates: jax.Array, interval: Scalar) -> jax.Array:
    """Tell whether a number of updates is a multiple of `interval`; an interval of 0 counts as 1."""
    return num_updates % jnp.maximum(jnp.asarray(interval, jnp.int32), 1) == 0


def where(condition: jax.Array, chosen: PyTree, other: PyTree) -> PyTree:
    """Return one tree or the other; a delayed step so leaves parameters and optimizer exactly as they were."""
    return jax.tree.map(lambda one, two: jnp.where(condition, one, two), chosen, other)
