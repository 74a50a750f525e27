"""Add-ons: terms that any agent can add to the loss of its policy, as in `SAC(space, addons=(RewardPrediction(),))`."""

from algorithms.addons.behaviors import behavior
from algorithms.addons.kl import AttractionKL, RepulsionKL
from algorithms.addons.reward_prediction import RewardPrediction
from algorithms.types import Addon

__all__ = ["Addon", "AttractionKL", "RepulsionKL", "RewardPrediction", "behavior"]
