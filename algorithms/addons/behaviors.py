"""Behaviors: fixed policies. Add-ons compare them with the policy that is trained."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from algorithms.networks.distributions import Categorical, Distribution, Normal, TanhNormal
from algorithms.networks.memories import History
from algorithms.types import Agent, MemoryAgent, PolicyAgent, WrapperAgent
from jaxrl_buffers.types import PyTree

Behavior = Callable[[PyTree], Distribution]  # takes observations `[B, ...]`; a pytree, so that `jit` accepts it
_LEAST_LOG_PROB = -1e9  # instead of minus infinity, because 0 * log 0 would be NaN


def behavior(policy: PolicyAgent | Callable[..., Distribution], *state: PyTree) -> Behavior:
    """Return a fixed policy, made from an agent and its state, or from a function.

    A function is called as `policy(*state, obs)` with observations `[B, ...]`. It must return distributions `[B, ...]`
    of the same kind as those of the agent that is trained (the learner):

    * `Categorical` for discrete actions,
    * `Normal`, for actions in `[-1, 1]`, if the learner is DDPG, TD3, MPO or PPO with continuous actions,
    * `TanhNormal` if the learner is SAC with continuous actions.

    A behavior gets the same observations as the learner, for example normalized ones. A behavior has no memory, even if
    the learner has one. The result is a pytree. It has the leaves of the state, and the function is static.

    Example:
        >>> from algorithms import Discrete, PPO
        >>> teacher = PPO(Discrete(2))
        >>> state = teacher.init(jax.random.key(0), jnp.zeros(4), Discrete(2).example)
        >>> behavior(teacher, state)(jnp.zeros((5, 4))).log_probs.shape
        (5, 2)
        >>> uniform = behavior(lambda obs: Categorical(jnp.full((obs.shape[0], 2), jnp.log(0.5))))
        >>> print(uniform(jnp.zeros((5, 4))).entropy()[0])
        0.6931472
    """
    if has_memory(policy):
        raise ValueError(
            f"behavior({type(policy).__name__}, ...): its networks have a memory, but behaviors see single "
            "observations; give an agent whose torso has `memory=None`, or a function."
        )
    if isinstance(policy, PolicyAgent):
        if len(state) != 1:
            raise ValueError(f"behavior({type(policy).__name__}, ...): give the agent's state, and nothing else.")
        return jax.tree_util.Partial(type(policy).distribution, policy, *state)
    if not callable(policy):
        raise ValueError(f"behavior({policy!r}): a behavior is made from an agent or a function of observations.")
    return jax.tree_util.Partial(policy, *state)


def divergence(behavior: Behavior, policy: Distribution, obs: PyTree) -> jax.Array:
    """Return `KL(behavior || policy)`, `float32[B]`. No gradient reaches the behavior.

    Args:
        behavior: the fixed policy.
        policy: the distributions `[B, ...]` of the policy that is trained.
        obs: the observations `[B, ...]` of these distributions, or a `History` with `B` rows in all.
    """
    fixed = jax.lax.stop_gradient(behavior(obs.rows if isinstance(obs, History) else obs))
    if isinstance(fixed, Categorical) and isinstance(policy, Categorical):
        return Categorical(jnp.maximum(fixed.log_probs, _LEAST_LOG_PROB)).kl(policy)
    if isinstance(fixed, Normal) and isinstance(policy, Normal):
        return jnp.sum(fixed.kl(policy), axis=-1)
    if isinstance(fixed, TanhNormal) and isinstance(policy, TanhNormal):
        return jnp.sum(fixed.kl(policy), axis=-1)
    raise ValueError(
        f"the behavior gives {type(fixed).__name__} distributions, but the trained policy gives "
        f"{type(policy).__name__} distributions; use a behavior of the same kind."
    )


def has_memory(policy: Agent | PolicyAgent | Callable[..., Distribution]) -> bool:
    """Return whether the networks of an agent have a memory. The agent may be inside of wrappers."""
    if isinstance(policy, WrapperAgent):
        return has_memory(policy.agent)
    return isinstance(policy, MemoryAgent) and policy.torso.memory is not None
