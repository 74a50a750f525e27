"""Trains seeds of SBX in turns, and prints the returns of every evaluation; for benchmark_time_to_solve.py.

    sbx_seeds.py ALGORITHM ENVIRONMENT STEPS_BETWEEN_EVALUATIONS FIRST_SEED NUM_SEEDS

The settings are those that RL-Zoo has tuned. Evaluations are deterministic.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any, NamedTuple

warnings.filterwarnings("ignore")  # of its dependencies

import sbx  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402

NUM_EPISODES = 10


class Configuration(NamedTuple):
    """What RL-Zoo has tuned."""

    total_steps: int
    num_envs: int
    options: dict[str, Any]
    falling: tuple[str, ...] = ()  # options that fall linearly to zero over all steps


CONFIGURATIONS = {
    ("ppo", "CartPole-v1"): Configuration(
        100_000,
        8,
        {
            **{"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0},
            **{"learning_rate": 1e-3, "clip_range": 0.2},
        },
        ("learning_rate", "clip_range"),
    ),
    ("dqn", "CartPole-v1"): Configuration(
        50_000,
        1,
        {
            **{"learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1_000},
            **{"gamma": 0.99, "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128},
            **{"exploration_fraction": 0.16, "exploration_final_eps": 0.04, "policy_kwargs": {"net_arch": [256, 256]}},
        },
    ),
    ("sac", "Pendulum-v1"): Configuration(20_000, 1, {"learning_rate": 1e-3}),
}


def main(algorithm: str, environment: str, interval: int, first_seed: int, num_seeds: int) -> None:
    """Train up to the total of the configuration; all seeds are evaluated after the same number of steps."""
    configuration = CONFIGURATIONS[algorithm, environment]
    print(json.dumps({"ready": True}), flush=True)
    seeds = range(first_seed, first_seed + num_seeds)
    models = [_model(algorithm, environment, configuration, seed) for seed in seeds]
    env = make_vec_env(environment, NUM_EPISODES)
    for steps in range(interval, configuration.total_steps + 1, interval):
        for model in models:
            model.learn(steps - model.num_timesteps, reset_num_timesteps=False)
        returns = [evaluate_policy(model, env, NUM_EPISODES, warn=False)[0] for model in models]
        print(json.dumps({"steps": steps, "returns": [*map(float, returns)]}), flush=True)


def _model(algorithm: str, environment: str, configuration: Configuration, seed: int) -> Any:
    """Return a model whose schedules follow all steps, and not those of one call of `learn`."""
    made: list[Any] = []

    def left() -> float:
        return 1 - made[0].num_timesteps / configuration.total_steps if made else 1.0

    options = dict(configuration.options)
    for name in configuration.falling:
        options[name] = lambda _, value=options[name]: value * left()
    env = make_vec_env(environment, configuration.num_envs, seed=seed)
    made.append(getattr(sbx, algorithm.upper())("MlpPolicy", env, seed=seed, **options))
    if algorithm == "dqn":
        schedule = made[0].exploration_schedule
        made[0].exploration_schedule = lambda _: schedule(left())
    return made[0]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
