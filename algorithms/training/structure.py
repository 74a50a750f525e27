"""The shapes and dtypes of agents' states and extras, found by tracing the agents."""

from __future__ import annotations

import jax
import numpy as np

from algorithms.environments import Described
from algorithms.types import Agent
from jaxrl_buffers._checks import first_difference, kind_of
from jaxrl_buffers.types import PyTree, Transition


def extras(agent: Agent, agent_state: PyTree, env: Described, key: jax.Array) -> PyTree:
    """Return the shapes and dtypes of the extras that an agent stores with one step. Only the type of `key` matters."""

    def act(agent_state: PyTree, obs: PyTree, key: jax.Array) -> PyTree:
        obs = jax.tree.map(lambda leaf: leaf[None], obs)
        return agent.act(agent_state, obs, agent.initial_carry(1), key)[2]

    stored = jax.eval_shape(act, agent_state, env.obs, key)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), stored)


def row(agent: Agent, env: Described) -> Transition:
    """Return the shapes and dtypes of one step as it is stored, with all its extras."""
    key = jax.random.key(0)
    agent_state = jax.eval_shape(lambda: agent.init(key, env.obs, env.action_space.example))
    return env.transition(extras(agent, agent_state, env, key))


def empty_row(agent: Agent, env: Described) -> Transition:
    """Return one step as training stores it: zeros, and in the extras an empty memory if the agent has one.

    Numbers of `info` are NaN, as where an environment does not tell them. A data set has no extras of an agent. So an
    agent that needs some learns from rows to which these were added.

    Args:
        agent: the algorithm.
        env: the environment.

    Example:
        >>> from algorithms import DDQN, Recurrent, Torso, environments
        >>> env = environments.make("CartPole-v1")
        >>> agent = Recurrent(DDQN(env.action_space, Torso((8,), memory="gru", memory_size=8)))
        >>> sorted(empty_row(agent, env).extras["carry"])
        ['critic', 'is_first']
    """
    empty = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), row(agent, env))
    if not isinstance(empty.extras, dict) or "info" not in empty.extras:
        return empty
    return empty._replace(extras=empty.extras | {"info": dict.fromkeys(empty.extras["info"], np.float32(np.nan))})


def check_agent(agent: Agent, agent_state: PyTree, env: Described) -> None:
    """Refuse a state that does not fit this agent and environment. The error names a leaf that differs."""
    wanted = jax.eval_shape(lambda: agent.init(jax.random.key(0), env.obs, env.action_space.example))
    given, needed = map(_kinds, (jax.eval_shape(lambda tree: tree, agent_state), wanted))
    if (found := first_difference(needed, given)) is not None:
        name, right, wrong = found
        raise ValueError(
            f"the agent's state has {wrong} for {name}, but {type(agent).__name__} in {env.name} needs {right}; give a "
            "state of an agent that was made like this one."
        )


def _kinds(tree: PyTree) -> dict[str, str]:
    """Return a mapping from the path of every leaf to its dtype and shape."""
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path): kind_of(leaf.shape, leaf.dtype) for path, leaf in leaves}
