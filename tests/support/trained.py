"""Policies, and folders of runs that hold an agent, without the time that training takes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import DDQN, Plan, Policy, Torso
from algorithms.runs.build import build, complete
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings
from algorithms.training.train_state import TrainState

PLAN = Plan(total_steps=200, num_envs=2, start_steps=100, update_every=20, mini_batch_size=8, num_updates=1)
ON_POLICY = Plan(total_steps=200, num_envs=2, start_steps=0, update_every=100, mini_batch_size=50, num_updates=4)


def small_settings(algorithm: str = "ddqn", environment: str = "CartPole-v1", **changes) -> Settings:
    plan = ON_POLICY if algorithm == "ppo" else PLAN
    return complete(Settings(algorithm, environment, plan, hidden_sizes=(8,), **{"capacity": 500, **changes}))


# Settings of policies of every kind, by name. A kind without an algorithm has the name of its algorithm.
KINDS = {
    "ddqn": {},
    "sac": {"environment": "Pendulum-v1"},
    "sac_discrete": {"algorithm": "sac"},
    "ddpg": {"environment": "Pendulum-v1", "agent": {"noise": "pink"}},
    "td3": {"environment": "Pendulum-v1"},
    "mpo": {"environment": "Pendulum-v1"},
    "ppo": {},
    "goals": {"algorithm": "ddqn", "environment": "BitFlip15-v0", "hindsight": "future"},
    "images": {"algorithm": "ddqn", "environment": "Breakout-MinAtar", "obs_dtype": "bool", "channels": (4,)},
    "gru": {"algorithm": "ddqn", "memory": "gru", "memory_size": 4, "averaging": 0.9},
    "lstm": {"algorithm": "sac", "environment": "Pendulum-v1", "memory": "lstm", "memory_size": 4, "normalize": True},
    "averaged": {"algorithm": "ddqn", "averaging": 0.9, "normalize": True},
}


def observations(env, num: int, seed: int = 0):
    """Draw observations `[N, ...]`."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda like: rng.uniform(0, 2, (num, *like.shape)).astype(like.dtype), env.obs)


def untrained(env, seed: int = 0) -> Policy:
    """Return the policy of a new agent."""
    agent = DDQN(env.action_space, Torso((8,)))
    return Policy(agent, agent.init(jax.random.key(seed), env.obs, env.action_space.example), env)


def agent_states(settings: Settings, seed: int = 0):
    """Return what agents of all seeds know before they have learned, `[S, ...]` of several seeds."""
    agent, _, env, _ = build(settings)
    keys = jax.random.split(jax.random.key(seed), settings.num_seeds)
    states = jax.jit(jax.vmap(lambda key: agent.init(key, env.obs, env.action_space.example)))(keys)
    return jax.tree.map(lambda leaf: leaf[0], states) if settings.num_seeds == 1 else states


def save_agent(path, settings: Settings, agent_state, iteration: int = 0, is_finite: bool = True) -> RunFolder:
    """Write the folder of a run, or another checkpoint of it; beside the agent there is nothing of use."""
    folder = RunFolder(path)
    if not folder.path.exists():
        folder.create(settings)
    state = TrainState(agent_state, jnp.zeros(3), (), jax.random.key(0), jnp.zeros((), jnp.int32), ())
    folder.save(state, settings, {"iteration": iteration, "seconds": 0.0}, is_finite)
    return folder
