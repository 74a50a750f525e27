"""Environments, by name or written by the user. They run inside the compiled program, or on the host."""

from algorithms.environments._obs_dtype import OBS_DTYPES
from algorithms.environments.described import Described, Finished
from algorithms.environments.environment import Environment, EnvironmentState, wrap
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
