"""Environments by name or of one's own: inside the compiled program, or stepped on the host."""

from algorithms.environments.described import Described, Finished
from algorithms.environments.environment import OBS_DTYPES, Environment, EnvironmentState, wrap
from algorithms.environments.names import make
from algorithms.environments.spaces import Box, Discrete, Space

__all__ = [
    "OBS_DTYPES",
    "Box",
    "Described",
    "Discrete",
    "Environment",
    "EnvironmentState",
    "Finished",
    "Space",
    "make",
    "wrap",
]
