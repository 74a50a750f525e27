"""Environments with goals, in gymnax's interface, one in each file. Importing this package registers them with gymnax.

Observations are dicts of float32 vectors. They have the same keys as Gymnasium's environments with goals:
`observation`, `achieved_goal` and `desired_goal`. The reward of a step is -1, or 0 if the step reaches the goal.
Reaching the goal ends the episode. The attribute `goal` of an environment holds what hindsight needs; see `Goal`.
"""

from algorithms.environments._gymnax import gymnax
from algorithms.environments.goals import bit_flip, point_reach
from algorithms.environments.goals.bit_flip import BitFlip
from algorithms.environments.goals.goal import Goal
from algorithms.environments.goals.point_reach import PointReach
from jaxrl_buffers import config

__all__ = ["BitFlip", "Goal", "PointReach"]

gymnax.register("BitFlip-v0", BitFlip)
for _size in bit_flip.SIZES:
    gymnax.register(f"BitFlip{_size}-v0", lambda num_bits=_size: BitFlip(num_bits))
gymnax.register("PointReach-v0", PointReach)

config.register("relabel_bit_flip", bit_flip.relabel)
config.register("relabel_point_reach", point_reach.relabel)
