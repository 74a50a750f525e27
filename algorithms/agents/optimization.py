"""How agents step their parameters, and how target networks follow these parameters.

Every agent has a field `optimizer`. Its value is one of these:

* None, the default: Adam steps every group of parameters, with the agent's own learning rates, `schedule` and
  `max_grad_norm`.
* A gradient transformation of optax, or an `Optimizer`: it steps every group, with a separate state for each group. It
  has its own learning rate and its own clipping.
* A mapping from names of groups to optimizers, such as `{"actor": optax.adamw(1e-4)}`: groups that are not in the
  mapping keep the default.

If a group has its own optimizer, the agent's settings for Adam have no effect on that group. A setting that has no
effect on any group must keep its default. Otherwise the agent is refused.
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

from algorithms.optimizers import Optimizer
from algorithms.types import GroupRule, Groups, LearnerAgent, LearnerState, TargetAgent, TargetState
from jaxrl_buffers._checks import require_count, require_number, shown
from jaxrl_buffers.types import PyTree, Scalar

State = TypeVar("State", bound=LearnerState)
WithTarget = TypeVar("WithTarget", bound=TargetState)
Params = TypeVar("Params", bound=Groups)
ADAM = optax.scale_by_adam()  # the learning rate may be traced, so `step_adam` applies it


def check(agent: LearnerAgent) -> None:
    """Refuse a bad `optimizer` of an agent, and changed settings of the agent that the optimizer does not use.

    A mapping of optimizers is replaced by a frozen mapping, because static fields of a component must be hashable.
    """
    owner, given = type(agent).__name__, agent.optimizer
    names = (*agent.groups, "addons")
    if isinstance(given, Mapping):
        if unknown := [name for name in given if name not in names]:
            raise ValueError(
                f"{owner}(optimizer=...): {shown(unknown[0])} is not a group of parameters; the groups "
                f"are {', '.join(names)}."
            )
        object.__setattr__(agent, "optimizer", FrozenDict(given))
    for one in given.values() if isinstance(given, Mapping) else (given,):
        if one is not None and not isinstance(one, (optax.GradientTransformation, Optimizer)):
            raise ValueError(
                f"{owner}(optimizer={shown(one)}): give a transformation of optax such as optax.adamw(1e-3), an "
                "Optimizer(name, learning_rate), or a mapping from groups of parameters to these."
            )
    replaced = {name for name in names if _given_optimizer(agent, name) is not None}
    for component, setting, groups in _settings(agent):
        if replaced.issuperset(groups) and _is_changed(component, setting):
            raise ValueError(
                f"{type(component).__name__}({setting}={shown(getattr(component, setting))}): {owner} was given an "
                f"`optimizer` for {', '.join(groups)}, so `{setting}` has no effect; leave it out, and give the "
                "optimizer its own learning rate, schedule and clipping."
            )


def check_target(agent: TargetAgent) -> None:
    """Refuse a bad `polyak` or `target_update_interval`."""
    require_number(agent, "polyak", agent.polyak, 0, 1)
    require_count(agent, "target_update_interval", agent.target_update_interval)


def init(agent: LearnerAgent, params: Params) -> Params:
    """Return the initial states of the optimizers, one for each group of `params`."""
    states = {name: _init(agent, name, getattr(params, name)) for name in agent.groups}
    return params._replace(**states, addons=tuple(_init(agent, "addons", own) for own in params.addons))


def step(
    agent: LearnerAgent, state: State, grads: Groups, groups: Iterable[str], is_due: jax.Array | None = None
) -> State:
    """Return the state after one step of some groups of parameters.

    By default each group makes a step of Adam:

        params <- params - learning_rate * schedule(num_updates) * adam(clip(grads, max_grad_norm))

    The schedule counts the updates of the agent. It does not count the steps of Adam, because some groups do not step
    in every update, and others make several steps in one update.

    Args:
        agent: the agent, for its optimizers and their settings.
        state: the agent's state, with parameters and states of optimizers.
        grads: the gradients, at least of the groups to step.
        groups: the names of the groups to step. All other groups stay unchanged.
        is_due: `bool[]`, whether to make the step at all. If False, nothing changes.
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
    """Return parameters and the state of `ADAM` after one step. `max_grad_norm=None` does not clip gradients."""
    grads = grads if max_grad_norm is None else clip_by_global_norm(grads, max_grad_norm)
    updates, after = ADAM.update(grads, state)
    rate = jnp.asarray(learning_rate, jnp.float32)
    return jax.tree.map(lambda param, update: param - rate * update, params, updates), after


def follow(agent: TargetAgent, state: WithTarget, online: PyTree, due: jax.Array | None = None) -> WithTarget:
    """Count one update, and move the target networks towards the trained parameters if a move is due:

        target <- polyak * target + (1 - polyak) * online

    Args:
        agent: the agent, for `polyak` and `target_update_interval`.
        state: the agent's state after the steps of an update.
        online: the trained parameters, a pytree like `state.target`.
        due: `bool[]`, whether to move the targets. By default they move in every `target_update_interval`-th update.
    """
    num_updates = state.num_updates + 1
    due = is_due(num_updates, agent.target_update_interval) if due is None else due
    return state._replace(target=polyak(state.target, online, agent.polyak, due), num_updates=num_updates)


def clip_by_global_norm(grads: PyTree, max_norm: Scalar) -> PyTree:
    """Scale gradients down so that their norm over all leaves is at most `max_norm`.

    Example:
        >>> print(clip_by_global_norm(jnp.array([3.0, 4.0]), 1.0))
        [0.6 0.8]
    """
    scale = jnp.minimum(1, jnp.asarray(max_norm, jnp.float32) / (optax.tree.norm(grads) + 1e-12))
    return jax.tree.map(lambda grad: grad * scale, grads)


def polyak(target: PyTree, online: PyTree, rate: Scalar, update: jax.Array | bool = True) -> PyTree:
    """Return `rate * target + (1 - rate) * online` if `update`, else the unchanged target.

    A rate of 1 keeps the target, and a rate of 0 copies the online parameters.

    Example:
        >>> print(polyak(jnp.zeros(2), jnp.ones(2), 0.75))
        [0.25 0.25]
    """
    weight = jnp.where(update, 1 - jnp.asarray(rate, jnp.float32), 0)
    return jax.tree.map(lambda old, new: (1 - weight) * old + weight * new, target, online)


def settings_of_adam(rules: Mapping[str, GroupRule]) -> dict[str, list[str]]:
    """Return the settings of the default optimizers, each with the groups of parameters that use it.

    Example:
        >>> from algorithms import DDPG
        >>> settings_of_adam(DDPG.groups)["learning_rate_pi"]
        ['actor']
    """
    users: dict[str, list[str]] = {}
    for group, rule in rules.items():
        for setting in (rule.learning_rate, "schedule", *(("max_grad_norm",) if rule.is_clipped else ())):
            users.setdefault(setting, []).append(group)
    return users


def is_due(num_updates: jax.Array, interval: Scalar) -> jax.Array:
    """Return whether a number of updates is a multiple of `interval`; an interval of 0 counts as 1."""
    return num_updates % jnp.maximum(jnp.asarray(interval, jnp.int32), 1) == 0


def where(condition: jax.Array, chosen: PyTree, other: PyTree) -> PyTree:
    """Return `chosen` if the condition `bool[]` is True, else `other`. All bits of the leaves are kept."""
    return jax.tree.map(lambda one, two: jnp.where(condition, one, two), chosen, other)


def _given_optimizer(agent: LearnerAgent, group: str) -> optax.GradientTransformation | None:
    """Return the optimizer that the agent was given for a group; None for the default."""
    given = agent.optimizer.get(group) if isinstance(agent.optimizer, Mapping) else agent.optimizer
    return given.transformation if isinstance(given, Optimizer) else given


def _init(agent: LearnerAgent, group: str, params: PyTree) -> PyTree:
    return (_given_optimizer(agent, group) or ADAM).init(params)


def _step_group(
    agent: LearnerAgent, state: LearnerState, group: str, params: PyTree, optimizer: PyTree, grads: PyTree
) -> tuple[PyTree, PyTree]:
    """Return the parameters of a group and the state of its optimizer after a step.

    The group `addons` is a tuple with one entry for each add-on. Each entry has its own state of the optimizer.
    """
    given = _given_optimizer(agent, group)

    def step_one(
        params: PyTree, optimizer: PyTree, grads: PyTree, rate: Scalar, limit: Scalar | None
    ) -> tuple[PyTree, PyTree]:
        if given is not None:
            updates, after = given.update(grads, optimizer, params)
            return optax.apply_updates(params, updates), after
        if agent.schedule is not None:
            rate = jnp.asarray(rate, jnp.float32) * agent.schedule(state.num_updates)
        return step_adam(params, grads, optimizer, rate, limit)

    if group == "addons":
        rates = [addon.learning_rate for addon in agent.addons]
        steps = [step_one(*one, None) for one in zip(params, optimizer, grads, rates, strict=True)]
        return tuple(after for after, _ in steps), tuple(after for _, after in steps)
    rule = agent.groups[group]
    limit = agent.max_grad_norm if rule.is_clipped else None
    return step_one(params, optimizer, grads, getattr(agent, rule.learning_rate), limit)


def _settings(agent: LearnerAgent) -> list[tuple[object, str, list[str]]]:
    """Return every setting of the default optimizers: the agent or add-on that has it, its name, and its groups."""
    users = settings_of_adam(agent.groups)
    users["schedule"] += ["addons"] if agent.addons else []
    of_addons = [(addon, "learning_rate", ["addons"]) for addon in agent.addons if dataclasses.is_dataclass(addon)]
    return [*((agent, setting, groups) for setting, groups in users.items()), *of_addons]


def _is_changed(component: Any, setting: str) -> bool:
    """Return whether a setting is known to differ from its default. The value of a traced number is not known."""
    defaults = {field.name: field.default for field in dataclasses.fields(component)}
    value = getattr(component, setting)
    is_known = callable(value) or isinstance(value, (int, float, np.number))
    return setting in defaults and is_known and value != defaults[setting]
