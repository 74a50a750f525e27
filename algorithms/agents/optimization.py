"""Steps of optimizers and of target networks.

Every agent has a field `optimizer`:

* None, the default: Adam for every group of parameters, with the agent's own learning rates, `schedule` and
  `max_grad_norm`;
* a transformation of optax, or an `Optimizer`: it steps every group, each with a state of its own. Its updates are
  applied as optax makes them, so learning rates and clipping are its own affair;
* a mapping such as `{"actor": optax.adamw(1e-4)}`: groups that are left out keep the default.

A setting of the agent that no group would use any more is refused, unless it has its default value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.core import FrozenDict

from algorithms.agents.optimizers import Optimizer
from algorithms.types import Groups, LearnerAgent, LearnerState
from jaxrl_buffers._checks import shown
from jaxrl_buffers.types import PyTree, Scalar

State = TypeVar("State", bound=LearnerState)
Params = TypeVar("Params", bound=Groups)
ADAM = optax.scale_by_adam()  # without a learning rate, which may be traced


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


def check(agent: LearnerAgent) -> None:
    """Refuse an optimizer that is none, and settings of the agent that it would leave without effect.

    A mapping is frozen in its place: static fields of a component must be hashable.
    """
    owner, given = type(agent).__name__, agent.optimizer
    names = (*agent.groups, "addons")
    if isinstance(given, Mapping):
        if unknown := [name for name in given if name not in names]:
            raise ValueError(
                f"{owner}(optimizer=...): {shown(unknown[0])} is no group of parameters; it has {', '.join(names)}."
            )
        object.__setattr__(agent, "optimizer", FrozenDict(given))
    for one in given.values() if isinstance(given, Mapping) else (given,):
        if one is not None and not isinstance(one, (optax.GradientTransformation, Optimizer)):
            raise ValueError(
                f"{owner}(optimizer={shown(one)}): give a transformation of optax such as optax.adamw(1e-3), an "
                "Optimizer(name, learning_rate), or a mapping from groups of parameters to these."
            )
    replaced = {name for name in names if _own_optimizer(agent, name) is not None}
    for component, setting, groups in _settings(agent):
        if replaced.issuperset(groups) and _is_changed(component, setting):
            raise ValueError(
                f"{type(component).__name__}({setting}={shown(getattr(component, setting))}): {owner} was given an "
                f"`optimizer` for {', '.join(groups)}, so `{setting}` has no effect; leave it out, and give the "
                "optimizer its own learning rate, schedule and clipping."
            )


def init(agent: LearnerAgent, params: Params) -> Params:
    """Return the states of the optimizers of all groups of `params`."""
    states = {name: _init(agent, name, getattr(params, name)) for name in agent.groups}
    return params._replace(**states, addons=tuple(_init(agent, "addons", own) for own in params.addons))


def step(
    agent: LearnerAgent, state: State, grads: Groups, groups: Iterable[str], is_due: jax.Array | None = None
) -> State:
    """Return the state with some groups of its parameters stepped along their gradients.

    By default each group takes a step of Adam,

        params <- params - learning_rate * schedule(num_updates) * adam(clip(grads, max_grad_norm))

    The schedule is a function of the agent's updates. Adam's own count would not do: a group may rest at some updates,
    or take several steps in one.

    Args:
        agent: whose settings are used.
        state: with the parameters and the optimizers; all that is not stepped stays as it is.
        grads: with the gradients of these groups.
        groups: the names of the groups to step.
        is_due: `bool[]`; where False, parameters and optimizers of these groups stay exactly as they are, too.
    """
    params, optimizer = {}, {}
    for name in groups:
        before = getattr(state.params, name), getattr(state.optimizer, name)
        after = _step_group(agent, state, name, *before, getattr(grads, name))
        params[name], optimizer[name] = after if is_due is None else where(is_due, after, before)
    return state._replace(params=state.params._replace(**params), optimizer=state.optimizer._replace(**optimizer))


def step_adam(
    params: PyTree, grads: PyTree, state: PyTree, learning_rate: Scalar, max_grad_norm: Scalar | None = None
) -> tuple[PyTree, PyTree]:
    """Return parameters and the state of `ADAM` after a step; gradients are clipped to the norm `max_grad_norm`."""
    grads = grads if max_grad_norm is None else clip_by_global_norm(grads, max_grad_norm)
    updates, after = ADAM.update(grads, state)
    rate = jnp.asarray(learning_rate, jnp.float32)
    return jax.tree.map(lambda param, update: param - rate * update, params, updates), after


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


def is_due(num_updates: jax.Array, interval: Scalar) -> jax.Array:
    """Return whether a number of updates is a multiple of `interval`; an interval of 0 counts as 1."""
    return num_updates % jnp.maximum(jnp.asarray(interval, jnp.int32), 1) == 0


def where(condition: jax.Array, chosen: PyTree, other: PyTree) -> PyTree:
    """Return the first tree where the condition holds, else the second one, with exactly its bits."""
    return jax.tree.map(lambda one, two: jnp.where(condition, one, two), chosen, other)


def _own_optimizer(agent: LearnerAgent, group: str) -> optax.GradientTransformation | None:
    """Return the optimizer that was given for a group; None for the default."""
    given = agent.optimizer.get(group) if isinstance(agent.optimizer, Mapping) else agent.optimizer
    return given.transformation if isinstance(given, Optimizer) else given


def _init(agent: LearnerAgent, group: str, params: PyTree) -> PyTree:
    return (_own_optimizer(agent, group) or ADAM).init(params)


def _step_group(
    agent: LearnerAgent, state: LearnerState, group: str, params: PyTree, optimizer: PyTree, grads: PyTree
) -> tuple[PyTree, PyTree]:
    """Return the parameters of a group, and its optimizer, after a step; each add-on has an optimizer of its own."""
    own = _own_optimizer(agent, group)
    factor = None if agent.schedule is None else agent.schedule(state.num_updates)
    if group == "addons":
        rates = [addon.learning_rate for addon in agent.addons]
        each = [_step(own, *one, factor, None) for one in zip(params, optimizer, grads, rates, strict=True)]
        return tuple(one for one, _ in each), tuple(one for _, one in each)
    rule = agent.groups[group]
    limit = agent.max_grad_norm if rule.is_clipped else None
    return _step(own, params, optimizer, grads, getattr(agent, rule.learning_rate), factor, limit)


def _step(
    own: optax.GradientTransformation | None,
    params: PyTree,
    optimizer: PyTree,
    grads: PyTree,
    learning_rate: Scalar,
    factor: jax.Array | None,
    max_grad_norm: Scalar | None,
) -> tuple[PyTree, PyTree]:
    """Take a step of an optimizer that was given, or else of Adam."""
    if own is not None:
        updates, after = own.update(grads, optimizer, params)
        return optax.apply_updates(params, updates), after
    rate = learning_rate if factor is None else jnp.asarray(learning_rate, jnp.float32) * factor
    return step_adam(params, grads, optimizer, rate, max_grad_norm)


def _settings(agent: LearnerAgent) -> list[tuple[object, str, list[str]]]:
    """Return every setting that the default optimizers read: whose it is, its name, and the groups that use it."""
    users: dict[str, list[str]] = {}
    for group, rule in agent.groups.items():
        for setting in (rule.learning_rate, "schedule", *(("max_grad_norm",) if rule.is_clipped else ())):
            users.setdefault(setting, []).append(group)
    users["schedule"] += ["addons"] if agent.addons else []
    of_addons = [(addon, "learning_rate", ["addons"]) for addon in agent.addons if dataclasses.is_dataclass(addon)]
    return [*((agent, setting, groups) for setting, groups in users.items()), *of_addons]


def _is_changed(component: Any, setting: str) -> bool:
    """Return whether a setting is known to differ from its default. A traced number is not known."""
    defaults = {field.name: field.default for field in dataclasses.fields(component)}
    value = getattr(component, setting)
    is_known = callable(value) or isinstance(value, (int, float, np.number))
    return setting in defaults and is_known and value != defaults[setting]
