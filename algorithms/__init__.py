"""Algorithms as pure functions that thread a replay buffer through one compiled program."""

from algorithms import environments
from algorithms.addons import AttractionKL, RepulsionKL, RewardPrediction, behavior
from algorithms.averaging import Averaged
from algorithms.ddpg import DDPG
from algorithms.ddqn import DDQN
from algorithms.evaluation import evaluate
from algorithms.loop import TrainState, collect, train, train_step
from algorithms.mpo import MPO
from algorithms.networks import NATURE, Torso
from algorithms.normalization import Normalized
from algorithms.optimization import LinearDecay
from algorithms.plan import Plan
from algorithms.ppo import PPO
from algorithms.recurrence import Recurrent
from algorithms.sac import SAC
from algorithms.spaces import Box, Discrete
from algorithms.td3 import TD3
from algorithms.types import Agent, StepInfo
from jaxrl_buffers import config

for _component in (
    *(DDPG, DDQN, MPO, PPO, SAC, TD3),
    *(AttractionKL, RepulsionKL, RewardPrediction),
    *(Box, Discrete, LinearDecay, Torso),
):
    config.register_component(_component)

__all__ = [
    "DDPG",
    "DDQN",
    "MPO",
    "NATURE",
    "PPO",
    "SAC",
    "TD3",
    "Agent",
    "AttractionKL",
    "Averaged",
    "Box",
    "Discrete",
    "LinearDecay",
    "Normalized",
    "Plan",
    "Recurrent",
    "RepulsionKL",
    "RewardPrediction",
    "StepInfo",
    "Torso",
    "TrainState",
    "behavior",
    "collect",
    "environments",
    "evaluate",
    "train",
    "train_step",
]
