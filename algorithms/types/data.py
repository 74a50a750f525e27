"""The data that agents exchange with the training loop, and how they describe their parameters."""

from __future__ import annotations

from typing import NamedTuple

import jax

Metrics = dict[str, jax.Array]  # a flat dict of scalars
# The groups of parameters that hold networks. Each comes with the sizes of its stacking axes. For example,
# (("actor", ()), ("critic", (2,))) means one actor and a stack of two critics.
Roles = tuple[tuple[str, tuple[int, ...]], ...]


class StepInfo(NamedTuple):
    """The second result of `Agent.gradients`: priorities for the replay buffer, and metrics."""

    priorities: jax.Array  # float32[B], absolute TD errors; float32[B, L] for sequences
    metrics: Metrics


class GroupRule(NamedTuple):
    """The settings of Adam, the default optimizer, for one group of an agent's parameters."""

    learning_rate: str  # the name of the agent's field that holds the learning rate
    is_clipped: bool = True  # whether gradients are clipped to the agent's `max_grad_norm`
