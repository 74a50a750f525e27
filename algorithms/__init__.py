"""Reinforcement learning algorithms as pure functions. A whole training run compiles into one program."""

from algorithms import _starting as _starting  # before all others; see there
from algorithms import environments
from algorithms.addons import AttractionKL, RepulsionKL, RewardPrediction, behavior
from algorithms.agents.ddpg import DDPG
from algorithms.agents.ddqn import DDQN
from algorithms.agents.mpo import MPO
from algorithms.agents.ppo import PPO
from algorithms.agents.sac import SAC
from algorithms.agents.td3 import TD3
from algorithms.environments.spaces import Box, Discrete
from algorithms.networks import NATURE, Torso, torso_for
from algorithms.optimizers import LinearDecay, OptaxSchedule, Optimizer
from algorithms.runs.host_evaluation import evaluate_on_host
from algorithms.runs.host_training import train_on_host
from algorithms.runs.policy import Policy, load_policy
from algorithms.training.collection import collect
from algorithms.training.evaluation import evaluate
from algorithms.training.loop import train
from algorithms.training.off_policy import train_step
from algorithms.training.offline import train_offline
from algorithms.training.plan import Plan
from algorithms.training.structure import empty_row
from algorithms.training.train_state import TrainState
from algorithms.types import Agent, StepInfo
from algorithms.wrappers.averaging import Averaged
from algorithms.wrappers.data_parallel import DataParallel
from algorithms.wrappers.normalization import Normalized
from algorithms.wrappers.recurrence import Recurrent
from jaxrl_buffers import config

for _component in (
    *(DDPG, DDQN, MPO, PPO, SAC, TD3),
    *(AttractionKL, RepulsionKL, RewardPrediction),
    *(Averaged, Normalized, Recurrent),
    *(Box, Discrete, LinearDecay, OptaxSchedule, Optimizer, Torso),
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
    "DataParallel",
    "Discrete",
    "LinearDecay",
    "Normalized",
    "OptaxSchedule",
    "Optimizer",
    "Plan",
    "Policy",
    "Recurrent",
    "RepulsionKL",
    "RewardPrediction",
    "StepInfo",
    "Torso",
    "TrainState",
    "behavior",
    "collect",
    "empty_row",
    "environments",
    "evaluate",
    "evaluate_on_host",
    "load_policy",
    "torso_for",
    "train",
    "train_offline",
    "train_on_host",
    "train_step",
]
