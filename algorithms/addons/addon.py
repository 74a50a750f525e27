"""How every agent learns from its add-ons.

    L = L_pi + sum_j L_j(policy, features, sample; params_j)

`L_j` is the term of add-on `j`. The gradient of a sum is the sum of the gradients. So an agent first computes its own
gradients as if there were no add-ons. Then `add_gradients` adds the gradients of all `L_j`. These gradients reach the
policy and the parameters of the add-ons, which are the group `addons` of the agent's parameters. Clipping comes
later, in the agent's `apply`.
"""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp

from algorithms.agents import optimization
from algorithms.types import Addon, Groups, LearnerAgent, LearnerState, Metrics, StepInfo
from jaxrl_buffers._random.hashing import fold_in, split
from jaxrl_buffers.types import PyTree, Sample

State = TypeVar("State", bound=LearnerState)
Grads = TypeVar("Grads", bound=Groups)
# The number that is folded into an agent's key for its add-ons. `split(key, n)` is `fold_in(key, i)` for all i below n.
# Agents split their keys into fewer parts than this number, so add-ons get different random numbers.
_STREAM = 0xADD0


def check(owner: str, addons: object) -> None:
    """Refuse anything but a tuple of add-ons."""
    if not isinstance(addons, tuple):
        raise ValueError(f"{owner}(addons={addons!r}): give a tuple of add-ons, such as (RewardPrediction(),).")
    for addon in addons:
        if isinstance(addon, type) or not isinstance(addon, Addon):
            raise ValueError(
                f"{owner}(addons=...): {addon!r} is not an add-on; give AttractionKL, RepulsionKL, RewardPrediction, "
                "or a component of your own with `learning_rate`, `init` and `loss`."
            )


def init(agent: LearnerAgent, state: State, key: jax.Array, obs: PyTree, action: PyTree) -> State:
    """Return an agent's first state, with the parameters and optimizers of its add-ons.

    Add-ons draw from a key that is folded from `key`. So the initial networks of an agent do not depend on its add-ons.
    """
    if not agent.addons:
        return state
    obs, action = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (obs, action))
    features = agent.features(state, jax.tree.map(lambda leaf: leaf[None], obs))[0]
    keys = split(fold_in(key, _STREAM), len(agent.addons))
    own = tuple(addon.init(key, obs, action, features) for addon, key in zip(agent.addons, keys, strict=True))
    params = state.params._replace(addons=own)
    return state._replace(params=params, optimizer=optimization.init(agent, params))


def add_gradients(
    agent: LearnerAgent, state: LearnerState, sample: Sample, key: jax.Array, grads: Grads, info: StepInfo
) -> tuple[Grads, StepInfo]:
    """Return the sum of the gradients of an agent and of its add-ons, and the metrics of all of them.

    Add-ons draw from a key that is folded from `key`. The names of the metrics of add-on `j` begin with `addon{j}_`.
    """
    if not agent.addons:
        return grads, info
    keys = split(fold_in(key, _STREAM), len(agent.addons))

    def total(params: Groups) -> tuple[jax.Array, Metrics]:
        learner = state._replace(params=params)
        policy = agent.distribution(learner, sample.batch.obs)
        features = agent.features(learner, sample.batch.obs)
        loss, metrics = jnp.zeros((), jnp.float32), {}
        for index, (addon, own, key) in enumerate(zip(agent.addons, params.addons, keys, strict=True)):
            term, of_addon = addon.loss(own, policy, features, sample, key)
            loss = loss + term
            metrics |= {f"addon{index}_{name}": value for name, value in {"loss": term, **of_addon}.items()}
        return loss, metrics

    (_, metrics), added = jax.value_and_grad(total, has_aux=True)(state.params)
    summed = jax.tree.map(jnp.add, grads, added._replace(addons=()))
    return summed._replace(addons=added.addons), info._replace(metrics={**info.metrics, **metrics})
