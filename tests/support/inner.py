"""An agent for wrappers, which returns what it gets."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp


class State(NamedTuple):
    """Of the agent inside."""

    params: Any
    other: Any = 7


class Inner:
    """Names every method's arguments."""

    action_space, learns_from_columns = "space", True

    def init(self, *args):
        return State(jnp.ones(2), args)

    def initial_carry(self, num_envs):
        return f"carry of {num_envs}"

    def act(self, *args):
        return "act", args

    def distribution(self, *args):
        return "distribution", args

    def values(self, *args):
        return "values", args

    def observe(self, state, chunk):
        return state._replace(other=chunk)

    def gradients(self, *args):
        return "gradients", args

    def apply(self, state, grads):
        return state._replace(params=state.params + grads)
