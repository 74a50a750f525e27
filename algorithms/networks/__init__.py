"""Networks. A torso turns observations into features, and a head turns features into outputs.

Memories are parts of torsos. Distributions over actions are made from the outputs of a head.
"""

from algorithms.networks.application import Network, apply_batch, apply_stack, init_network, init_stack, torso_features
from algorithms.networks.heads import (
    CategoricalActor,
    Critic,
    DeterministicActor,
    GaussianActor,
    QNetwork,
    ValueNetwork,
)
from algorithms.networks.torsos import MEDIUM, NATURE, Torso, torso_for

__all__ = [
    "MEDIUM",
    "NATURE",
    "CategoricalActor",
    "Critic",
    "DeterministicActor",
    "GaussianActor",
    "Network",
    "QNetwork",
    "Torso",
    "ValueNetwork",
    "apply_batch",
    "apply_stack",
    "init_network",
    "init_stack",
    "torso_features",
    "torso_for",
]
