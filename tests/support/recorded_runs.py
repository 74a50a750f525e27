"""Short training runs whose outcome is on record: a change of form must not change what is learned.

python tests/recorded_runs.py      # writes recorded_runs.json anew, after a change that is meant to change numbers
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl_buffers as jb
from algorithms import (
    DDPG,
    DDQN,
    MPO,
    PPO,
    SAC,
    TD3,
    AttractionKL,
    Averaged,
    Normalized,
    Plan,
    Recurrent,
    RewardPrediction,
    Torso,
    behavior,
    environments,
    train,
)

RECORD = Path(__file__).with_name("recorded_runs.json")
SMALL, GRU = Torso((16,)), Torso((16,), memory="gru", memory_size=8)
OFF_POLICY = Plan(600, num_envs=4, start_steps=200, update_every=40, num_updates=4, mini_batch_size=16, test_every=200)
ON_POLICY = Plan(512, num_envs=4, start_steps=0, update_every=128, num_updates=8, mini_batch_size=32, test_every=256)

Parts = tuple[Any, Any, Any, Plan]


def _run(name: str, make: Callable[[Any], Any], buffer: Any, plan: Plan = OFF_POLICY) -> Callable[[], Parts]:
    def parts() -> Parts:
        env = environments.make(name)
        return make(env), buffer(env) if callable(buffer) else buffer, env, plan

    return parts


def _with_addons(env: Any) -> SAC:
    teacher = SAC(env.action_space, SMALL)
    state = teacher.init(jax.random.key(7), env.obs, env.action_space.example)
    return SAC(
        env.action_space, SMALL, addons=(AttractionKL((behavior(teacher, state),), scale=0.1), RewardPrediction())
    )


def _hindsight(env: Any) -> jb.ReplayBuffer:
    view = jb.Hindsight(jb.NStep(n=2), **env.goal._asdict(), ratio=0.8)
    return jb.ReplayBuffer(jb.Prioritized(), view, length=100, num_envs=4)


RUNS = {
    "ddqn": _run("CartPole-v1", lambda env: DDQN(env.action_space, SMALL), jb.prioritized(100, num_envs=4, n=3)),
    "ddqn_recent": _run(
        "CartPole-v1",
        lambda env: DDQN(env.action_space, SMALL, dueling=True),
        jb.emphasize_recent(100, num_envs=4, sampler=jb.Prioritized(), c_min=20),
    ),
    "ddqn_hindsight": _run("BitFlip15-v0", lambda env: DDQN(env.action_space, SMALL), _hindsight),
    "ddqn_memory": _run(
        "MaskedCartPole-v1",
        lambda env: Recurrent(DDQN(env.action_space, GRU)),
        jb.sequences(100, num_envs=4, sequence_length=8, burn_in=2, sampler=jb.Prioritized()),
    ),
    "ddqn_memory_n_step": _run(
        "MaskedCartPole-v1",
        lambda env: Recurrent(DDQN(env.action_space, GRU)),
        jb.sequences(100, num_envs=4, sequence_length=8, burn_in=2, n=3),
    ),
    "ddpg": _run(
        "Pendulum-v1",
        lambda env: DDPG(env.action_space, SMALL, noise="ornstein_uhlenbeck"),
        jb.uniform(100, num_envs=4),
    ),
    "td3": _run("Pendulum-v1", lambda env: TD3(env.action_space, SMALL, noise="pink"), jb.n_step(100, num_envs=4, n=3)),
    "sac": _run("Pendulum-v1", lambda env: SAC(env.action_space, SMALL), jb.uniform(100, num_envs=4)),
    "sac_memory": _run(
        "MaskedPendulum-v1",
        lambda env: Recurrent(SAC(env.action_space, GRU)),
        jb.sequences(100, num_envs=4, sequence_length=8, burn_in=2),
    ),
    "sac_discrete": _run("CartPole-v1", lambda env: SAC(env.action_space, SMALL), jb.uniform(100, num_envs=4)),
    "sac_addons": _run("Pendulum-v1", _with_addons, jb.uniform(100, num_envs=4)),
    "mpo": _run("Pendulum-v1", lambda env: MPO(env.action_space, SMALL, num_samples=5), jb.uniform(100, num_envs=4)),
    "mpo_passes": _run(
        "CartPole-v1", lambda env: MPO(env.action_space, SMALL, num_passes=3), jb.prioritized(100, num_envs=4)
    ),
    "ppo": _run("CartPole-v1", lambda env: PPO(env.action_space, SMALL), jb.rollout(32, num_envs=4), ON_POLICY),
    "ppo_memory": _run(
        "MaskedCartPole-v1", lambda env: Recurrent(PPO(env.action_space, GRU)), jb.rollout(32, num_envs=4), ON_POLICY
    ),
    "wrapped": _run(
        "CartPole-v1",
        lambda env: Normalized(Averaged(DDQN(env.action_space, SMALL), rate=0.9)),
        jb.uniform(100, num_envs=4),
    ),
}


def outcome(name: str) -> dict[str, list[float]]:
    """Train, and return the metrics of both evaluations and a number for the parameters."""
    agent, buffer, env, plan = RUNS[name]()
    state, metrics = jax.jit(lambda key: train(key, agent, buffer, env, plan))(jax.random.key(3))
    leaves = [leaf for leaf in jax.tree.leaves(state.agent) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    found = {key: np.asarray(values, np.float64).reshape(2, -1).mean(axis=1) for key, values in metrics.items()}
    found["agent"] = np.array([sum(np.abs(np.asarray(leaf, np.float64)).sum() for leaf in leaves)])
    return {key: [None if np.isnan(value) else float(f"{value:.9g}") for value in found[key]] for key in sorted(found)}


def record() -> None:
    """Write the outcome of all runs, a line each."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(outcome(name))}" for name in RUNS)
    RECORD.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    import conftest  # noqa: F401  # compiled as in tests

    record()
