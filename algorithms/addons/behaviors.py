"""Policies to stay close to, or to keep away from."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from algorithms.networks.distributions import Categorical, Distribution, Normal, TanhNormal
from algorithms.networks.memories import History
from algorithms.types import Agent, MemoryAgent, PolicyAgent
from algorithms.wrappers._base import Wrapper
from jaxrl_buffers.types import PyTree

Behavior = Callable[[PyTree], Distribution]  # from observations `[B, ...]`; a pytree, so that it may cross `jit`
_LEAST_LOG_PROB = -1e9  # stands for minus infinity, of which 0 * log 0 would make NaN


def behavior(policy: PolicyAgent | Callable[..., Distribution], *state: PyTree) -> Behavior:
    """Return a policy that does not learn, from an agent and its state or from a function.

    A function gets `state`, if there is any, and observations `[B, ...]`; it returns distributions `[B, ...]` of the
    learner's own kind: `Categorical`; `Normal` in `[-1, 1]` for DDPG, TD3, MPO and PPO; `TanhNormal` for SAC. States
    are leaves of the result, functions are not. Observations are given as the learner sees them, one row at a time: a
    learner may have a memory, a behaviour has none.

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
            f"behavior({type(policy).__name__}, ...): its networks have a memory, but behaviours see single "
            "observations; give an agent whose torso has `memory=None`, or a function."
        )
    if isinstance(policy, PolicyAgent):
        if len(state) != 1:
            raise ValueError(f"behavior({type(policy).__name__}, ...): give the agent's state, and nothing else.")
        return jax.tree_util.Partial(type(policy).distribution, policy, *state)
    if not callable(policy):
        raise ValueError(f"behavior({policy!r}): a behaviour is made from an agent or a function of observations.")
    return jax.tree_util.Partial(policy, *state)


def divergence(behavior: Behavior, policy: Distribution, obs: PyTree) -> jax.Array:
    """Return `KL(behaviour || policy)`, `float32[B]`; no gradient reaches the behaviour.

    Observations may be a `History`; the policy is then one of its rows.
    """
    fixed = jax.lax.stop_gradient(behavior(obs.rows if isinstance(obs, History) else obs))
    if isinstance(fixed, Categorical) and isinstance(policy, Categorical):
        return Categorical(jnp.maximum(fixed.log_probs, _LEAST_LOG_PROB)).kl(policy)
    if isinstance(fixed, Normal) and isinstance(policy, Normal):
        return jnp.sum(fixed.kl(policy), axis=-1)
    if isinstance(fixed, TanhNormal) and isinstance(policy, TanhNormal):
        return jnp.sum(fixed.kl(policy), axis=-1)
    raise ValueError(
        f"the behaviour is a {type(fixed).__name__}, but the policy that learns is a {type(policy).__name__}; "
        "give a behaviour of the same kind."
    )


def has_memory(policy: Agent | PolicyAgent | Callable[..., Distribution]) -> bool:
    """Return whether networks of an agent, or of the agent that it wraps, have a memory."""
    if isinstance(policy, Wrapper):
        return has_memory(policy.agent)
    return isinstance(policy, MemoryAgent) and policy.torso.memory is not None
