"""What an add-on is, and how every agent learns from its add-ons.

    L = L_pi + sum_j L_j(policy, features, sample; params_j)

The gradient of a sum is the sum of gradients: agents compute theirs as ever, `add_gradients` computes those of all
`L_j` with respect to the same parameters and adds them, before anything is clipped. So they reach the policy, and the
parameters of the add-ons themselves, which are the last group of an agent's parameters and have an Adam each.

An agent that takes add-ons has fields `addons` and `schedule`, a group `addons` in the NamedTuples `state.params` and
`state.optimizer`, and tells its `distribution(state, obs)` and `features(state, obs)`.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp

from algorithms import optimization
from algorithms.distributions import Distribution
from algorithms.types import Metrics, StepInfo
from jaxrl_buffers._random.hashing import fold_in, split
from jaxrl_buffers.types import PyTree, Sample, Scalar

State = TypeVar("State")
_STREAM = 0xADD0  # folded into an agent's keys; no split of theirs reaches so far


@runtime_checkable
class Addon(Protocol):
    """A term of the policy's loss: a frozen pytree of hyper-parameters with pure methods."""

    @property
    def learning_rate(self) -> Scalar:
        """The rate of Adam for the add-on's own parameters."""
        ...

    def init(self, key: jax.Array, obs: PyTree, action: PyTree, features: jax.Array) -> PyTree:
        """Return the add-on's own parameters, `()` if there are none; consumes `key`.

        Args:
            key: a PRNG key.
            obs: an unbatched observation.
            action: an unbatched action.
            features: `float32[F]`, what the policy's torso makes of the observation.
        """
        ...

    def loss(
        self, params: PyTree, policy: Distribution, features: jax.Array, sample: Sample, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Return the term `float32[]` and metrics; consumes `key`.

        Args:
            params: the add-on's own.
            policy: the learner's distributions at `sample.batch.obs`, `[B, ...]`.
            features: `float32[B, F]` of the torso below them.
            sample: a batch with its weights, which belong into the loss.
            key: a PRNG key.
        """
        ...


def check(owner: str, addons: Any) -> None:
    """Refuse anything but a tuple of add-ons."""
    if not isinstance(addons, tuple):
        raise ValueError(f"{owner}(addons={addons!r}): give a tuple of add-ons, such as (RewardPrediction(),).")
    for addon in addons:
        if isinstance(addon, type) or not isinstance(addon, Addon):
            raise ValueError(
                f"{owner}(addons=...): {addon!r} is no add-on; give AttractionKL, RepulsionKL, RewardPrediction, or a "
                "component of your own with `learning_rate`, `init` and `loss`."
            )


def init(agent: Any, state: State, key: jax.Array, obs: PyTree, action: PyTree) -> State:
    """Return an agent's first state with the parameters and optimizers of its add-ons.

    The key is only folded: the agent's networks are the same with add-ons and without.
    """
    if not agent.addons:
        return state
    obs, action = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (obs, action))
    features = agent.features(state, jax.tree.map(lambda leaf: leaf[None], obs))[0]
    keys = split(fold_in(key, _STREAM), len(agent.addons))
    params = tuple(addon.init(key, obs, action, features) for addon, key in zip(agent.addons, keys, strict=True))
    return _with_groups(state, params, tuple(map(optimization.init, params)))


def add_gradients(
    agent: Any, state: Any, sample: Sample, key: jax.Array, grads: Any, info: StepInfo
) -> tuple[Any, StepInfo]:
    """Add the gradients of all add-ons to those of the agent, and their metrics; the key is only folded."""
    if not agent.addons:
        return grads, info
    keys = split(fold_in(key, _STREAM), len(agent.addons))

    def total(params: Any) -> tuple[jax.Array, Metrics]:
        learner = state._replace(params=params)
        policy = agent.distribution(learner, sample.batch.obs)
        features = agent.features(learner, sample.batch.obs)
        loss, metrics = jnp.zeros((), jnp.float32), {}
        for index, (addon, own, key) in enumerate(zip(agent.addons, params.addons, keys, strict=True)):
            term, told = addon.loss(own, policy, features, sample, key)
            loss = loss + term
            metrics |= {f"addon{index}_{name}": value for name, value in {"loss": term, **told}.items()}
        return loss, metrics

    (_, metrics), added = jax.value_and_grad(total, has_aux=True)(state.params)
    summed = jax.tree.map(jnp.add, grads, added._replace(addons=()))
    return summed._replace(addons=added.addons), info._replace(metrics={**info.metrics, **metrics})


def apply(agent: Any, before: Any, grads: Any, after: State, num_updates: Any) -> State:
    """Return the state after an agent's step with its add-ons stepped as well, each along its own Adam.

    `num_updates` is what the agent's schedule is a function of.
    """
    if not agent.addons:
        return after
    rates = optimization.scheduled(agent.schedule, num_updates, *(addon.learning_rate for addon in agent.addons))
    groups = before.params.addons, grads.addons, before.optimizer.addons
    params, optimizers = zip(*map(optimization.step, *groups, rates), strict=True)
    return _with_groups(after, params, optimizers)


def _with_groups(state: Any, params: tuple, optimizers: tuple) -> Any:
    return state._replace(
        params=state.params._replace(addons=params), optimizer=state.optimizer._replace(addons=optimizers)
    )
