"""A small environment in the interface of Brax, without its physics: push a point on a line to zero."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from algorithms.environments import Environment
from algorithms.environments.brax import envs, from_brax  # hides the warnings at Brax's import

State = envs.State


class Slide(envs.Env):
    """A point with a place and a speed. Beyond 2, the task has ended."""

    def reset(self, rng: jax.Array) -> State:
        place = jax.random.uniform(rng, (), minval=-1.0, maxval=1.0)
        zero = jnp.zeros(())
        return State(None, jnp.stack([place, zero]), zero, zero, {"distance": jnp.abs(place)})

    def step(self, state: State, action: jax.Array) -> State:
        speed = 0.5 * state.obs[1] + 0.5 * action[0]
        place = state.obs[0] + speed
        distance = jnp.abs(place)
        done = (distance > 2).astype(jnp.float32)
        obs = jnp.stack([place, speed])
        return state.replace(obs=obs, reward=-distance, done=done, metrics={"distance": distance})

    @property
    def observation_size(self) -> int:
        return 2

    @property
    def action_size(self) -> int:
        return 1

    @property
    def backend(self) -> str:
        return "none"


def make_env() -> envs.Env:
    """Return an environment of Brax."""
    return Slide()


def make_wrapped() -> envs.Env:
    """Return it with the wrappers of Brax's training, one of which is inside another wrapper."""
    return envs.Wrapper(envs.training.EpisodeWrapper(Slide(), 6, 1))


def make_short() -> Environment:
    """Return it with a time limit of its own."""
    return from_brax(Slide(), "short slide", episode_length=6)
