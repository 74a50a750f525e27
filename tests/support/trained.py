"""Folders of runs that hold an agent, without the time that training takes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from algorithms import Plan
from algorithms.runs.build import build, complete
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings
from algorithms.training.train_state import TrainState

PLAN = Plan(total_steps=200, num_envs=2, start_steps=100, update_every=20, mini_batch_size=8, num_updates=1)
ON_POLICY = Plan(total_steps=200, num_envs=2, start_steps=0, update_every=100, mini_batch_size=50, num_updates=4)


def small_settings(algorithm: str = "ddqn", environment: str = "CartPole-v1", **changes) -> Settings:
    plan = ON_POLICY if algorithm == "ppo" else PLAN
    return complete(Settings(algorithm, environment, plan, hidden_sizes=(8,), **{"capacity": 500, **changes}))


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
