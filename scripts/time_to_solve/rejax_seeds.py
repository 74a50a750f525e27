"""Trains seeds of rejax side by side, and prints the returns of every evaluation; for benchmark_time_to_solve.py.

    rejax_seeds.py ALGORITHM ENVIRONMENT STEPS_BETWEEN_EVALUATIONS FIRST_SEED NUM_SEEDS

The settings are those of the configuration files that rejax ships, and the network is its default of 64x64. All seeds
are one program by `vmap`, as rejax advertises. Policies act in evaluations as rejax lets them: PPO and SAC draw their
actions, DQN explores with 0.5 %.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np
import rejax
from rejax.evaluate import evaluate

NUM_EPISODES = 10
CONFIGURATIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("ppo", "CartPole-v1"): {
        **{"agent_kwargs": {"activation": "tanh"}, "num_envs": 5, "num_steps": 100, "num_epochs": 5},
        **{"num_minibatches": 5, "learning_rate": 7.5e-4, "max_grad_norm": 0.5, "total_timesteps": 100_000},
        **{"gamma": 0.99, "gae_lambda": 0.95, "clip_eps": 0.2, "ent_coef": 0.01, "vf_coef": 0.5},
    },
    ("dqn", "CartPole-v1"): {
        **{"agent": "DuelingQNetwork", "agent_kwargs": {"activation": "swish"}, "num_envs": 10, "num_epochs": 5},
        **{"buffer_size": 50_000, "fill_buffer": 5_000, "batch_size": 100, "max_grad_norm": 10},
        **{"learning_rate": 1e-3, "total_timesteps": 100_000, "polyak": 0.98, "eps_start": 1, "eps_end": 0.05},
        **{"exploration_fraction": 0.5, "gamma": 0.99, "ddqn": True, "normalize_observations": False},
    },
    ("sac", "Pendulum-v1"): {
        **{"agent_kwargs": {"activation": "swish"}, "num_envs": 1, "buffer_size": 10_000, "fill_buffer": 256},
        **{"batch_size": 256, "learning_rate": 1e-2, "num_epochs": 1, "total_timesteps": 10_000, "gamma": 0.99},
        **{"polyak": 0.98, "target_entropy_ratio": None, "normalize_observations": True},
    },
}


def main(algorithm: str, environment: str, interval: int, first_seed: int, num_seeds: int) -> None:
    """Train up to the total of the configuration."""
    configuration = CONFIGURATIONS[algorithm, environment]
    agent = rejax.get_algo(algorithm).create(env=environment, **configuration)
    print(json.dumps({"ready": True}), flush=True)
    steps_of_iteration = configuration["num_envs"] * configuration.get("num_steps", 1)
    num_iterations = interval // steps_of_iteration

    def train(state: Any) -> Any:
        return jax.lax.fori_loop(0, num_iterations, lambda _, state: agent.train_iteration(state), state)

    def test(state: Any, key: jax.Array) -> jax.Array:
        limit = agent.env_params.max_steps_in_episode
        return evaluate(agent.make_act(state), key, agent.env, agent.env_params, NUM_EPISODES, limit)[1].mean()

    keys = jax.random.split(jax.random.PRNGKey(first_seed), num_seeds)
    state = jax.jit(jax.vmap(agent.init_state))(keys)
    train_all, test_all = jax.jit(jax.vmap(train), donate_argnums=0), jax.jit(jax.vmap(test))
    for number in range(1, configuration["total_timesteps"] // interval + 1):
        state = train_all(state)
        returns = np.asarray(test_all(state, jax.random.split(jax.random.PRNGKey(number), num_seeds)))
        print(json.dumps({"steps": number * interval, "returns": returns.tolist()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
