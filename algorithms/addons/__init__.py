"""Policy-loss add-ons: terms that any agent adds to the loss of its policy, as in `SAC(space, addons=(...,))`."""

from algorithms.addons.addon import Addon
from algorithms.addons.behaviors import behavior
from algorithms.addons.kl import AttractionKL, RepulsionKL
from algorithms.addons.reward_prediction import RewardPrediction

__all__ = ["Addon", "AttractionKL", "RepulsionKL", "RewardPrediction", "behavior"]
