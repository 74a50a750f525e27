"""Environments with goals, in gymnax's interface, one file each; importing them makes their names known to gymnax.

Observations are dicts of float32 vectors, with the keys that goal environments of gymnasium have: `observation`,
`achieved_goal` and `desired_goal`. A step is worth -1, or 0 when it reaches the goal, which ends the task. What
hindsight needs to know is an environment's `goal`.
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
