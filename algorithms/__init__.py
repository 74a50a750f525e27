"""Algorithms as pure functions that thread a replay buffer through one compiled program."""

from algorithms import environments
from algorithms.ddqn import DDQN
from algorithms.evaluation import evaluate
from algorithms.loop import TrainState, collect, train, train_step
from algorithms.mpo import MPO
from algorithms.networks import Torso
from algorithms.plan import Plan
from algorithms.ppo import PPO
from algorithms.sac import SAC
from algorithms.spaces import Box, Discrete
from algorithms.types import Agent, StepInfo

__all__ = [
    "DDQN",
    "MPO",
    "PPO",
    "SAC",
    "Agent",
    "Box",
    "Discrete",
    "Plan",
    "StepInfo",
    "Torso",
    "TrainState",
    "collect",
    "environments",
    "evaluate",
    "train",
    "train_step",
]
