"""Tuned settings, one small file for each algorithm and environment."""

from __future__ import annotations

from typing import Any

from algorithms.experiment import ALGORITHMS, ON_POLICY
from algorithms.plan import Plan
from algorithms.presets import (
    ddpg_pendulum,
    ddpg_point_reach,
    ddqn_bit_flip,
    ddqn_cartpole,
    ddqn_masked_cartpole,
    mpo_cartpole,
    mpo_pendulum,
    ppo_cartpole,
    sac_cartpole,
    sac_pendulum,
    td3_mountain_car,
    td3_pendulum,
)
from algorithms.settings import Settings, require_name

PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    ("ddqn", "CartPole-v1"): ddqn_cartpole.SETTINGS,
    ("ddqn", "MaskedCartPole-v1"): ddqn_masked_cartpole.SETTINGS,
    ("ddqn", "BitFlip15-v0"): ddqn_bit_flip.SETTINGS,
    ("ddpg", "Pendulum-v1"): ddpg_pendulum.SETTINGS,
    ("ddpg", "PointReach-v0"): ddpg_point_reach.SETTINGS,
    ("td3", "Pendulum-v1"): td3_pendulum.SETTINGS,
    ("td3", "MountainCarContinuous-v0"): td3_mountain_car.SETTINGS,
    ("mpo", "CartPole-v1"): mpo_cartpole.SETTINGS,
    ("mpo", "Pendulum-v1"): mpo_pendulum.SETTINGS,
    ("ppo", "CartPole-v1"): ppo_cartpole.SETTINGS,
    ("sac", "Pendulum-v1"): sac_pendulum.SETTINGS,
    ("sac", "CartPole-v1"): sac_cartpole.SETTINGS,
}
UNTUNED = {"plan": Plan(total_steps=100_000, update_every=1, num_updates=1, mini_batch_size=128)}
UNTUNED_ON_POLICY = ppo_cartpole.SETTINGS


def preset(algorithm: str, environment: str) -> Settings:
    """Return the tuned settings of an algorithm for an environment, or sensible ones if there are none.

    Example:
        >>> preset("ddqn", "CartPole-v1").plan.total_steps
        50000
    """
    require_name("algorithm", algorithm, ALGORITHMS)
    untuned = UNTUNED_ON_POLICY if algorithm in ON_POLICY else UNTUNED
    tuned = PRESETS.get((algorithm, environment), untuned)
    return Settings(algorithm, environment, **{**tuned, "plan": tuned["plan"].as_suggestion()})
